"""Experiments over HTTP: cells are jobs, a few at a time, within one budget; what names files or code is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from executor.job_types import Job
from executor.log.stored import Ending, StoredLog
from executor.store.batches import BatchStore
from executor.store.database import Database
from executor.store.keys import KeyStore, Limits
from executor.store.queue import gone, reconcile
from registry.messages import Usage
from registry.text import clean
from tests.support.experiments import cells_of, created, got, live, recorded, tasks, until
from tests.support.service import Service, running
from tests.support.workers import queue, sql


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as started:
        yield started


async def end(database: Database, job_id: str, status: Any = "completed", cost: str | None = "0.1") -> None:
    """Ends a cell as a worker does, and takes its row out of the queue."""
    owner = uuid4()
    assert await database.row("log.claim", job_id, owner) is not None
    log = StoredLog(job_id, database, owner)
    usage = Usage(10, 5, cost=None if cost is None else Decimal(cost))
    job = Job(job_id, status, "g", "react", "the answer is 42", usage=usage)
    async with asyncio.TaskGroup() as group:
        group.create_task(log.serve())
        log.append("done", {"status": status})
        await log.end(Ending(status, job.to_json(), usage.cost))
    await sql(database, "delete from pgqueuer where dedupe_key = $1", job_id)
    await gone(database, [job_id])


async def begun(service: Service) -> list[str]:
    """The jobs that stand in the queue, in the order of their cells."""
    ids = list(await queue(service.database))
    return [
        row["id"]
        for row in await sql(service.database, "select id from dw_jobs where id = any ($1) order by line", ids)
    ]


# What is begun when


async def test_so_many_cells_are_at_work_at_once(service: Service) -> None:
    made = await created(service.http, live("small", "large", count=4, concurrency=3))
    assert (made["cells"], made["counts"]["total"], made["arms"]) == (8, 8, ["small", "large"])
    assert (made["status"], made["ended"], made["budget"], made["conclusion"]) == ("in_progress", 0, None, None)
    ended = []
    for left in (3, 3, 3, 3, 3, 3, 2, 1):
        now = await begun(service)
        assert len(now) == left
        await end(service.database, now[0])
        ended.append(now[0])
    found = await until(service.http, made)
    assert (found["counts"]["succeeded"], found["usage"]) == (8, {"cost_usd": "0.8", "partial": False})
    cells = await cells_of(service.http, made, page=3)
    assert [cell["job"] for cell in cells] == ended
    assert {(cell["arm"], cell["task"], cell["repeat"]) for cell in cells} == {
        (arm, f"t{number}", 1) for arm in ("small", "large") for number in range(1, 5)
    }


async def test_cells_are_jobs_that_know_whose_they_are(service: Service) -> None:
    made = await created(service.http, live("small", count=1))
    cell = (await cells_of(service.http, made))[0]
    job = (await service.http.get(f"/v1/jobs/{cell['job']}")).json()
    assert (job["goal"], job["experiment"], job["batch"]) == ("question t1", made["id"], None)
    assert job["metadata"] == {"arm": "small", "task": "t1", "repeat": 1}
    assert (await service.http.get("/v1/jobs")).json()["data"] == []
    assert (await service.http.get("/v1/batches")).json()["data"] == []
    for path in ("", "/results", "/cancel"):
        method = "POST" if path == "/cancel" else "GET"
        assert (await service.http.request(method, f"/v1/batches/{made['id']}{path}")).status_code == 404


async def test_what_waits_for_a_human_takes_no_room(service: Service) -> None:
    await created(service.http, live("small", count=3, concurrency=1))
    first = (await begun(service))[0]
    await sql(service.database, "update dw_jobs set status = 'needs_decision', owner = null where id = $1", first)
    await sql(service.database, "delete from pgqueuer")
    await gone(service.database, [first])
    assert len(await begun(service)) == 1


async def test_a_key_s_limit_holds_for_cells_too(service: Service) -> None:
    _, secret = await KeyStore(service.database).create("few", Limits(running_jobs=2))
    async with service.client(secret) as client:
        await created(client, live("small", count=5, concurrency=4))
        assert len(await begun(service)) == 2
        batch = {"mode": "run", "requests": [{"custom_id": "1", "goal": "g"}]}
        assert (await client.post("/v1/batches", json=batch)).status_code == 202
        assert len(await begun(service)) == 2
        await reconcile(service.database)
        assert len(await begun(service)) == 2
        for _ in range(6):
            await end(service.database, (await begun(service))[0])
        assert await begun(service) == []
        assert await sql(service.database, "select id from dw_jobs where ended_at is null") == []


# Its budget


async def reserved(service: Service) -> list[Decimal]:
    rows = await sql(
        service.database,
        "select reserved_usd from dw_jobs where reserved_usd is not null and ended_at is null order by line",
    )
    return [row["reserved_usd"] for row in rows]


async def budgets(service: Service) -> list[str | None]:
    rows = await sql(
        service.database, "select request ->> 'budget' as budget from dw_jobs where not held order by line"
    )
    return [row["budget"] for row in rows]


@pytest.fixture
async def priced(database_url: str) -> AsyncIterator[Service]:
    from executor.service.state import Offer
    from registry.models import ModelRegistry
    from registry.prices import Price
    from registry.testing import ScriptedLLM
    from registry.tools import ToolRegistry

    models = ModelRegistry()
    for name, role in (("small", "general"), ("large", "smart")):
        model = ScriptedLLM([])
        model.price = Price(Decimal(1), Decimal(2))
        models.register(name, model, roles=(role,))
    async with running(database_url, Offer(models, ToolRegistry())) as started:
        yield started


async def test_a_budget_is_divided_among_those_at_work(priced: Service) -> None:
    made = await created(priced.http, live("small", count=6, concurrency=2, budget="1usd"))
    assert made["budget"] == "1usd"
    assert await reserved(priced) == [Decimal("0.5"), Decimal("0.5")]
    assert await budgets(priced) == ["0.5usd", "0.5usd"]
    await end(priced.database, (await begun(priced))[0], cost="0.1")
    assert await reserved(priced) == [Decimal("0.5"), Decimal("0.4")]
    await end(priced.database, (await begun(priced))[0], cost="0.3")
    assert await reserved(priced) == [Decimal("0.4")]  # 0.2 is left, less than the dearest came to
    await end(priced.database, (await begun(priced))[0], cost="0.05")
    assert await reserved(priced) == [Decimal("0.3")]  # of 0.55, half of which is less than that, too
    await end(priced.database, (await begun(priced))[0], cost=None)  # unknown: it counts as all that it had
    found = await until(priced.http, made)
    assert (found["budget_spent"], found["status"]) == (True, "ended")
    assert found["counts"] | {"running": 0} == {
        "processing": 0, "succeeded": 4, "errored": 0, "canceled": 2, "expired": 0, "total": 6, "running": 0,
        "recorded": 0,
    }  # fmt: skip
    assert found["usage"] == {"cost_usd": "0.45", "partial": True}
    await BatchStore(priced.database).look_after()
    cells = [cell for cell in await cells_of(priced.http, made) if cell["status"] == "cancelled"]
    assert [cell["error_code"] for cell in cells] == ["budget_exceeded", "budget_exceeded"]
    job = (await priced.http.get(f"/v1/jobs/{cells[0]['job']}")).json()
    assert job["answer"] == "What is left of the experiment's budget is not enough for this cell."


async def test_what_an_arm_allows_has_to_be_there_as_a_whole(priced: Service) -> None:
    body = live("small", count=4, concurrency=4, budget="1usd")
    body["arms"]["small"]["budget"] = "0.4usd"
    made = await created(priced.http, body)
    assert await budgets(priced) == ["0.4usd", "0.4usd"]  # three would be too much
    await end(priced.database, (await begun(priced))[0], cost="0.1")
    assert len(await begun(priced)) == 2
    for _ in range(3):
        await end(priced.database, (await begun(priced))[0], cost="0.05")
    found = await until(priced.http, made)
    assert (found["counts"]["succeeded"], found["budget_spent"]) == (4, False)


async def test_a_budget_in_tokens(priced: Service) -> None:
    await created(priced.http, live("small", count=3, concurrency=2, budget="100 tokens"))
    assert await budgets(priced) == ["50tokens", "50tokens"]
    await end(priced.database, (await begun(priced))[0])
    assert (await budgets(priced))[-1] == "35tokens"


async def test_a_budget_in_money_needs_prices(service: Service) -> None:
    reply = await service.http.post("/v1/experiments", json=live("small", budget="1usd"))
    assert (reply.status_code, reply.json()["code"]) == (422, "budget_unpriced")


# Its end


async def test_cancel(service: Service) -> None:
    made = await created(service.http, live("small", count=5, concurrency=2))
    ids = await begun(service)
    owner = uuid4()
    await service.database.row("log.claim", ids[0], owner)
    reply = await service.http.post(f"/v1/experiments/{made['id']}/cancel")
    assert (reply.status_code, reply.json()["status"]) == (202, "canceling")
    assert reply.json()["counts"]["canceled"] == 4
    rows = await sql(service.database, "select cancel from dw_jobs where id = $1", ids[0])
    assert rows[0]["cancel"]
    log = StoredLog(ids[0], service.database, owner)
    async with asyncio.TaskGroup() as group:
        group.create_task(log.serve())
        log.append("done", {"status": "cancelled"})
        await log.end(Ending("cancelled", Job(ids[0], "cancelled", "g", "react").to_json(), None))
    found = await until(service.http, made)
    assert (found["counts"]["canceled"], found["budget_spent"]) == (5, False)
    again = await service.http.post(f"/v1/experiments/{made['id']}/cancel")
    assert again.json()["status"] == "ended"
    report = await service.http.get(f"/v1/experiments/{made['id']}/report")
    assert (report.status_code, report.json()["code"]) == (409, "nothing_ended")


async def test_what_is_left_expires(database_url: str) -> None:
    async with running(database_url, batch_hours=1.0) as service:
        made = await created(service.http, live("small", count=3, concurrency=1))
        await sql(service.database, "update dw_batches set expires_at = now()")
        found = await got(service.http, made)
        assert (found["status"], found["counts"]["expired"]) == ("ended", 3)
        await gone(service.database, [])
        await BatchStore(service.database).look_after()
        cells = await cells_of(service.http, made)
        assert {cell["status"] for cell in cells} == {"cancelled"}


# Lists, repetitions


async def test_lists_are_pages_newest_first(service: Service) -> None:
    ids = [(await created(service.http, live("small", count=1)))["id"] for _ in range(3)]
    first = (await service.http.get("/v1/experiments?limit=2")).json()
    assert [one["id"] for one in first["data"]] == ids[:0:-1]
    assert first["has_more"]
    rest = (await service.http.get(f"/v1/experiments?limit=2&after={first['next']}")).json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"], rest["next"]) == (ids[:1], False, None)


async def test_the_same_request_again_is_the_same_experiment(service: Service) -> None:
    first, again = [await created(service.http, live("small"), **{"idempotency-key": "k"}) for _ in range(2)]
    assert first["id"] == again["id"]
    reply = await service.http.post("/v1/experiments", json=live("large"), headers={"idempotency-key": "k"})
    assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_mismatch")
    assert len(await sql(service.database, "select id from dw_jobs")) == 3


# What is refused


def changed(path: str, value: Any, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A body with one value in the place of another; None: without it."""
    found = live("small") if body is None else body
    *way, last = path.split("/")
    place = found
    for name in way:
        place = place.setdefault(name, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return found


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a file of tasks": (changed("experiment/tasks", "tasks.jsonl"), "experiment_invalid", "names a file"),
    "a file in a table": (
        changed("experiment/tasks", {"file": "/etc/*", "input": "a"}), "experiment_invalid", "names a file",
    ),
    "a folder": (changed("experiment/data", "/etc"), "experiment_invalid", "names a folder"),
    "recorded answers in a file": (
        changed("recorded/weak", {"file": "{data}/a.csv", "input": "input", "answer": "a"}, recorded()),
        "experiment_invalid", "names a file",
    ),
    "a learned policy": (
        changed("arms/small/routing", {"use": "learned", "file": "/etc/passwd"}), "experiment_invalid", "names a file",
    ),
    "the same as a text": (
        changed("arms/small/routing", '{use="learned", file="/etc/passwd"}'), "experiment_invalid", "reads a file",
    ),
    "the same in short": (changed("arms/small/routing", "learned:/etc/passwd"), "experiment_invalid", "reads a file"),
    "the same among the options": (
        changed("arms/small", {"options": {"routing": "learned:/etc/passwd"}}),
        "experiment_invalid", "reads a file",
    ),
    "a policy that is code": (changed("arms/small/routing", "os:system"), "experiment_invalid", "code"),
    "the same in a sweep": (
        changed("arms/small/sweep", {"routing": ["os:system"]}), "experiment_invalid", "code",
    ),
    "a grader that is code": (changed("grader/use", "os:system"), "experiment_invalid", "no grader 'os:system'"),
    "a judge": (changed("grader/use", "judge"), "experiment_invalid", "dagwright experiment run"),
    "no grader of this name": (changed("grader/use", "luck"), "experiment_invalid", "no grader 'luck'"),
    "a grader without targets": (
        changed("experiment/tasks", [{"id": "1", "input": "q"}]), "experiment_invalid", "target",
    ),
    "an unknown key": (changed("experiment/taskz", 1), "experiment_invalid", "taskz"),
    "an unknown table": (changed("armz", {}), "validation", "armz"),
    "no tasks": (changed("experiment/tasks", []), "experiment_invalid", "no tasks"),
    "no arms": (changed("arms", {}), "validation", "arms"),
    "an empty task": (
        changed("experiment/tasks", [{"id": "1", "input": " ", "target": "1"}]), "experiment_invalid", "",
    ),
    "a model that is not there": (changed("arms/small/routing", "fixed:huge"), "", "huge"),
    "an option that is not a job's": (
        changed("arms/small/options", {"workspace": "/"}), "experiment_invalid", "workspace",
    ),
    "too many arms": (
        changed("arms/small/sweep", {"max_iterations": list(range(1, 102))}), "experiment_invalid", "101 arms",
    ),
    "far too many arms": (
        changed("arms/small/sweep", {f"k{at}": list(range(1_000)) for at in range(9)}), "experiment_invalid", "arms",
    ),
    "too many repeats": (changed("experiment/repeats", 10**9), "experiment_invalid", "repeats"),
    "too many at once": (changed("experiment/concurrency", 10**10), "experiment_invalid", "concurrency"),
    "too many cells": (
        changed("experiment/repeats", 1_000, live("small", count=51)), "experiment_too_large", "max_batch_items",
    ),
    "a budget that is none": (changed("experiment/budget", "much"), "experiment_invalid", "budget"),
    "a plan of too many steps": (
        changed("experiment/tasks", [{"id": "1", "input": "q", "target": "1",
                                      "plan": {"steps": [{"id": f"s{at}", "task": "x"} for at in range(65)]}}],
                {**live("small"), "arms": {"plan": {"mode": "dag"}}}),
        "experiment_invalid", "64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
async def test_what_can_t_be_run_here_is_refused(service: Service, what: str) -> None:
    body, code, part = REFUSED[what]
    reply = await service.http.post("/v1/experiments", json=body)
    problem = reply.json()
    assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json"), problem
    assert code in problem["code"]
    assert part in problem["detail"]
    assert "pip install" not in problem["detail"]
    assert await sql(service.database, "select id from dw_batches") == []


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
async def test_numbers_that_json_has_not_are_refused(service: Service, number: str) -> None:
    target = [{"id": "1", "input": "q", "target": {"a": [0.5, "NUMBER"]}}]
    text = json.dumps(changed("experiment/tasks", target)).replace('"NUMBER"', number)
    reply = await service.http.post("/v1/experiments", content=text, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["code"]) == (422, "validation")
    assert "NaN" in reply.json()["detail"]


async def test_names_and_texts_may_be_anything(service: Service) -> None:
    odd = "<img src=x onerror=alert(1)> \u202e \x00 \ud800 ☃"
    body = live("small", count=1)
    body["experiment"]["tasks"] = [*tasks(**{odd: "42"}), {"id": "x" * 1_000, "input": odd, "target": "42"}]
    reply = await service.http.post(
        "/v1/experiments", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 202, reply.text
    cells = await cells_of(service.http, reply.json())
    assert {len(cell["task"]) for cell in cells} == {len(clean(odd)), 1_000}
