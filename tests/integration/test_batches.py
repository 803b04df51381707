"""Batches over HTTP: lines in, counts, results, cancel, expiry; one bad line costs one line."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterable
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from executor.job_types import Job
from executor.log.stored import Ending, StoredLog
from executor.store.batches import BatchStore
from executor.store.database import Database
from executor.store.keys import KeyStore
from registry.messages import Usage
from tests.support.service import Service, running

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
LINES = {"content-type": "application/x-ndjson"}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url, batch_hours=24.0) as started:
        yield started


def jsonl(*lines: Any) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def goals(count: int, start: int = 1) -> list[dict[str, Any]]:
    return [{"custom_id": f"c{number}", "goal": f"goal {number}"} for number in range(start, start + count)]


async def made(service: Service, *lines: Any, mode: str = "run", **headers: str) -> dict[str, Any]:
    reply = await service.http.post(f"/v1/batches?mode={mode}", content=jsonl(*lines), headers={**LINES, **headers})
    assert reply.status_code == 202, reply.text
    assert reply.headers["location"] == f"/v1/batches/{reply.json()['id']}"
    return dict(reply.json())


async def got(service: Service, batch: dict[str, Any]) -> dict[str, Any]:
    reply = await service.http.get(f"/v1/batches/{batch['id']}")
    assert reply.status_code == 200
    told: dict[str, Any] = reply.json()
    counts = dict(told["counts"])
    assert counts.pop("total") == sum(counts.values())
    return told


async def results(service: Service, batch: dict[str, Any]) -> dict[Any, dict[str, Any]]:
    """The result lines by line number."""
    reply = await service.http.get(f"/v1/batches/{batch['id']}/results")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/jsonl"
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert len({line["line"] for line in lines}) == len(lines)
    return {line["line"]: line for line in lines}


async def items(service: Service, batch: dict[str, Any]) -> dict[str, Any]:
    async with service.database.connection() as connection:
        rows = await connection.fetch("select * from dw_jobs where batch = $1 order by line", batch["id"])
    return {row["custom_id"]: row for row in rows}


async def claim(database: Database, job_id: str) -> UUID:
    owner = uuid4()
    assert await database.row("log.claim", job_id, owner) is not None
    return owner


async def end(database: Database, job_id: str, status: Any = "completed", owner: UUID | None = None) -> None:
    """Ends a job as a worker does."""
    owner = owner or await claim(database, job_id)
    log = StoredLog(job_id, database, owner)
    usage = Usage(10, 5, cost=Decimal("0.001"))
    error = None if status == "completed" else f"it is {status}"
    job = Job(job_id, status, "g", "dag", "the answer", usage=usage, error=error, error_code=error and status)
    async with asyncio.TaskGroup() as group:
        group.create_task(log.serve())
        log.append("done", {"status": status})
        await log.end(Ending(status, job.to_json(), usage.cost))


async def queued(database: Database) -> list[Any]:
    async with database.connection() as connection:
        return await connection.fetch("select dedupe_key, priority from pgqueuer order by priority desc, id")


async def test_a_batch_of_lines_is_stored_queued_and_counted(service: Service) -> None:
    batch = await made(service, *goals(3))
    assert batch["mode"] == "run"
    assert batch["status"] == "in_progress"
    assert batch["counts"] == {
        "processing": 3, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0, "total": 3,
    }  # fmt: skip
    rows = await items(service, batch)
    assert [(row["kind"], row["goal"], row["line"]) for row in rows.values()] == [
        ("run", f"goal {number}", number) for number in (1, 2, 3)
    ]
    assert {row["dedupe_key"] for row in await queued(service.database)} == {row["id"] for row in rows.values()}


async def test_single_jobs_go_first(service: Service) -> None:
    await made(service, *goals(2))
    single = (await service.http.post("/v1/jobs", json={"goal": "now"})).json()
    assert (await queued(service.database))[0]["dedupe_key"] == single["id"]


async def test_a_json_body_is_the_same(service: Service) -> None:
    requests = [*goals(2), {"custom_id": "c1", "goal": "again"}]
    body = {"mode": "plan", "requests": requests, "metadata": {"of": "tests"}}
    batch = (await service.http.post("/v1/batches", json=body)).json()
    assert batch["metadata"] == {"of": "tests"}
    assert (batch["counts"]["processing"], batch["counts"]["errored"]) == (2, 1)
    rows = await items(service, batch)
    assert rows["c2"]["kind"] == "plan"


BAD: list[tuple[Any, str, str]] = [
    (b"no json", "invalid_json", "no valid JSON"),
    (b"[1, 2]", "validation", ""),
    (b'"text"', "validation", ""),
    (b"[" * 100_000, "invalid_json", ""),
    (b'{"custom_id": "b0", "goal": "x", "budget": NaN}', "validation", "budget"),
    ({"goal": "x"}, "validation", "custom_id"),
    ({"custom_id": "", "goal": "x"}, "validation", "custom_id"),
    ({"custom_id": "x" * 65, "goal": "x"}, "validation", "custom_id"),
    ({"custom_id": 5, "goal": "x"}, "validation", "custom_id"),
    ({"custom_id": "good", "goal": "x"}, "custom_id_doubled", "earlier"),
    ({"custom_id": "b1"}, "goal_empty", "goal"),
    ({"custom_id": "b2", "goal": "  "}, "goal_empty", "goal"),
    ({"custom_id": "b3", "goal": 7}, "validation", "goal"),
    ({"custom_id": "b4", "goal": "x" * 200_001}, "goal_too_long", "max_goal_chars"),
    ({"custom_id": "b5", "goal": "x", "gaol": "y"}, "validation", "gaol"),
    ({"custom_id": "b6", "goal": "x", "options": {"max_stepz": 3}}, "validation", "max_stepz"),
    ({"custom_id": "b7", "goal": "x", "models": ["none"]}, "unknown_model", "none"),
    ({"custom_id": "b8", "goal": "nul \x00 half \ud800", "tools": ["none"]}, "unknown_tool", "none"),
    (b'{"custom_id": "b9", "goal": "' + b"y" * (8 << 20) + b'"}', "line_too_long", "max_request_bytes"),
]


async def test_a_bad_line_costs_one_line(service: Service) -> None:
    lines = [{"custom_id": "good", "goal": "well"}, *(line for line, _, _ in BAD), {"custom_id": "last", "goal": "too"}]
    batch = await made(service, *lines)
    assert batch["counts"]["processing"] == 2
    assert batch["counts"]["errored"] == len(BAD)
    told = await results(service, batch)
    assert sorted(told) == list(range(2, len(BAD) + 2))
    for number, (line, code, says) in enumerate(BAD, 2):
        one = told[number]
        assert (one["status"], one["plan"], one["error"]["code"]) == ("errored", None, code)
        assert says in one["error"]["detail"]
        custom_id = line.get("custom_id") if isinstance(line, dict) else "b0" if b'"b0"' in line else None
        usable = isinstance(custom_id, str) and 0 < len(custom_id) <= 64
        assert one["custom_id"] == (custom_id if usable else None)
    async with service.database.connection() as connection:
        ids = {row["id"] for row in await connection.fetch("select id from dw_jobs where ended_at is null")}
    assert {row["dedupe_key"] for row in await queued(service.database)} == ids
    job = (await service.http.get(f"/v1/jobs/{told[2]['job_id']}")).json()
    assert (job["status"], job["error_code"]) == ("failed", "invalid_json")
    events = await service.http.get(f"/v1/jobs/{told[2]['job_id']}/events")
    assert "event: done" in events.text


@pytest.mark.parametrize(
    ("body", "query", "headers", "status", "code"),
    [
        (b"", "?mode=run", LINES, 422, "batch_empty"),
        (b"\n\n \n", "?mode=run", LINES, 422, "batch_empty"),
        (b"no json\n{}\n", "?mode=run", LINES, 422, "batch_empty"),
        (jsonl(*goals(1)), "", LINES, 422, "validation"),
        (jsonl(*goals(1)), "?mode=walk", LINES, 422, "validation"),
        (b"{", "", {"content-type": "application/json"}, 400, "invalid_json"),
        (b'{"mode": "run"}', "", {"content-type": "application/json"}, 422, "validation"),
        (b'{"mode": "run", "requests": []}', "", {"content-type": "application/json"}, 422, "validation"),
        (b'{"mode": "run", "requests": [{}], "x": 1}', "", {"content-type": "application/json"}, 422, "validation"),
        (b"goal", "?mode=run", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
    ],
)
async def test_what_is_no_batch_is_refused(
    service: Service, body: bytes, query: str, headers: dict[str, str], status: int, code: str
) -> None:
    reply = await service.http.post(f"/v1/batches{query}", content=body, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    async with service.database.connection() as connection:
        assert (
            await connection.fetchval("select (select count(*) from dw_batches) + (select count(*) from dw_jobs)") == 0
        )


async def test_the_limits_are_settings(database_url: str) -> None:
    async with running(database_url, max_batch_items=2, max_batch_bytes=500) as service:
        reply = await service.http.post("/v1/batches?mode=run", content=jsonl(*goals(3)), headers=LINES)
        assert (reply.status_code, reply.json()["code"]) == (422, "batch_too_large")
        assert "max_batch_items" in reply.json()["detail"]
        reply = await service.http.post("/v1/batches?mode=run", content=jsonl(*goals(30)), headers=LINES)
        assert reply.status_code == 413
        assert "max_batch_bytes" in reply.json()["detail"]
        assert (await service.http.get("/v1/batches")).json()["data"] == []


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(service: Service) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield jsonl(*goals(5))
        await asyncio.sleep(0.1)
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        await service.http.post("/v1/batches?mode=run", content=broken(), headers=LINES)
    assert (await service.http.get("/v1/batches")).json()["data"] == []


async def test_the_same_key_gives_the_same_batch(service: Service) -> None:
    key = {"idempotency-key": "k1"}
    first, second = await asyncio.gather(made(service, *goals(3), **key), made(service, *goals(3), **key))
    assert first["id"] == second["id"]
    assert len(await queued(service.database)) == 3
    for query, lines in (("run", goals(2)), ("plan", goals(3))):
        reply = await service.http.post(f"/v1/batches?mode={query}", content=jsonl(*lines), headers={**LINES, **key})
        assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_mismatch")


async def test_results_come_while_it_runs_and_the_counts_fit(service: Service) -> None:
    batch = await made(service, *goals(6))
    rows = await items(service, batch)
    statuses = ["completed", "partial", "failed", "budget_exceeded", "cancelled"]
    for number, status in enumerate(statuses, 1):
        await end(service.database, rows[f"c{number}"]["id"], status)
        assert len(await results(service, batch)) == number
    told = await results(service, batch)
    expected = ["succeeded", "errored", "errored", "errored", "canceled"]
    assert [told[number]["status"] for number in range(1, 6)] == expected
    assert told[1]["job"]["answer"] == "the answer"
    assert told[1]["error"] is None
    assert told[1]["usage"]["input_tokens"] == 10
    assert told[1]["usage"]["cost_usd"] == "0.001"
    assert told[2]["job"]["status"] == "partial"
    assert told[2]["error"] == {"code": "partial", "detail": "it is partial"}
    counts = (await got(service, batch))["counts"]
    assert [counts[name] for name in ("processing", "succeeded", "errored", "canceled", "expired")] == [1, 1, 3, 1, 0]
    await end(service.database, rows["c6"]["id"])
    batch = await got(service, batch)
    assert (batch["status"], batch["ended_at"] is not None) == ("ended", True)
    await BatchStore(service.database).look_after()
    assert await got(service, batch) == batch


async def test_cancel_in_the_middle(service: Service) -> None:
    batch = await made(service, *goals(5), b"bad")
    rows = await items(service, batch)
    await end(service.database, rows["c1"]["id"])
    owner = await claim(service.database, rows["c2"]["id"])
    reply = await service.http.post(f"/v1/batches/{batch['id']}/cancel")
    assert reply.status_code == 202
    assert reply.json()["status"] == "canceling"
    counts = (await got(service, batch))["counts"]
    assert counts == {"processing": 1, "succeeded": 1, "errored": 1, "canceled": 3, "expired": 0, "total": 6}
    async with service.database.connection() as connection:
        flags = await connection.fetch("select id from dw_jobs where cancel and ended_at is null")
    assert [row["id"] for row in flags] == [rows["c2"]["id"]]
    assert [row["dedupe_key"] for row in await queued(service.database)] == [rows["c1"]["id"], rows["c2"]["id"]]
    told = await results(service, batch)
    assert (told[3]["status"], told[3]["error"]["code"]) == ("canceled", "cancelled")
    job = (await service.http.get(f"/v1/jobs/{rows['c3']['id']}")).json()
    assert (job["status"], job["goal"], job["batch"]) == ("cancelled", "goal 3", batch["id"])
    assert await service.database.row("log.claim", rows["c3"]["id"], uuid4()) is None
    await end(service.database, rows["c2"]["id"], "cancelled", owner)
    ended = await got(service, batch)
    assert (ended["status"], ended["counts"]["canceled"]) == ("ended", 4)
    await BatchStore(service.database).look_after()
    again = (await service.http.post(f"/v1/batches/{batch['id']}/cancel")).json()
    assert again == ended


async def test_a_claim_and_a_cancel_at_once_leave_nothing_open(service: Service) -> None:
    batch = await made(service, *goals(60))
    rows = [row["id"] for row in (await items(service, batch)).values()]
    claimed: list[str] = []

    async def claiming() -> None:
        for job_id in rows:
            if await service.database.row("log.claim", job_id, uuid4()) is not None:
                claimed.append(job_id)

    await asyncio.gather(claiming(), service.http.post(f"/v1/batches/{batch['id']}/cancel"))
    async with service.database.connection() as connection:
        left = await connection.fetch("select id, cancel from dw_jobs where ended_at is null")
    assert sorted(row["id"] for row in left) == sorted(claimed)
    assert all(row["cancel"] for row in left)


async def test_a_cancel_that_was_cut_off_is_finished_by_the_next_look(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.store.batches.CHUNK", 2)
    batch = await made(service, *goals(7))
    assert await service.database.row("batches.cancel", batch["id"], "") is not None
    counts = (await got(service, batch))["counts"]
    assert (counts["processing"], counts["canceled"]) == (0, 7)  # though nothing of it is written
    assert await BatchStore(service.database).look_after() == 2  # ended, and closed
    batch = await got(service, batch)
    assert (batch["status"], batch["counts"]["canceled"]) == ("ended", 7)
    assert "was cancelled" in (await results(service, batch))[7]["error"]["detail"]


async def expire(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("update dw_batches set expires_at = now()")


async def test_what_is_left_expires(service: Service) -> None:
    batch = await made(service, *goals(4))
    assert await BatchStore(service.database).look_after() == 0
    rows = await items(service, batch)
    await end(service.database, rows["c1"]["id"])
    owner = await claim(service.database, rows["c2"]["id"])
    await expire(service.database)
    stores = [BatchStore(service.database) for _ in range(3)]
    assert sum(await asyncio.gather(*(store.look_after() for store in stores))) >= 1
    counts = (await got(service, batch))["counts"]
    assert counts == {"processing": 1, "succeeded": 1, "errored": 0, "canceled": 0, "expired": 2, "total": 4}
    await end(service.database, rows["c2"]["id"], "cancelled", owner)
    assert (await got(service, batch))["counts"]["expired"] == 3
    told = await results(service, batch)
    assert [told[number]["status"] for number in (1, 2, 3, 4)] == ["succeeded", "expired", "expired", "expired"]
    assert "time was over" in told[4]["error"]["detail"]
    again = (await service.http.post(f"/v1/batches/{batch['id']}/cancel")).json()
    assert (again["status"], again["cancelled_at"]) == ("ended", None)  # nothing is open that could be cancelled
    assert await BatchStore(service.database).look_after() == 1  # closed
    assert (await got(service, batch))["counts"]["expired"] == 3
    assert await BatchStore(service.database).look_after() == 0


async def test_counts_and_results_are_right_at_any_moment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks after the batch: what had not begun when its time was over has expired all the same."""
    monkeypatch.setattr("executor.store.batches.CHUNK", 2)
    batch = await made(service, *goals(7))
    rows = await items(service, batch)
    await claim(service.database, rows["c1"]["id"])
    await end(service.database, rows["c2"]["id"])
    await expire(service.database)
    told = await got(service, batch)
    expected = {"processing": 1, "succeeded": 1, "errored": 0, "canceled": 0, "expired": 5, "total": 7}
    assert (told["counts"], told["status"]) == (expected, "in_progress")
    assert await service.database.row("log.claim", rows["c3"]["id"], uuid4()) is None  # it never begins
    lines = await results(service, batch)
    assert [lines[number]["status"] for number in sorted(lines)] == ["succeeded", *["expired"] * 5]
    assert {lines[number]["job"]["ended_at"] for number in range(3, 8)} == {told["expires_at"]}
    assert await got(service, batch) == told


