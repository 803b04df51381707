"""A key's limit of running jobs, where a batch has more items than that: all are taken, few run at once."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

from executor.store.keys import Key, KeyStore, Limits
from executor.store.queue import HELD_AT_ONCE, reconcile, release
from tests.fakes import ProviderFake, brain
from tests.support.service import Service, running
from tests.support.working import models_of, working

LINES = {"content-type": "application/jsonl"}
LIMIT = 3


async def limited(service: Service, limit: int | None = LIMIT) -> tuple[Key, str]:
    return await KeyStore(service.database).create("limited", Limits(running_jobs=limit))


async def sent(client: Any, count: int, name: str = "c") -> dict[str, Any]:
    items = ({"custom_id": f"{name}{number}", "goal": f"goal {number}"} for number in range(count))
    lines = "".join(f"{json.dumps(item)}\n" for item in items)
    reply = await client.post("/v1/batches?mode=plan", content=lines, headers=LINES)
    assert reply.status_code == 202, reply.text
    return dict(reply.json())


async def queued(service: Service) -> list[str]:
    """The lines that stand in the queue, in its order."""
    async with service.database.connection() as connection:
        rows = await connection.fetch(
            "select j.custom_id, j.goal from pgqueuer q join dw_jobs j on j.id = q.dedupe_key "
            "order by q.priority desc, q.id"
        )
    return [row["custom_id"] or row["goal"] for row in rows]


async def done(service: Service, *names: str) -> None:
    """Ends jobs as a worker does; then the queue takes their rows away and queues others."""
    async with service.database.transaction() as connection:
        rows = await connection.fetch(
            "update dw_jobs set status = 'completed', ended_at = now(), summary = '{}', owner = null "
            "where coalesce(custom_id, goal) = any ($1::text[]) returning id",
            list(names),
        )
        ids = [row["id"] for row in rows]
        assert len(ids) == len(names)
    async with service.database.connection() as connection:
        await connection.execute("delete from pgqueuer where dedupe_key = any ($1::text[])", ids)
    async with service.database.transaction() as connection:
        await release(connection, of_jobs=ids)


async def test_as_many_items_are_queued_as_there_is_room_for(database_url: str) -> None:
    async with running(database_url) as service:
        _, secret = await limited(service)
        async with service.client(secret) as client:
            batch = await sent(client, 600)
            assert (batch["counts"]["processing"], batch["counts"]["total"]) == (600, 600)
            assert await queued(service) == ["c0", "c1", "c2"]
            second = await sent(client, 2, "d")  # it waits for the first one
            await reconcile(service.database)
            assert await queued(service) == ["c0", "c1", "c2"]
            await done(service, "c0", "c2")
            assert await queued(service) == ["c1", "c3", "c4"]
            # a single job is not kept waiting, and its place is not given to an item
            assert (await client.post("/v1/jobs", json={"goal": "single"})).status_code == 202
            await done(service, "c1")
            assert await queued(service) == ["single", "c3", "c4"]
            await done(service, "single", "c3")
            assert await queued(service) == ["c4", "c5", "c6"]
            await client.post(f"/v1/batches/{batch['id']}/cancel")
            assert await queued(service) == ["d0", "d1"]
            told = (await client.get(f"/v1/batches/{second['id']}")).json()
            assert told["counts"]["processing"] == 2


async def test_what_waits_for_a_human_takes_no_room(database_url: str) -> None:
    async with running(database_url) as service:
        _, secret = await limited(service)
        async with service.client(secret) as client:
            await sent(client, 5)
            async with service.database.connection() as connection:
                await connection.execute("update dw_jobs set status = 'needs_decision' where custom_id = 'c0'")
                parked = "select id from dw_jobs where custom_id = 'c0'"
                await connection.execute(f"delete from pgqueuer where dedupe_key = ({parked})")
                await release(connection)
            assert await queued(service) == ["c1", "c2", "c3"]


async def test_many_that_end_at_once_leave_no_room_empty_and_give_none_twice(database_url: str) -> None:
    async with running(database_url, size=10) as service:
        _, secret = await limited(service, 20)
        async with service.client(secret) as client:
            await sent(client, 100)
            going = [f"c{number}" for number in range(20)]
            await asyncio.gather(*(done(service, name) for name in going))
            assert sorted(await queued(service)) == sorted(f"c{number}" for number in range(20, 40))


async def test_other_keys_are_not_held_back(database_url: str) -> None:
    async with running(database_url) as service:
        (_, free), (_, poor) = await limited(service, None), await limited(service, 1)
        async with service.client(free) as client, service.client(poor) as other:
            await sent(other, 5)
            await sent(client, 5, "d")
            assert len(await queued(service)) == 6


async def test_the_limit_of_single_jobs_refuses_no_batch(database_url: str) -> None:
    async with running(database_url) as service:
        _, secret = await limited(service, 1)
        async with service.client(secret) as client:
            assert (await client.post("/v1/jobs", json={"goal": "single"})).status_code == 202
            batch = await sent(client, 5)
            assert await queued(service) == ["single"]
            refused = await client.post("/v1/jobs", json={"goal": "one more"})
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_jobs")
            await done(service, "single")
            assert await queued(service) == ["c0"]
            # items are no single jobs: one of those may begin beside them
            assert (await client.post("/v1/jobs", json={"goal": "two"})).status_code == 202
            assert (await client.get(f"/v1/batches/{batch['id']}")).json()["counts"]["processing"] == 5


async def test_once_the_money_is_spent_no_item_begins(database_url: str) -> None:
    async with running(database_url) as service:
        _, secret = await KeyStore(service.database).create("limited", Limits(usd_per_day=Decimal("1.5")))
        async with service.client(secret) as client:
            await sent(client, 250)
            assert len(await queued(service)) == HELD_AT_ONCE
            async with service.database.connection() as connection:
                await connection.execute("update dw_jobs set cost_usd = 0.75 where custom_id in ('c0', 'c1')")
            await done(service, "c0")
            assert len(await queued(service)) == HELD_AT_ONCE
            await done(service, "c1")
            await done(service, "c2", "c3")
            await reconcile(service.database)
            assert len(await queued(service)) == HELD_AT_ONCE - 3
            later = "update dw_jobs set ended_at = ended_at - interval '1 day' where custom_id = 'c0'"
            async with service.database.connection() as connection:
                await connection.execute(later)
            await reconcile(service.database)
            assert len(await queued(service)) == HELD_AT_ONCE


async def test_no_more_of_a_real_batch_run_at_once(database_url: str) -> None:
    """Two workers' slots for eight, a key's limit of three."""

    async def script(view: Any) -> Any:
        await asyncio.sleep(0.05)
        return brain(view)

    async with ProviderFake(script) as fake, working(database_url, models_of(fake), slots=8) as service:
        _, secret = await limited(service)
        async with service.client(secret) as client:
            batch = await sent(client, 24)
            most_open = 0
            async with asyncio.timeout(90):
                while (told := (await client.get(f"/v1/batches/{batch['id']}")).json())["status"] != "ended":
                    async with service.database.connection() as connection:
                        owned = await connection.fetchval("select count(*) from dw_jobs where owner is not null")
                    most_open = max(most_open, owned)
                    await asyncio.sleep(0.02)
        assert told["counts"]["succeeded"] == 24
        assert most_open == LIMIT
