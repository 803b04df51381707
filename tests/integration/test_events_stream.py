"""A job's event stream over real HTTP, from real server processes with one real PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.log.stored import Ending, StoredLog
from executor.service import hub as hub_module
from executor.store.database import Database
from executor.store.jobs import JobStore, NewJob
from executor.workers.live import LiveSender
from tests.integration.test_stored_log import new_job, stored, writing
from tests.support import postgres, sse
from tests.support.command import PATIENCE
from tests.support.event_server import Process, start, started
from tests.support.service import running

numbers = count(1)


@pytest.fixture(scope="module")
def place(postgres_server: tuple[str, str]) -> Iterator[tuple[str, list[Process]]]:
    """A database's DSN, and two servers of it."""
    dsn = asyncio.run(postgres.fresh(*postgres_server))
    with started((dsn, ""), (dsn, "")) as servers:
        yield dsn, servers
    asyncio.run(postgres.dropped(postgres_server[0], dsn))


@pytest.fixture
async def database(place: tuple[str, list[Process]]) -> AsyncIterator[Database]:
    async with Database.open(place[0]) as opened:
        yield opened


@pytest.fixture
def servers(place: tuple[str, list[Process]]) -> list[Process]:
    return place[1]


@pytest.fixture
def job() -> str:
    """The id of a job that nobody else has."""
    return f"job_{next(numbers)}"


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        yield client


def say(log: StoredLog, number: int) -> None:
    """Some event, also of those that readers don't get."""
    if number % 4 == 3:
        log.append("turn", {"role": "agent", "number": number})
    elif number % 4 == 2:
        log.append("answer", {"status": "delta", "content": f"word {number} "})
    else:
        log.append("step", {"type": "thinking", "number": number}, step_id=f"s{number % 3}")


async def finish(log: StoredLog) -> None:
    log.append("done", {"status": "completed", "answer": "the answer"})
    await log.end(Ending("completed", {"id": log.job_id}))


async def history(database: Database, job: str) -> list[sse.Sent]:
    """What readers are to get, out of the database."""
    rows = await database.rows("log.read_events", job, 0, False, 10_000)
    return [
        sse.Sent(
            row["seq"],
            row["channel"],
            {"seq": row["seq"], "ts": row["ts"]}
            | ({} if row["step_id"] is None else {"step_id": row["step_id"]})
            | row["payload"],
        )
        for row in rows
    ]


@asynccontextmanager
async def following(
    http: httpx2.AsyncClient, server: Process, job: str, last: int | None = None
) -> AsyncIterator[AsyncIterator[sse.Sent]]:
    """The events of a job, as they come."""
    headers = {} if last is None else {"last-event-id": str(last)}
    async with http.stream("GET", f"{server.url}/v1/jobs/{job}/events", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async with aclosing(response.aiter_raw()) as chunks, aclosing(sse.sent(chunks)) as events:
            yield events


def last_of(events: list[sse.Sent]) -> int | None:
    return events[-1].id if events else None


async def take(
    http: httpx2.AsyncClient, server: Process, job: str, last: int | None, most: int | None = None
) -> list[sse.Sent]:
    """The stored events after `last`: so many, or all until the stream ends; then the connection is dropped."""
    found: list[sse.Sent] = []
    async with asyncio.timeout(PATIENCE), following(http, server, job, last) as events:
        while len(found) != most:
            event = await anext(events, None)
            if event is None:
                return found
            if event.id is not None:
                found.append(event)
    return found


VISITS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 1), st.integers(0, 4), st.booleans()), min_size=1, max_size=10
)


@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
@given(VISITS)
async def test_any_drops_and_any_servers_give_the_history_once_and_in_order(
    database: Database, servers: list[Process], http: httpx2.AsyncClient, visits: list[tuple[int, int, int, bool]]
) -> None:
    job = f"job_{next(numbers)}"
    async with writing(database, job) as log:
        got: list[sse.Sent] = []
        for written, server, wanted, waits in visits:
            for _ in range(written):
                say(log, log.seq)
            if waits:
                await log.barrier()
            behind = len(await history(database, job)) - len(got)
            got += await take(http, servers[server], job, last_of(got), min(wanted, behind))
        await finish(log)
        got += await take(http, servers[visits[0][1]], job, last_of(got))
        assert got == await history(database, job)


