"""Keys under load, and what becomes of requests under way when their key is revoked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from executor.store.database import Database
from executor.store.keys import Key, KeyStore
from tests.support import sse
from tests.support.service import Service, running

BOUND = 10.0
"""Seconds within which a request ends when its key is revoked, however its server comes to know."""

Revoke = Callable[[str, Key], Awaitable[None]]


async def as_told(dsn: str, key: Key) -> None:
    """As the command revokes it, over a connection of its own."""
    async with Database.open(dsn, size=1) as database:
        await KeyStore(database).revoke(key.id)


async def untold(dsn: str, key: Key) -> None:
    """Nobody is notified."""
    async with Database.open(dsn, size=1) as database, database.connection() as connection:
        await connection.execute("update dw_keys set revoked_at = now() where id = $1", key.id)


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as found:
        yield found


async def bound(wait: Awaitable[Any]) -> Any:
    async with asyncio.timeout(BOUND):
        return await wait


@asynccontextmanager
async def following(client: Any, job: str) -> AsyncIterator[Callable[[], Awaitable[list[sse.Sent]]]]:
    """An event stream that has begun; what is called reads the rest of it."""
    async with client.stream("GET", f"/v1/jobs/{job}/events") as response:
        assert response.status_code == 200
        chunks = response.aiter_raw()
        await anext(chunks)

        async def rest() -> list[sse.Sent]:
            return [event async for event in sse.sent(chunks)]

        yield rest


@pytest.mark.parametrize("revoke", [as_told, untold])
async def test_a_revoked_key_ends_streams_and_waits(service: Service, database_url: str, revoke: Revoke) -> None:
    keys = KeyStore(service.database)
    (mine, secret), (_, other_secret) = await keys.create("mine"), await keys.create("other")
    async with service.client(secret) as client, service.client(other_secret) as other:
        job = (await client.post("/v1/jobs", json={"goal": "g"})).json()["id"]
        others = (await other.post("/v1/jobs", json={"goal": "g"})).json()["id"]
        wait = asyncio.create_task(client.post("/v1/jobs?wait=60", json={"goal": "g"}))
        plan = asyncio.create_task(client.post("/v1/plans?wait=60", json={"goal": "g"}))
        async with following(client, job) as rest, following(other, others) as others_rest:
            while service.app.state.hub.readers() < 4:
                await asyncio.sleep(0.01)
            await revoke(database_url, mine)
            (last,) = await bound(rest())
            assert (last.channel, last.id, last.data) == ("bye", None, {"reason": "unauthorized"})
            for response in (await bound(wait), await bound(plan)):
                assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
            assert (await client.get("/v1/jobs")).status_code == 401
            still = asyncio.create_task(others_rest())
            await asyncio.sleep(0.2)
            assert not still.done()
            await other.post(f"/v1/jobs/{others}/cancel")
            assert (await bound(still))[-1].channel == "done"
    row = await service.jobs.get(mine.id, job)
    assert row is not None
    assert row["ended_at"] is None  # the job itself goes on
    while service.app.state.watch._going:
        await asyncio.sleep(0.01)


async def test_a_revoked_key_ends_its_chat_and_the_job_that_nobody_will_read(
    service: Service, database_url: str
) -> None:
    mine, secret = await KeyStore(service.database).create("mine")
    ask = {"model": "dagwright", "messages": [{"role": "user", "content": "g"}]}
    async with service.client(secret) as client:
        plain = asyncio.create_task(client.post("/v1/chat/completions", json=ask))
        async with client.stream("POST", "/v1/chat/completions", json={**ask, "stream": True}) as response:
            chunks = response.aiter_raw()
            await anext(chunks)
            while service.app.state.hub.readers() < 2:
                await asyncio.sleep(0.01)
            await as_told(database_url, mine)
            rest = b"".join([chunk async for chunk in chunks])
        last = json.loads(rest.removeprefix(b"data: "))
        assert last["error"]["type"] == "authentication_error"
        answered = await bound(plain)
        assert (answered.status_code, answered.json()["error"]["code"]) == (401, "unauthorized")
    rows, _ = await service.jobs.page(mine.id, limit=10)
    async with asyncio.timeout(BOUND):
        while [row["status"] for row in rows] != ["cancelled", "cancelled"]:
            await asyncio.sleep(0.05)
            rows, _ = await service.jobs.page(mine.id, limit=10)


async def test_the_end_of_a_session_ends_its_streams(service: Service) -> None:
    _, secret = await KeyStore(service.database).create("mine")
    async with service.client() as browser, service.client(secret) as client:
        job = (await client.post("/v1/jobs", json={"goal": "g"})).json()["id"]
        assert (await browser.post("/v1/session", headers={"x-api-key": secret})).status_code == 200
        async with following(browser, job) as rest, following(client, job) as others_rest:
            assert (await browser.delete("/v1/session")).status_code == 204
            assert [event.channel for event in await bound(rest())] == ["bye"]
            await client.post(f"/v1/jobs/{job}/cancel")
            assert [event.channel for event in await bound(others_rest())] == ["done"]


async def test_the_first_key_ends_what_needed_none(service: Service, database_url: str) -> None:
    job = (await service.http.post("/v1/jobs", json={"goal": "g"})).json()["id"]
    async with following(service.http, job) as rest:
        async with Database.open(database_url, size=1) as database:
            await KeyStore(database).create("mine")
        assert [event.channel for event in await bound(rest())] == ["bye"]
    assert (await service.http.get("/v1/jobs")).status_code == 401


async def test_results_that_are_cut_off_don_t_look_whole(service: Service, database_url: str) -> None:
    """More than the buffers of a connection hold, to a client that stops reading."""
    mine, secret = await KeyStore(service.database).create("mine")
    lines = "".join(json.dumps({"custom_id": f"c{n}", "goal": "g", "wrong": "x" * 400}) + "\n" for n in range(20_000))
    lines += json.dumps({"custom_id": "good", "goal": "g"})
    headers = {"content-type": "application/jsonl"}
    async with service.client(secret) as client:
        batch = await client.post("/v1/batches?mode=plan", content=lines, headers=headers, timeout=120)
        assert batch.status_code == 202, batch.text
        async with client.stream("GET", f"/v1/batches/{batch.json()['id']}/results") as response:
            chunks = response.aiter_raw()
            await anext(chunks)
            await as_told(database_url, mine)
            while service.app.state.watch._going:
                await asyncio.sleep(0.01)
            with pytest.raises(httpx2.RemoteProtocolError):
                b"".join([chunk async for chunk in chunks])


async def test_authentication_is_never_busy(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five connections, two thousand requests at once with fifty keys: a few look-ups serve them all."""
    asked = 0
    valid = KeyStore.valid

    async def counted(self: KeyStore, proofs: Any) -> Any:
        nonlocal asked
        asked += 1
        return await valid(self, proofs)

    async with running(database_url, size=5) as service:
        keys = KeyStore(service.database)
        secrets = [(await keys.create(f"key {number}"))[1] for number in range(50)]
        monkeypatch.setattr(KeyStore, "valid", counted)
        async with service.client() as client:
            paths = ["/v1/session", "/v1/tools"]  # which ask the database for nothing else
            told = await asyncio.gather(
                *(
                    client.get(paths[number % 2], headers={"x-api-key": secrets[number % 50]}, timeout=60)
                    for number in range(2_000)
                )
            )
    assert {response.status_code for response in told} == {200}
    assert asked < 200


async def test_who_asks_goes_before_all_who_wait(database_url: str) -> None:
    order: list[str] = []

    async def ask(name: str, what: Awaitable[Any]) -> None:
        await what
        order.append(name)

    async with Database.open(database_url, size=1) as database, asyncio.TaskGroup() as group, database.connection():
        for name in ("first", "second"):
            group.create_task(ask(name, database.rows("jobs.unqueued", 0.0)))
        await asyncio.sleep(0.05)
        group.create_task(ask("who asks", KeyStore(database).valid([])))
        await asyncio.sleep(0.05)
        assert order == []
    assert order == ["who asks", "first", "second"]
