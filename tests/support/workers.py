"""Workers in the test's own process, on scripted models: they end as real ones do, and others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from executor.log.stored import LivePieces, nowhere
from executor.store.database import Database
from executor.workers.engine import Engine
from executor.workers.handover import Outcome
from executor.workers.inbox import Inbox
from executor.workers.stored_job import run_stored_job
from executor.workers.suspects import is_suspect
from executor.workers.workshop import Workshop


@asynccontextmanager
async def worker(
    database: Database,
    work: Workshop,
    *,
    slots: int = 4,
    grace: float = 30.0,
    live: LivePieces = nowhere,
    **timing: float,
) -> AsyncIterator[Engine]:
    """A worker within the block, which is told to end at the end of it, with so many seconds for what is under way.
    Suspects are run beside the others: there is no process to lose."""
    engine = Engine(database, **{"heartbeat": 5.0, "poll": 0.5, **timing})
    outcomes: list[tuple[str, Outcome]] = []
    async with Inbox.open(database) as inbox, asyncio.TaskGroup() as group:
        here = replace(work, inbox=inbox)

        async def handle(job_id: str) -> Outcome:
            assert not await is_suspect(database, job_id)  # nobody dies here
            outcome = await run_stored_job(database, engine.owner, job_id, here, live=live, handover=engine.handover)
            outcomes.append((job_id, outcome))
            return outcome

        group.create_task(engine.run(handle, slots))
        try:
            yield engine
        finally:
            if not engine.handover.begun:
                engine.stop(grace)


async def sql(database: Database, text: str, *args: Any) -> Any:
    """The rows of a statement."""
    async with database.connection() as connection:
        return await connection.fetch(text, *args)


async def queue(database: Database) -> dict[str, str]:
    """What stands in the queue: each job's status there."""
    return {row["dedupe_key"]: row["status"] for row in await sql(database, "select dedupe_key, status from pgqueuer")}