async def test_drops_after_every_event_and_restarts_of_servers_lose_nothing(
    database: Database, servers: list[Process], http: httpx2.AsyncClient, job: str
) -> None:
    async with writing(database, job) as log, asyncio.TaskGroup() as group:

        async def work() -> None:
            for number in range(48):
                say(log, number)
                await log.barrier()
                await asyncio.sleep(0.01)
            await finish(log)

        working = group.create_task(work())
        got: list[sse.Sent] = []
        while not got or got[-1].channel != "done":
            turn = len(got)
            if turn % 12 == 11:  # one is stopped or killed while the other one serves
                old = servers[turn // 12 % 2]
                old.kill() if turn % 24 == 23 else await old.stop()
                (servers[turn // 12 % 2],) = await asyncio.to_thread(start, (database.dsn, ""))
            got += await take(http, servers[turn % 2], job, last_of(got), 1)
        await working
    assert got == await history(database, job)
    ids = [event.id or 0 for event in got]
    assert ids == sorted(set(ids))
    assert len(got) > 36


# The collected case ex-sse-headers is among these.
async def test_running_ended_and_unstarted_jobs(
    database: Database, servers: list[Process], http: httpx2.AsyncClient, job: str
) -> None:
    server = servers[0]
    async with writing(database, job) as log:
        say(log, 1)
        say(log, 2)
        await log.barrier()
        async with following(http, server, job) as events:
            assert [(await anext(events)).id, (await anext(events)).id] == [1, 2]
            say(log, 5)
            await log.barrier()
            assert (await anext(events)).id == 3
            await finish(log)
            assert [event.channel async for event in events] == ["done"]
    whole = await history(database, job)
    assert await take(http, server, job, None) == whole
    assert await take(http, server, job, whole[-1].id) == []
    assert await take(http, server, job, 1_000) == []
    response = await http.get(f"{server.url}/v1/jobs/{job}/events?after=3")
    assert list(sse.Parser().feed(response.content)) == whole[3:]
    response = await http.get(f"{server.url}/v1/jobs/{job}/events?after=1", headers={"Last-Event-ID": "2"})
    assert list(sse.Parser().feed(response.content)) == whole[2:]  # a browser that comes back keeps the address
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"

    row, _ = await JobStore(database).create("", NewJob("a goal"))
    async with following(http, server, row["id"]) as events:
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        log = await claimed(database, row["id"])
        async with asyncio.TaskGroup() as group:
            group.create_task(log.serve())
            await finish(log)
        assert (await waiting).channel == "done"
        assert [event async for event in events] == []


async def test_what_can_not_be_followed_is_a_problem(
    database: Database, servers: list[Process], http: httpx2.AsyncClient, job: str
) -> None:
    await new_job(database, job, uuid4())
    async with database.connection() as connection:
        await connection.execute("update dw_jobs set tenant = 'key_other' where id = $1", job)
    cases: list[tuple[str, dict[str, str], int, str]] = [
        (f"{job}/events", {}, 404, "not_found"),
        ("nothing/events", {}, 404, "not_found"),
        (f"{job}/events?after=-1", {}, 422, "validation"),
        (f"{job}/events?after=x", {}, 422, "validation"),
        (f"{job}/events?after=99999999999999999999", {}, 422, "validation"),
        (f"{job}/events", {"Last-Event-ID": "x"}, 422, "validation"),
    ]
    for where, headers, status, code in cases:
        response = await http.get(f"{servers[0].url}/v1/jobs/{where}", headers=headers)
        assert (response.status_code, response.json()["code"]) == (status, code), where
        assert response.headers["content-type"] == "application/problem+json"


async def test_live_text_does_not_wait_for_storage(
    database: Database,
    servers: list[Process],
    http: httpx2.AsyncClient,
    job: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StoredLog, "merge_seconds", 1e6)
    monkeypatch.setattr("executor.log.stored.LATEST", 1e6)
    sender = LiveSender(tmp_path / "live")
    words = ["Void", " text", ".", "The", " whole", " 😀", " answer"]
    with started((database.dsn, tmp_path / "live")) as (server,):
        async with asyncio.TaskGroup() as group, asyncio.timeout(PATIENCE), writing(database, job, live=sender) as log:
            sending = group.create_task(sender.serve())
            log.append("answer", {"status": "start"})
            await log.barrier()
            async with following(http, server, job) as events:
                answer = sse.Answer()
                got = [await anext(events)]
                for word in words:
                    if word == "The":
                        log.append("answer", {"status": "reset"})
                    log.append("answer", {"status": "delta", "content": word})
                    while not answer.text.endswith(word):
                        got.append(await anext(events))
                        answer.take(got[-1])
                assert answer.text == "The whole 😀 answer"
                live = [event for event in got if event.id is None]
                assert [event.data["content"] for event in live] == words
                assert len(await stored(database, job)) == 1  # "start" only: nothing of the text is stored
            # the rest is stored while nobody reads; the client goes on at a server that hears no live pieces
            await finish(log)
            last = last_of([event for event in got if event.id is not None])
            for event in await take(http, servers[0], job, last):
                answer.take(event)
            assert (answer.part, answer.text) == (1, "The whole 😀 answer")
            sending.cancel()
        afresh = sse.Answer()
        for event in await take(http, servers[0], job, None):
            afresh.take(event)
        assert afresh.text == answer.text


async def test_a_listening_connection_that_is_lost_is_not_noticed(
    database: Database, servers: list[Process], http: httpx2.AsyncClient, job: str
) -> None:
    kill = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and query ilike 'listen%'"
    )
    async with writing(database, job) as log, AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        readers = [await stack.enter_async_context(following(http, server, job)) for server in servers]
        killed, got = 0, [list[sse.Sent]() for _ in readers]
        for number in range(12):
            if number % 3 == 1:
                async with database.connection() as connection:
                    killed += await connection.fetchval(kill)
            log.append("step", {"number": number})
            await log.barrier()
            for reader, seen in zip(readers, got, strict=True):
                seen.append(await anext(reader))
        await finish(log)
        for reader, seen in zip(readers, got, strict=True):
            seen.extend([event async for event in reader])
        assert killed >= 4
        assert got == [await history(database, job)] * 2


async def test_a_database_that_is_away_for_a_moment_ends_no_stream(
    database: Database, servers: list[Process], http: httpx2.AsyncClient, job: str
) -> None:
    kill = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()"
    async with writing(database, job) as log, asyncio.timeout(PATIENCE), following(http, servers[0], job) as events:
        for number in range(6):
            async with database.connection() as connection:
                await connection.execute(kill, database.dsn.partition("?")[0].rpartition("/")[2])
            log.append("step", {"number": number})
            await log.barrier()
            assert (await anext(events)).data["number"] == number


async def test_a_stop_gives_streams_a_last_word_and_ends_them(
    database: Database, servers: list[Process], http: httpx2.AsyncClient, job: str
) -> None:
    (server,) = await asyncio.to_thread(start, (database.dsn, ""))
    async with writing(database, job) as log:
        log.append("step", {"number": 1})
        await log.barrier()
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
            readers = [await stack.enter_async_context(following(http, server, job)) for _ in range(20)]
            for reader in readers:
                assert (await anext(reader)).id == 1
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(server.stop())
                for reader in readers:
                    assert [event async for event in reader] == [sse.Sent(None, "bye", {"reason": "server_stopping"})]
            assert time.monotonic() - began < 5, "the grace was waited for"
        await finish(log)
        assert [event.channel for event in await take(http, servers[1], job, 1)] == ["done"]


async def test_silence_is_broken_by_comments_and_a_drop_only_unsubscribes(
    database: Database, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub_module.KEEP_ALIVE == 15
    monkeypatch.setattr(hub_module, "KEEP_ALIVE", 0.05)
    async with running(database.dsn) as service, writing(database, job) as log, asyncio.timeout(PATIENCE):
        parser = sse.Parser()
        async with service.http.stream("GET", f"/v1/jobs/{job}/events") as response:
            async for chunk in response.aiter_raw():
                assert list(parser.feed(chunk)) == []
                if len(parser.comments) == 3:
                    break
        assert set(parser.comments) == {"keep-alive"}
        hub = service.app.state.hub
        while hub.readers():
            await asyncio.sleep(0.01)
        await finish(log)
        assert [event.channel for event in await sse.read(service.http, job)] == ["done"]
        while hub.readers():
            await asyncio.sleep(0.01)


async def claimed(database: Database, job: str) -> StoredLog:
    owner = uuid4()
    assert await database.row("log.claim", job, owner) is not None
    return StoredLog(job, database, owner)
