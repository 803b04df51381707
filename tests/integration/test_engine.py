"""The queue on a real database: every job is handled, whatever becomes of handlers, workers and connections."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from executor.store.database import Database
from executor.store.jobs import JobStore, NewJob
from executor.store.queue import enqueue, prune, reconcile
from executor.workers.engine import Engine, Handle
from executor.workers.handover import Outcome
from tests.support.command import PATIENCE
from tests.support.processes import until


async def created(database: Database, count: int = 1) -> list[str]:
    return [(await JobStore(database).create("", NewJob(f"goal {number}")))[0]["id"] for number in range(count)]


async def sql(database: Database, text: str, *args: Any) -> Any:
    async with database.connection() as connection:
        return await connection.fetch(text, *args)


async def queue(database: Database) -> dict[str, str]:
    """What stands in the queue: each job's status there."""
    return {row["dedupe_key"]: row["status"] for row in await sql(database, "select dedupe_key, status from pgqueuer")}


async def end(database: Database, job_id: str) -> None:
    await sql(database, "update dw_jobs set status = 'completed', ended_at = now(), owner = null where id = $1", job_id)


@asynccontextmanager
async def running(
    database: Database, handle: Handle, slots: int = 4, grace: float = 0.1, **timing: float
) -> AsyncIterator[Engine]:
    engine = Engine(database, **{"heartbeat": 1.0, "poll": 0.5, **timing})
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(engine.run(handle, slots))
        try:
            yield engine
        finally:
            engine.stop(grace)