async def test_a_batch_expires_when_it_is_due(database_url: str) -> None:
    """Long before the next look that is taken anyway, the batch that was there before notwithstanding."""
    async with running(database_url, batch_hours=1 / 3_600) as service:
        batch = await made(service, *goals(3))
        owner = await claim(service.database, (await items(service, batch))["c1"]["id"])
        async with asyncio.timeout(20):
            while not (await items(service, batch))["c1"]["cancel"]:  # whoever runs it is asked to end
                await asyncio.sleep(0.05)
        rows = await items(service, batch)
        assert [rows[name]["status"] for name in ("c2", "c3")] == ["cancelled", "cancelled"]
        await end(service.database, rows["c1"]["id"], "cancelled", owner)
        told = await got(service, batch)
        assert (told["status"], told["counts"]["expired"]) == ("ended", 3)


SEPARATORS = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei"
"""What ends a line for str.splitlines, and for some readers of JSON lines."""


async def test_a_result_is_one_line_by_every_reader_s_rules(service: Service) -> None:
    batch = await made(service, {"custom_id": SEPARATORS, "goal": SEPARATORS}, {"custom_id": "b", "goal": "g", "x": 1})
    await service.http.post(f"/v1/batches/{batch['id']}/cancel")
    reply = await service.http.get(f"/v1/batches/{batch['id']}/results")
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert [line["line"] for line in lines] == [1, 2]
    assert lines[0]["custom_id"] == lines[0]["job"]["goal"] == SEPARATORS


