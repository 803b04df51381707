"""How a worker lets its jobs go: they go on elsewhere, from what their logs say."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Literal
from uuid import UUID

import structlog

from executor.log.stored import OwnershipLostError
from executor.store.database import RETRY, BusyError, Connection, Database, outages
from executor.store.statements import statement

Outcome = Literal["ended", "parked", "handed_over", "broke"]
"""What became of a job that was run: it has ended; or waits for a human and stands in no queue; or goes on elsewhere;
or could not be run, and must be tried again."""

log = structlog.get_logger(__name__)


class HandOver:
    """Whether a worker process is about to end, for all jobs that it runs. Said once."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._until = 0.0

    @property
    def begun(self) -> bool:
        """Whether it was said."""
        return self._begun.is_set()

    @property
    def left(self) -> float:
        """Seconds that calls under way may still take."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def begin(self, grace: float) -> None:
        """Jobs begin nothing new from here on; calls that are under way may end within so many seconds."""
        self._until = asyncio.get_running_loop().time() + grace
        self._begun.set()

    async def told(self) -> None:
        """Returns when it has begun."""
        await self._begun.wait()


async def let_go(
    database: Database, job_id: str, owner: UUID, *, waits: bool, seconds: float | None, letters: Collection[int]
) -> bool:
    """The job is nobody's from now on; tried until the database answers. Whether it is parked, which it is where all of
    it `waits` for a human (for `seconds` at most) and no letter came but those, in its log. Raises OwnershipLostError.

    The row is locked first and the letters are looked for afterwards: one that is put at the same time either stands
    there then, or is put when the job is nobody's.
    """
    wait, unsure = RETRY[0], False
    errors = outages()
    while True:
        try:
            async with database.transaction() as connection:
                if await connection.fetchval(statement("log.lock_owned"), job_id, owner) is None:
                    return await _gone(connection, job_id, unsure)
                args = (job_id, owner, waits, seconds, list(letters))
                return bool(await connection.fetchval(statement("log.let_go"), *args))
        except errors as error:
            log.warning("letting_go_failed", job_id=job_id, error=str(error) or type(error).__name__)
            unsure = unsure or not isinstance(error, BusyError)
        await asyncio.sleep(wait)
        wait = min(2 * wait, RETRY[1])


async def _gone(connection: Connection, job_id: str, unsure: bool) -> bool:
    """It is not ours any more. Where the answer to an earlier try was lost, and nobody has it, that was our doing:
    whether it was parked then is not asked, it may just as well be queued."""
    row = await connection.fetchrow(statement("log.owner"), job_id)
    if unsure and row is not None and row["owner"] is None:
        return False
    raise OwnershipLostError(f"{job_id} belongs to another worker")