class Handled:
    """A handler that ends jobs, and keeps their names in order."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.names: list[str] = []

    async def __call__(self, job_id: str) -> None:
        self.names.append(job_id)
        await end(self.database, job_id)

    def have(self, ids: Iterable[str]) -> Callable[[], bool]:
        return lambda: set(ids) <= set(self.names)


async def test_each_job_is_handled_once_and_leaves_the_queue(database: Database) -> None:
    before = await created(database, 7)
    handled = Handled(database)
    async with running(database, handled):
        await until(handled.have(before))
        later = await created(database, 5)  # a notification tells of them
        await until(handled.have(later))
        await until(lambda: emptied(database))
    assert sorted(handled.names) == sorted([*before, *later])


async def emptied(database: Database) -> bool:
    return await queue(database) == {}


async def test_no_more_than_the_slots_run_at_once_and_two_engines_share(database: Database) -> None:
    ids = await created(database, 12)
    most, gate = 0, asyncio.Event()
    at_work: dict[str, set[str]] = {"a": set(), "b": set()}

    def handler(name: str) -> Callable[[str], Awaitable[None]]:
        async def handle(job_id: str) -> None:
            nonlocal most
            at_work[name].add(job_id)
            most = max(most, len(at_work[name]))
            await gate.wait()
            at_work[name].discard(job_id)
            await end(database, job_id)

        return handle

    async with running(database, handler("a"), slots=3), running(database, handler("b"), slots=3):
        await until(lambda: len(at_work["a"]) == len(at_work["b"]) == 3)
        assert not at_work["a"] & at_work["b"]
        gate.set()
        await until(lambda: emptied(database))
    assert most == 3
    rows = await sql(database, "select id from dw_jobs where ended_at is not null")
    assert {row["id"] for row in rows} == set(ids)


async def test_a_handler_that_raises_loses_nothing_and_stops_nothing(database: Database) -> None:
    (broken, fine) = await created(database, 2)
    handled = Handled(database)

    async def handle(job_id: str) -> None:
        if job_id == broken:
            await sql(database, "update dw_jobs set owner = $2 where id = $1", job_id, uuid4())
            raise RuntimeError("nobody foresaw this")
        await handled(job_id)

    async with running(database, handle):
        await until(handled.have([fine]))
        await until(lambda: emptied(database))
    assert await reconcile(database) == 1
    assert await queue(database) == {broken: "queued"}
    async with running(database, handled):
        await until(handled.have([broken]))


async def test_reconciliation_enqueues_only_what_has_not_ended_and_does_not_wait(database: Database) -> None:
    lost, ended, waiting, failed, queued = await created(database, 5)
    await end(database, ended)
    await sql(database, "update dw_jobs set status = 'needs_decision' where id = $1", waiting)
    await sql(database, "update pgqueuer set status = 'failed' where dedupe_key = $1", failed)
    await sql(database, "delete from pgqueuer where dedupe_key = any ($1)", [lost, ended, waiting])
    (orphan,) = await created(database, 1)  # it waits for a human, and its worker died so that its row went, too
    await sql(database, "update dw_jobs set status = 'needs_decision', owner = $2 where id = $1", orphan, uuid4())
    await sql(database, "delete from pgqueuer where dedupe_key = $1", orphan)
    assert await reconcile(database) == 3
    rows = await sql(database, "select dedupe_key from pgqueuer where status = 'queued'")
    assert sorted(row["dedupe_key"] for row in rows) == sorted([lost, failed, queued, orphan])
    assert await reconcile(database) == 0


async def test_stop_lets_jobs_end_within_the_grace_and_hands_the_others_over(database: Database) -> None:
    quick, slow = await created(database, 2)
    begun, handled = set[str](), Handled(database)

    async def handle(job_id: str) -> None:
        begun.add(job_id)
        if job_id == slow:
            await asyncio.Event().wait()
        await asyncio.sleep(0.3)
        await handled(job_id)

    async with running(database, handle, grace=2.0):
        await until(lambda: begun == {quick, slow})
    assert handled.names == [quick]
    assert await queue(database) == {slow: "queued"}
    async with running(database, handled):  # at once, no heartbeat has to be missed
        await until(handled.have([slow]))


async def test_jobs_are_told_of_the_stop_and_hand_themselves_over(database: Database) -> None:
    (job_id,) = await created(database)
    begun = asyncio.Event()

    async with running(database, lambda job_id: waits_for_the_end(engine, begun), grace=60.0) as engine:
        await begun.wait()
    assert await queue(database) == {job_id: "queued"}


async def waits_for_the_end(engine: Engine, begun: asyncio.Event) -> Outcome:
    begun.set()
    await engine.handover.told()
    return "handed_over"


async def test_a_job_that_could_not_be_run_is_tried_again(database: Database) -> None:
    await created(database)
    times = 0

    async def handle(job_id: str) -> Outcome:
        nonlocal times
        times += 1
        if times < 3:
            return "broke"
        await end(database, job_id)
        return "ended"

    async with running(database, handle):
        await until(lambda: times == 3)
        await until(lambda: emptied(database))


async def test_a_job_whose_wait_is_over_soon_is_queued_in_time(database: Database) -> None:
    """Long before the next look for jobs without a row."""
    await created(database)
    times = 0

    async def handle(job_id: str) -> Outcome:
        nonlocal times
        times += 1
        if times == 2:
            await end(database, job_id)
            return "ended"
        await sql(
            database,
            "update dw_jobs set status = 'needs_decision', owner = null, wake_at = now() + interval '1 second' "
            "where id = $1",
            job_id,
        )
        return "parked"

    began = time.monotonic()
    async with running(database, handle):
        await until(lambda: times == 2)
        await until(lambda: emptied(database))
    assert 1 <= time.monotonic() - began < 25


async def test_a_wait_that_another_worker_left_behind_is_ended_in_time(database: Database) -> None:
    (job_id,) = await created(database)
    await sql(database, "delete from pgqueuer")
    await sql(database, "update dw_jobs set status = 'needs_decision', wake_at = now() + interval '1.5 seconds'")
    handled, began = Handled(database), time.monotonic()
    async with running(database, handled):
        await until(handled.have([job_id]))
    assert time.monotonic() - began < 25


async def test_a_busy_loop_loses_no_job(database: Database, database_url: str) -> None:
    """The loop stands still for more than half of the time after which a worker counts as dead, over and over, while
    another worker, of another thread, looks for jobs of dead ones."""
    await created(database)
    heartbeat, taken, begun, over = 4.0, list[str](), threading.Event(), threading.Event()

    async def handle(job_id: str) -> None:
        begun.set()
        for _ in range(8):
            time.sleep(0.6 * heartbeat)  # noqa: ASYNC251 - that is what is tried
            await asyncio.sleep(0.2)
        await end(database, job_id)

    async def look() -> None:
        async def steal(job_id: str) -> None:
            taken.append(job_id)

        async with Database.open(database_url, size=2) as other, running(other, steal, heartbeat=heartbeat):
            while not over.is_set():
                await asyncio.sleep(0.05)

    async with running(database, handle, heartbeat=heartbeat):
        await until(begun.is_set)
        looking = asyncio.create_task(asyncio.to_thread(asyncio.run, look()))
        await until(lambda: emptied(database))
        over.set()
        await looking
    assert taken == []


async def test_the_account_of_what_was_done_does_not_grow_for_ever(database: Database) -> None:
    async with running(database, Handled(database)):
        await created(database, 3)
        await until(lambda: emptied(database))
        await sql(database, "update pgqueuer_log set created = now() - interval '2 days'")
        await created(database, 2)
        await until(lambda: emptied(database))
    rows = await sql(database, "select id from pgqueuer_log where created > now() - interval '1 day'")
    assert len(rows) == 2 * 3  # queued, picked, done
    assert len(await sql(database, "select id from pgqueuer_log")) == 5 * 3
    await prune(database)
    assert await sql(database, "select id from pgqueuer_log") == rows


async def test_a_row_whose_worker_died_is_given_to_another(database: Database) -> None:
    (job_id,) = await created(database)
    await sql(
        database,
        "update pgqueuer set status = 'picked', queue_manager_id = $1, heartbeat = now() - interval '10 s'",
        uuid4(),
    )
    handled = Handled(database)
    async with running(database, handled):
        await until(handled.have([job_id]))


async def test_a_job_that_is_woken_while_its_row_goes_is_run_again(database: Database) -> None:
    await created(database)
    times = 0

    async def handle(job_id: str) -> None:
        nonlocal times
        times += 1
        if times == 2:
            await end(database, job_id)
            return
        await sql(database, "update dw_jobs set status = 'needs_decision', owner = null where id = $1", job_id)
        async with database.transaction() as connection:  # the decision comes: the row is still there
            await connection.execute("update dw_jobs set status = 'queued' where id = $1", job_id)
            await enqueue(connection, [job_id])

    async with running(database, handle):
        await until(lambda: times == 2)
        await until(lambda: emptied(database))
    assert times == 2


async def test_a_job_that_waits_for_a_decision_has_no_row(database: Database) -> None:
    await created(database)
    handled = 0

    async def handle(job_id: str) -> None:
        nonlocal handled
        handled += 1
        await sql(database, "update dw_jobs set status = 'needs_decision', owner = null where id = $1", job_id)

    async with running(database, handle):
        await until(lambda: emptied(database))
        await asyncio.sleep(0.5)
    assert await emptied(database)
    assert handled == 1


async def test_lost_connections_end_no_job_and_later_jobs_are_run(database: Database, database_url: str) -> None:
    (job_id,) = await created(database)
    gate, begun, handled = asyncio.Event(), asyncio.Event(), Handled(database)

    async def handle(job_id: str) -> None:
        begun.set()
        await gate.wait()
        await handled(job_id)

    async with running(database, handle, poll=30.0):
        await begun.wait()
        async with Database.open(database_url, size=1) as other:
            killed = await sql(
                other,
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()",
            )
            assert len(killed) >= 2
            gate.set()
            (later,) = await created(other)
            await until(handled.have([job_id, later]))
        (last,) = await created(database)  # notifications come again: it is not found by a look at the queue
        await until(handled.have([last]))
