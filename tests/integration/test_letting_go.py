"""A job that is let go and a word that comes at the same moment: whatever the order, the word is heard."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from executor.log.stored import OwnershipLostError
from executor.store.database import BusyError, Database
from executor.store.fold import end_cancelled
from executor.store.jobs import JobStore, NewJob
from executor.store.queue import enqueue, reconcile
from executor.store.statements import statement
from executor.workers.handover import let_go
from tests.support.stored_jobs import row_of
from tests.support.workers import queue, sql


async def owned(database: Database) -> tuple[str, UUID]:
    """A job that runs, whose row in the queue has gone: as its worker sees it while it lets it go."""
    row, _ = await JobStore(database).create("", NewJob("goal"))
    owner = uuid4()
    await database.row("log.claim", row["id"], owner)
    await sql(database, "update dw_jobs set seq = 1 where id = $1", row["id"])
    await sql(database, "delete from pgqueuer where dedupe_key = $1", row["id"])
    return str(row["id"]), owner


async def parked(database: Database, job: str, owner: UUID, seconds: float | None = None, letters: Any = ()) -> bool:
    return await let_go(database, job, owner, waits=True, seconds=seconds, letters=letters)


async def test_a_job_that_waits_is_parked_and_queued_by_a_letter(database: Database) -> None:
    job, owner = await owned(database)
    assert await parked(database, job, owner, 60.0)
    row = await row_of(database, job)
    assert (row["status"], row["owner"]) == ("needs_decision", None)
    assert row["wake_at"] is not None
    assert await reconcile(database) == 0
    assert await queue(database) == {}
    assert await JobStore(database).send("", job, "message", {"text": "hello"})
    assert await queue(database) == {job: "queued"}
    row = await database.row("log.claim", job, uuid4())
    assert row is not None
    assert row["wake_at"] is None


async def test_a_letter_that_is_in_no_log_keeps_a_job_from_being_parked(database: Database) -> None:
    job, owner = await owned(database)
    store = JobStore(database)
    await store.send("", job, "message", {"text": "one"})
    await store.send("", job, "message", {"text": "two"})
    first, _ = await database.rows("log.take_letters", job, owner, [])  # taken, and one of them written down
    assert await parked(database, job, owner, letters=[first["id"]]) is False
    assert (await row_of(database, job))["owner"] is None


async def test_a_cancel_keeps_a_job_from_being_parked(database: Database) -> None:
    job, owner = await owned(database)
    await JobStore(database).cancel("", job)
    assert await parked(database, job, owner) is False


async def test_letting_go_waits_for_a_letter_that_is_being_put(database: Database) -> None:
    job, owner = await owned(database)
    async with database.transaction() as connection:
        put = await connection.fetchrow(statement("jobs.put_letter"), job, "", "stop", {})
        assert put is not None
        assert not put["unowned"]
        going = asyncio.create_task(parked(database, job, owner))
        await asyncio.sleep(0.2)
        assert not going.done()
    assert await going is False


async def test_a_letter_waits_for_a_job_that_is_being_let_go(database: Database) -> None:
    job, owner = await owned(database)
    async with database.transaction() as connection:
        await connection.fetchrow(statement("log.lock_owned"), job, owner)
        sending = asyncio.create_task(JobStore(database).send("", job, "stop", {}))
        await asyncio.sleep(0.2)
        assert not sending.done()
        assert await connection.fetchval(statement("log.let_go"), job, owner, True, None, [])
    assert await sending
    assert await queue(database) == {job: "queued"}


async def test_a_cancel_waits_for_a_job_that_is_being_let_go_and_ends_it(database: Database) -> None:
    job, owner = await owned(database)
    async with database.transaction() as connection:
        await connection.fetchrow(statement("log.lock_owned"), job, owner)
        cancelling = asyncio.create_task(JobStore(database).cancel("", job))
        await asyncio.sleep(0.2)
        assert not cancelling.done()
        assert await connection.fetchval(statement("log.let_go"), job, owner, True, None, [])
    row = await cancelling
    assert row is not None
    assert row["owner"] is None
    ended = await end_cancelled(database, job)
    assert ended is not None
    assert ended["status"] == "cancelled"


async def test_many_letters_and_partings_at_once_lose_nothing(database: Database) -> None:
    jobs = [await owned(database) for _ in range(40)]

    async def both(job: str, owner: UUID) -> tuple[str, bool]:
        async with asyncio.TaskGroup() as group:
            going = group.create_task(parked(database, job, owner))
            group.create_task(JobStore(database).send("", job, "message", {"text": "x"}))
        return job, going.result()

    outcomes = dict(await asyncio.gather(*(both(job, owner) for job, owner in jobs)))
    queued = await queue(database)
    assert all(job in queued for job, was_parked in outcomes.items() if was_parked)
    assert len(set(outcomes.values())) == 2  # both orders were seen


async def test_a_wait_that_is_over_wakes_a_job(database: Database) -> None:
    (late, owner), (early, other) = await owned(database), await owned(database)
    assert await parked(database, late, owner, 600.0)
    assert await parked(database, early, other, 0.0)
    assert await reconcile(database) == 1
    assert await queue(database) == {early: "queued"}
    due = await database.row("jobs.next_due")
    assert due is not None
    assert due["seconds"] < 1


async def test_who_owns_a_job_no_more_can_not_let_it_go(database: Database) -> None:
    job, owner = await owned(database)
    with pytest.raises(OwnershipLostError):
        await parked(database, job, uuid4())
    assert (await row_of(database, job))["owner"] == owner


async def test_letting_go_whose_answer_is_lost_is_done(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may take it for a lost ownership: that would end the process."""
    job, owner = await owned(database)
    transaction, lost = Database.transaction, [OSError("gone"), BusyError()]

    class Lossy:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def __aenter__(self) -> Any:
            return await self.inner.__aenter__()

        async def __aexit__(self, *error: Any) -> Any:
            await self.inner.__aexit__(*error)
            if lost:
                raise lost.pop(0)

    monkeypatch.setattr(Database, "transaction", lambda self: Lossy(transaction(self)))
    assert await parked(database, job, owner) is False  # that it was parked is not known any more: it is queued
    monkeypatch.undo()
    assert (await row_of(database, job))["owner"] is None
    async with database.transaction() as connection:
        await enqueue(connection, [job])
    assert await queue(database) == {job: "queued"}
