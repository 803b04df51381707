"""`python -m benchmarks.scale`: what a second worker process brings.

Each worker is limited to 20 jobs at a time, and the jobs spend their time with tools that wait for 500 ms, as real ones
wait for models and networks. Two workers should do at least 1.9 times the jobs per minute of one.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path

from executor.store.database import Database
from executor.store.jobs import JobStore, NewJob
from executor.store.migrate import migrate
from tests.support.chaos import World, until, world
from tests.support.chaos_work import Task, Work

SLOTS = 20
WAIT = 0.5
"""Seconds that each tool call takes."""
CALLS = 8
"""Of a job, one after the other."""
WAVES = 3
"""Times that each slot is used."""
FIGURES = """
select count(*) filter (where status = 'completed') as completed,
    extract(epoch from max(ended_at) - min(started_at)) as seconds
from dw_jobs where id = any ($1::text[])
"""


async def measured(home: Path, workers: int, waves: int = WAVES) -> float:
    """Jobs per minute with so many worker processes, each with SLOTS slots full all the time."""
    async with world(home, 1, jobs_per_worker=SLOTS, pause=WAIT, completion_check_min_tools=0) as here:
        here.model.slow = 0.0
        async with Database.open(here.postgres.dsn) as database:
            await migrate(database)
            await here.start_host(workers=workers)
            await _warm(here, database, workers)
            ids = [await _begun(here, database, number) for number in range(workers * SLOTS * waves)]
            await until(lambda: _ended(here, ids), "they don't end", 300)
            (row,) = await here.sql(FIGURES, ids)
    assert row["completed"] == len(ids), "not all jobs were completed"
    return 60 * len(ids) / float(row["seconds"])


async def _warm(here: World, database: Database, workers: int) -> None:
    """Each worker has worked before: what is loaded at the first job is loaded."""
    ids = [await _begun(here, database, 10_000 + number, calls=2) for number in range(workers * SLOTS)]
    await until(lambda: _ended(here, ids), "they don't warm up", 120)


async def _begun(here: World, database: Database, number: int, calls: int = CALLS) -> str:
    tag = f"J{number}"
    work = Work(tag, "react", {"a": Task("a", tuple((("wait", f"{tag}.a.{call}"),) for call in range(calls)))})
    here.model.works[tag] = work
    job = NewJob(work.goal, "react", request={"answer_mode": "direct"})
    row, _ = await JobStore(database).create("", job)
    return str(row["id"])


async def _ended(here: World, ids: list[str]) -> bool:
    rows = await here.sql("select from dw_jobs where id = any ($1::text[]) and ended_at is null limit 1", ids)
    return not rows


def main() -> None:
    """Prints the figures."""
    rates = {}
    for workers in (1, 2):
        home = Path(tempfile.mkdtemp(prefix="dagwright-scale-"))
        try:
            rates[workers] = asyncio.run(measured(home, workers))
        finally:
            shutil.rmtree(home, ignore_errors=True)
    figures = {f"jobs per minute, {workers} worker(s)": round(rate) for workers, rate in rates.items()}
    print(json.dumps({**figures, "times": round(rates[2] / rates[1], 2), "target": 1.9}, indent=1))


if __name__ == "__main__":
    main()
