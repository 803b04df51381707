"""The log in PostgreSQL: one statement a barrier, in order, by its owner only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from executor.log.stored import Ending, OwnershipLostError, StoredLog
from executor.store.database import Database


async def new_job(database: Database, job: str, owner: UUID) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "insert into dw_jobs (id, tenant, goal, mode, request, owner, status) "
            "values ($1, '', 'g', 'dag', '{}'::jsonb, $2, 'running')",
            job,
            owner,
        )


@asynccontextmanager
async def writing(database: Database, job: str = "j1", **options: Any) -> AsyncIterator[StoredLog]:
    owner = uuid4()
    await new_job(database, job, owner)
    log = StoredLog(job, database, owner, **options)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(log.serve())
        try:
            yield log
        finally:
            task.cancel()


async def stored(database: Database, job: str = "j1") -> list[Any]:
    return [dict(row) for row in await database.rows("log.read_events", job, 0, True, 10_000)]


async def test_what_was_appended_before_a_barrier_is_stored_after_it(database: Database) -> None:
    async with writing(database) as log:
        log.append("phase", {"phase": "planning"})
        log.append("turn", {"role": "planner", "text": "nul \x00, half \ud800, nan", "n": float("nan")})
        await log.barrier()
        rows = await stored(database)
        assert [(row["seq"], row["channel"]) for row in rows] == [(1, "phase"), (2, "turn")]
        assert rows[1]["payload"]["n"] is None
        public = await database.rows("log.read_events", "j1", 0, False, 10)
        assert [row["channel"] for row in public] == ["phase"]


async def test_what_is_to_be_stored_is_written_at_once_though_nobody_waits(database: Database) -> None:
    async with writing(database) as log:
        log.append("call", {"status": "end", "key": "k"})
        log.store()
        async with asyncio.timeout(5):
            while not await stored(database):
                await asyncio.sleep(0.001)
        log.store()  # nothing is left to be written
        log.append("phase", {"phase": "planning"})
        await log.barrier()
        assert [row["channel"] for row in await stored(database)] == ["call", "phase"]


async def test_readers_are_notified_once_there_was_one(database: Database) -> None:
    heard: list[str] = []
    async with writing(database) as log, database.listening(["dw_events"], lambda _, job: heard.append(job), list):
        log.append("phase", {"phase": "planning"})
        await log.barrier()
        await database.rows("events.watch", "j1")
        log.append("phase", {"phase": "executing"})
        await log.barrier()
        async with asyncio.timeout(5):
            while not heard:
                await asyncio.sleep(0.001)
        assert heard == ["j1"]
        log.append("phase", {"phase": "analyzing"})
        await log.barrier()
        async with asyncio.timeout(5):
            while len(heard) < 2:
                await asyncio.sleep(0.001)


async def test_barriers_at_once_share_statements(database: Database) -> None:
    async with writing(database) as log:
        statements = 0
        append = log._append

        async def counted(*args: Any) -> Any:
            nonlocal statements
            statements += 1
            return await append(*args)

        log._append = counted  # type: ignore[method-assign]

        async def one(number: int) -> None:
            log.append("note", {"n": number})
            await log.barrier()

        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(one(number))
        assert statements <= 3
        assert len(await stored(database)) == 50


async def test_a_cancelled_barrier_leaves_the_log_whole(database: Database) -> None:
    async with writing(database) as log:
        for number in range(20):
            log.append("note", {"n": number})
            task = asyncio.create_task(log.barrier())
            await asyncio.sleep(0.001 * (number % 3))
            task.cancel()
        log.append("note", {"n": 20})
        await log.barrier()
        assert [row["payload"]["n"] for row in await stored(database)] == list(range(21))


async def test_one_who_lost_the_job_writes_nothing(database: Database) -> None:
    owner = uuid4()
    await new_job(database, "j1", owner)
    log = StoredLog("j1", database, owner)
    task = asyncio.create_task(log.serve())
    log.append("note", {"n": 1})
    await log.barrier()
    async with database.connection() as connection:
        await connection.execute("update dw_jobs set owner = $1", uuid4())
    log.append("note", {"n": 2})
    with pytest.raises(OwnershipLostError):
        await log.barrier()
    with pytest.raises(OwnershipLostError):
        await task
    assert len(await stored(database)) == 1


async def test_the_end_is_in_the_same_statement_as_the_last_event(database: Database) -> None:
    async with writing(database) as log:
        log.append("done", {"status": "completed"})
        await log.end(Ending("completed", {"id": "j1"}))
        row = await database.row("jobs.get", "j1", "")
        assert row is not None
        assert (row["status"], row["summary"], row["seq"], row["owner"]) == ("completed", {"id": "j1"}, 1, None)
        assert row["ended_at"] is not None


async def test_a_broken_connection_loses_and_doubles_nothing(database: Database) -> None:
    async with writing(database) as log:
        killer = await asyncpg.connect(database.dsn)
        for number in range(30):
            log.append("note", {"n": number})
            if number % 7 == 3:
                await killer.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = current_database() and pid <> pg_backend_pid()"
                )
            await log.barrier()
        await killer.close()
        rows = await stored(database)
        assert [(row["seq"], row["payload"]["n"]) for row in rows] == [(n + 1, n) for n in range(30)]


async def test_pieces_go_out_at_once_and_fit_the_stored_ones(database: Database) -> None:
    pieces: list[tuple[int, int, str]] = []
    async with writing(database, live=lambda job, part, offset, text: pieces.append((part, offset, text))) as log:
        log.append("answer", {"status": "start"})
        for word in ("void ", "text"):
            log.append("answer", {"status": "delta", "content": word})
        log.append("answer", {"status": "reset"})
        for word in ("the ", "whole ", "answer"):
            log.append("answer", {"status": "delta", "content": word})
        log.append("answer", {"status": "done"})
        await log.barrier()
        rows = [row["payload"] for row in await stored(database) if row["payload"]["status"] == "delta"]
    told = ["", ""]
    for part, offset, text in pieces:
        assert offset == len(told[part])
        told[part] += text
    kept = ["", ""]
    for payload in rows:
        assert payload["offset"] == len(kept[payload["part"]])
        kept[payload["part"]] += payload["content"]
    assert told == kept == ["void text", "the whole answer"]


async def test_letters_and_cancels_are_heard_with_a_statement(database: Database) -> None:
    heard: list[bool] = []
    async with writing(database, heard=heard.append) as log:
        await database.row("jobs.put_letter", "j1", "", "message", {"text": "also this"})
        log.append("note", {})
        await log.barrier()
        assert heard == [False]
        letters = await database.rows("log.take_letters", "j1", log._owner, [])
        assert [letter["payload"] for letter in letters] == [{"text": "also this"}]
        await database.row("jobs.cancel", "j1", "")
        log.append("note", {})
        await log.barrier()
        assert heard == [False, True]


async def test_events_without_a_barrier_are_written_too(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.log.stored.LATEST", 0.05)
    async with writing(database) as log:
        log.append("phase", {"phase": "planning"})
        async with asyncio.timeout(5):
            while not await stored(database):
                await asyncio.sleep(0.02)