async def test_what_was_cancelled_before_its_time_stays_so(service: Service) -> None:
    batch = await made(service, *goals(2))
    rows = await items(service, batch)
    owner = await claim(service.database, rows["c1"]["id"])
    await service.http.post(f"/v1/batches/{batch['id']}/cancel")
    await expire(service.database)
    await end(service.database, rows["c1"]["id"], "cancelled", owner)
    assert await BatchStore(service.database).look_after() == 1
    batch = await got(service, batch)
    assert (batch["counts"]["canceled"], batch["counts"]["expired"], batch["status"]) == (2, 0, "ended")


async def test_an_item_that_waits_for_a_human_is_ended_by_whoever_claims_it(service: Service) -> None:
    batch = await made(service, *goals(1))
    row = (await items(service, batch))["c1"]
    async with service.database.connection() as connection:
        await connection.execute("update dw_jobs set status = 'needs_decision', started_at = now(), seq = 3")
        await connection.execute("delete from pgqueuer")
    await service.http.post(f"/v1/batches/{batch['id']}/cancel")
    assert [one["dedupe_key"] for one in await queued(service.database)] == [row["id"]]
    assert (await items(service, batch))["c1"]["cancel"]


async def test_pages(service: Service) -> None:
    made_ids = [(await made(service, *goals(1)))["id"] for _ in range(5)]
    seen: list[str] = []
    after = ""
    while True:
        page = (await service.http.get(f"/v1/batches?limit=2{after}")).json()
        seen += [batch["id"] for batch in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['next']}"
    assert seen == made_ids[::-1]
    assert page["data"][0]["counts"]["processing"] == 1
    assert (await service.http.get("/v1/jobs")).json()["data"] == []


