"""Event streams under load: very many readers, and readers that don't read."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from executor.log.stored import Ending, StoredLog
from executor.store.database import Database
from tests.integration.test_stored_log import writing
from tests.support import sse
from tests.support.command import PATIENCE
from tests.support.event_server import ROOT, Process, started
from tests.support.service import running

READERS = 1_000
MEGABYTE = 1_000_000


@pytest.fixture
def server(database_url: str) -> Iterator[Process]:
    with started((database_url, "")) as (server,):
        yield server


@asynccontextmanager
async def readers(server: Process, count: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of readers of the job j1, all of them connected."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.event_readers", server.url, "j1", str(count),
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def finish(log: StoredLog) -> None:
    log.append("done", {"status": "completed"})
    await log.end(Ending("completed", {}))


async def whole(server: Process) -> list[sse.Sent]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        return await sse.read(http, "j1")


@pytest.mark.heavy
@pytest.mark.timeout(300)
async def test_a_thousand_readers_get_the_whole_history(database: Database, server: Process) -> None:
    """While it is written faster than they can take it, and after the end; most of it is out of the ring by then."""
    before = server.resident()
    async with writing(database) as log, readers(server, READERS) as process:
        for number in range(300):
            log.append("step", {"type": "thinking", "number": number, "reasoning": "x" * 200})
            if number % 5 == 0:
                await log.barrier()
                await asyncio.sleep(0.02)
        for number in range(1_500):
            log.append("step", {"type": "thinking", "number": number, "reasoning": "x" * 200})
        await finish(log)
        assert process.stdout is not None
        got = json.loads(await process.stdout.read())["got"]
    events = await whole(server)
    assert [event.id for event in events] == list(range(1, 1_802))
    assert list(got.values()) == [READERS]  # all the same bytes
    assert next(iter(got)).startswith("1801 1801 ")
    async with readers(server, READERS) as process:
        assert process.stdout is not None
        assert json.loads(await process.stdout.read())["got"] == got
    assert server.resident() - before < 300 * MEGABYTE


def stuck(port: int) -> socket.socket:
    """A connection whose client asks for the events and never reads them."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET /v1/jobs/j1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


def rest_of(client: socket.socket) -> list[sse.Sent]:
    """What a client that was stuck finds when it reads on, until the server's end of the connection."""
    client.settimeout(30)
    data = b""
    while more := client.recv(1 << 20):
        data += more
    _, _, body = data.partition(b"\r\n\r\n")
    whole, parser = b"", sse.Parser()
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return list(parser.feed(whole))


@pytest.mark.heavy
@pytest.mark.timeout(300)
async def test_readers_that_stop_reading_cost_no_memory_and_delay_nobody(database: Database, server: Process) -> None:
    """The collected case ex-slow-sse-client."""
    async with writing(database) as log, httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        log.append("step", {"number": 0})
        await log.barrier()
        clients = [stuck(server.port) for _ in range(20)]
        late: list[float] = []
        async with http.stream("GET", "/v1/jobs/j1/events") as response:
            events = sse.sent(response.aiter_raw())
            assert (await anext(events)).id == 1
            before = server.resident()
            for number in range(1, 1_001):  # 100 MB in all
                log.append("step", {"number": number, "reasoning": "x" * 100_000})
                began = time.monotonic()
                await log.barrier()
                assert (await anext(events)).data["number"] == number
                late.append(time.monotonic() - began)
                assert number % 100 or server.resident() - before < 60 * MEGABYTE
            await finish(log)
            assert (await anext(events)).channel == "done"
        assert sorted(late)[len(late) // 2] < 0.25
        for client in clients[:3]:
            with client:
                got = await asyncio.to_thread(rest_of, client)
            assert [event.id for event in got] == list(range(1, len(got) + 1)), "whole events, from the first on"
            assert len(got) < 1_000, "it was dropped"
            rest = await sse.read(http, "j1", got[-1].id)
            assert [event.id for event in got + rest] == list(range(1, 1_003))
        for client in clients:
            client.close()


async def test_a_reader_that_takes_nothing_is_dropped_and_can_resume(database: Database) -> None:
    async with running(database.dsn) as service, writing(database) as log, asyncio.timeout(PATIENCE):
        port = int(service.url.rpartition(":")[2])
        log.append("step", {"number": 0})
        await log.barrier()
        with stuck(port) as client:
            while not service.app.state.hub.readers():
                await asyncio.sleep(0.01)
            while service.app.state.hub.readers():
                log.append("step", {"number": log.seq, "reasoning": "x" * 100_000})
                await log.barrier()
                await asyncio.sleep(0.02)
            got = await asyncio.to_thread(rest_of, client)
        await finish(log)
        assert 0 < len(got) < log.seq - 1
        rest = await sse.read(service.http, "j1", got[-1].id)
        assert [event.id for event in got + rest] == list(range(1, log.seq + 1))
