"""A job whose events another version has written, so that this one can't read them: it ends all the same, and says so.
A worker that only broke off would be given it again, for ever."""

from __future__ import annotations

import pytest

from executor.store.database import Database
from tests.support.stored_jobs import Brain, cut, events_of, new_job, ran, workshop

STEP = [{"id": "a", "task": "x", "dependencies": []}]


@pytest.mark.parametrize("which", ["job_started", "plan", "step_progress", "turn"])
@pytest.mark.parametrize(
    ("columns", "status", "code"),
    [
        ("cancel = false", "failed", "internal"),
        ("crashes = 5", "failed", "crashed"),
        ("cancel = true", "cancelled", "cancelled"),
    ],
)
async def test_it_ends(database: Database, which: str, columns: str, status: str, code: str) -> None:
    brain, job = Brain(None, STEP), await new_job(database)
    await ran(database, workshop(brain), job)
    await cut(database, job, len(await events_of(database, job)) - 1)
    async with database.transaction() as connection:
        await connection.execute(f"update dw_jobs set {columns}, claimed_seq = seq where id = $1", job)
        await connection.execute("update dw_events set payload = '{}' where job = $1 and channel = $2", job, which)
    row = await ran(database, workshop(brain), job)
    assert (row["status"], row["owner"], row["summary"]["error_code"]) == (status, None, code)
    events = await events_of(database, job)
    assert (events[-1]["channel"], events[-1]["seq"]) == ("done", row["seq"])
    if status == "failed":
        assert "can't be read by this version" in row["summary"]["error"]