async def test_many_results_come_in_pages_and_large_ones_too(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.store.batches.PAGE", 7)
    monkeypatch.setattr("executor.store.batches.PAGE_BYTES", 2_000)
    batch = await made(service, *goals(1), *[{"custom_id": f"b{n}", "goal": "x" * n, "y": 1} for n in range(900, 960)])
    told = await results(service, batch)
    assert sorted(told) == list(range(2, 62))


async def tenants(service: Service, *names: str) -> Iterable[str]:
    store = KeyStore(service.database)
    return [(await store.create(name))[1] for name in names]


async def test_another_tenants_batch_is_none(service: Service) -> None:
    mine, other = await tenants(service, "mine", "other")
    async with service.client(mine) as me, service.client(other) as them:
        key = {**LINES, "idempotency-key": "same"}
        batch = (await me.post("/v1/batches?mode=run", content=jsonl(*goals(2)), headers=key)).json()
        theirs = (await them.post("/v1/batches?mode=run", content=jsonl(*goals(3)), headers=key)).json()
        assert theirs["id"] != batch["id"]
        for method, path in (("GET", ""), ("GET", "/results"), ("POST", "/cancel")):
            reply = await them.request(method, f"/v1/batches/{batch['id']}{path}")
            assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
        assert [one["id"] for one in (await them.get("/v1/batches")).json()["data"]] == [theirs["id"]]
        assert (await them.get(f"/v1/batches?after={batch['id']}")).json()["data"] == []
        assert (await me.get(f"/v1/batches/{batch['id']}")).json()["counts"]["processing"] == 2
    assert (await service.http.get("/v1/batches")).status_code == 401


@pytest.mark.parametrize("name", ["batch_none", "x" * 65, "%00", "..%2f", "ü", "job_1"])
async def test_what_is_no_batchs_name_is_404(service: Service, name: str) -> None:
    for method, path in (("GET", ""), ("GET", "/results"), ("POST", "/cancel")):
        assert (await service.http.request(method, f"/v1/batches/{name}{path}")).status_code == 404


async def test_an_items_webhook_is_kept_or_refused(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"custom_id": "a", "goal": "g", "webhook": "https://example.com/hook"}
    async with running(database_url) as service:
        batch = await made(service, line, *goals(1))
        error = (await results(service, batch))[1]["error"]
        assert (error["code"], "webhook_secret_env" in error["detail"]) == ("webhook_invalid", True)
        assert (await service.http.get("/v1/webhooks/secret")).status_code == 404
    monkeypatch.setenv("HOOKS", SECRET)
    async with running(database_url, webhook_secret_env="HOOKS") as service:
        batch = await made(service, line, {"custom_id": "b", "goal": "g", "webhook": "ftp://example.com"})
        row = (await items(service, batch))["a"]
        async with service.database.connection() as connection:
            assert await connection.fetchval("select url from dw_webhooks where job = $1", row["id"]) == line["webhook"]
        assert (await results(service, batch))[2]["error"]["code"] == "webhook_invalid"
        assert (await service.http.get("/v1/webhooks/secret")).json() == {"secret": SECRET}
