"""Jobs over HTTP: created, looked at while they run, listed, spoken to, ended; every bad request is told by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from executor.service.schemas import Options
from executor.settings import OF_A_JOB
from executor.settings_model import Settings
from executor.store.database import Database
from executor.store.fold import cancelled, fold, job_of
from registry import ModelRegistry
from registry.tools import ToolRegistry
from tests.support.service import Service, offer, running, written
from tests.support.stored_jobs import Brain, events_of, look_up, note, ran, row_of, with_tools, workshop

PLAN = {"steps": [{"id": "s1", "task": "find x"}, {"id": "s2", "task": "double x", "dependencies": ["s1"]}]}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as found:
        yield found


async def made(service: Service, **body: Any) -> str:
    response = await service.http.post("/v1/jobs", json={"goal": "sum it up", **body})
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def told(response: httpx2.Response) -> tuple[int, str]:
    """Status and code of an error, which is a whole problem."""
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    assert body["type"].endswith(f"/errors/{body['code'].replace('_', '-')}")
    assert body["title"]
    assert body["detail"]
    return response.status_code, body["code"]


# Created


async def test_a_job_is_accepted_at_once(service: Service) -> None:
    response = await service.http.post("/v1/jobs", json={"goal": "sum it up", "metadata": {"who": "me", "n": 3}})
    job = response.json()
    assert (response.status_code, response.headers["location"]) == (202, f"/v1/jobs/{job['id']}")
    assert (job["status"], job["goal"], job["mode"], job["answer"]) == ("queued", "sum it up", "auto", None)
    assert (job["plan"], job["steps"], job["metadata"]) == (None, [], {"who": "me", "n": 3})
    assert job["created_at"].endswith("Z")
    assert job["usage"]["calls"] == 0
    assert (await service.http.get(f"/v1/jobs/{job['id']}")).json() == job
    async with service.database.connection() as connection:
        assert await connection.fetchval("select count(*) from pgqueuer where dedupe_key = $1", job["id"]) == 1


async def test_what_is_asked_for_is_what_a_worker_gets(service: Service) -> None:
    body = {
        "mode": "dag", "models": ["small"], "tools": [], "budget": {"tokens": 1000}, "answer_mode": "direct",
        "history": [{"role": "user", "content": "hello"}], "options": {"max_steps": 5, "router": False},
    }  # fmt: skip
    row = await service.jobs.get("", await made(service, **body))
    assert row is not None
    assert row["request"] == {
        "models": ["small"], "tools": [], "budget": "1000tokens", "answer_mode": "direct",
        "history": [{"role": "user", "content": "hello"}], "options": {"max_steps": 5, "router": False},
    }  # fmt: skip
    assert (row["mode"], row["kind"]) == ("dag", "run")


async def test_a_given_plan_is_checked_and_kept(service: Service) -> None:
    response = await service.http.post("/v1/jobs", json={"goal": "g", "plan": PLAN})
    job = response.json()
    assert (job["mode"], job["plan"]["edges"], job["plan"]["goal"]) == ("dag", [["s1", "s2"]], "g")
    assert [(step["id"], step["status"]) for step in job["steps"]] == [("s1", "pending"), ("s2", "pending")]
    goal_in_plan = await service.http.post("/v1/jobs", json={"plan": {"goal": "of the plan", **PLAN}})
    assert goal_in_plan.json()["goal"] == "of the plan"
    circle = {
        "steps": [{"id": "a", "task": "x", "dependencies": ["b"]}, {"id": "b", "task": "y", "dependencies": ["a"]}]
    }
    refused = await service.http.post("/v1/jobs", json={"goal": "g", "plan": circle})
    assert told(refused) == (422, "plan_invalid")
    assert refused.json()["title"] == "The plan has a cycle"
    assert [problem[:2] for problem in refused.json()["problems"]] == [["cycle", ["a", "b"]]]
    many = {"steps": [{"id": f"s{number}", "task": "work"} for number in range(65)]}
    refused = await service.http.post("/v1/jobs", json={"goal": "g", "plan": many})
    assert told(refused) == (422, "plan_invalid")
    assert "at most 64" in refused.json()["detail"]
    assert "max_steps" in refused.json()["detail"]


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "goal_empty", "goal"),
    ({"goal": " \n"}, "goal_empty", "goal"),
    ({"goal": "x" * 200_001}, "goal_too_long", "max_goal_chars"),
    ({"goal": 7}, "validation", "goal"),
    ({"goal": "g", "goals": 1}, "validation", "goals: there is no such field"),
    ({"goal": "g", "options": {"workspace": "/"}}, "validation", "options.workspace: there is no such field"),
    ({"goal": "g", "options": {"max_steps": False}}, "validation", "options.max_steps"),
    ({"goal": "g", "options": {"max_steps": "5"}}, "validation", "options.max_steps"),
    ({"goal": "g", "options": {"max_steps": 65}}, "too_many_steps", "setting max_steps"),
    ({"goal": "g", "options": {"router": 1}}, "validation", "options.router"),
    ({"goal": "g", "mode": "other"}, "validation", "mode"),
    ({"goal": "g", "models": ["none"]}, "unknown_model", "small, large"),
    ({"goal": "g", "models": []}, "validation", "models"),
    ({"goal": "g", "tools": ["none"]}, "unknown_tool", "lookup"),
    ({"goal": "g", "tools": "lookup"}, "validation", "tools"),
    ({"goal": "g", "budget": "much"}, "budget_invalid", "budget"),
    ({"goal": "g", "budget": -1}, "budget_invalid", "budget"),
    ({"goal": "g", "budget": {}}, "budget_invalid", "budget"),
    ({"goal": "g", "budget": True}, "validation", "budget"),
    ({"goal": "g", "budget": 0.5}, "budget_unpriced", "small"),
    ({"goal": "g", "plan": []}, "validation", "plan"),
    ({"goal": "g", "plan": {}}, "plan_invalid", "plan"),
    ({"goal": "g", "answer_mode": "loud"}, "validation", "answer_mode"),
    ({"goal": "g", "history": [{"role": "system", "content": "x"}]}, "validation", "history.0.role"),
    ({"goal": "g", "metadata": {"a": {"b": 1}}}, "validation", "metadata.a"),
    ({"goal": "g", "webhook": "https://example.com/"}, "webhook_invalid", "webhook_secret_env"),
]


async def test_what_is_wrong_with_a_request_is_told_by_name(service: Service) -> None:
    for body, code, detail in BAD:
        response = await service.http.post("/v1/jobs", json=body)
        assert told(response) == (422, code), (body, response.text)
        assert detail in response.json()["detail"], response.text
        assert response.json()["problems"]
    assert (await service.http.get("/v1/jobs")).json() == {"data": [], "has_more": False, "next": None}


async def test_bodies_that_are_no_json_too_large_or_of_another_type(database_url: str) -> None:
    async with running(database_url, max_request_bytes=2_000) as service:
        http, kind = service.http, {"content-type": "application/json"}
        assert told(await http.post("/v1/jobs", content=b"{", headers=kind)) == (400, "invalid_json")
        deep = b'{"goal": ' + b"[" * 900
        assert told(await http.post("/v1/jobs", content=deep, headers=kind)) == (400, "invalid_json")
        assert told(await http.post("/v1/jobs", content=b"\xff\xfe", headers=kind))[0] == 400
        assert told(await http.post("/v1/jobs", content=b"[]", headers=kind)) == (422, "validation")
        assert told(await http.post("/v1/jobs", headers=kind)) == (422, "validation")
        large = b'{"goal": "' + b"x" * 2_000 + b'"}'
        for body in (large, pieces(large)):
            response = await http.post("/v1/jobs", content=body, headers=kind)
            assert told(response) == (413, "too_large")
            assert "2,000 bytes at most (setting max_request_bytes)" in response.json()["detail"]
        for wrong in ({"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}, {}):
            response = await http.post("/v1/jobs", content=b'{"goal": "g"}', headers=wrong)
            assert told(response) == (415, "unsupported_media_type")


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for place in range(0, len(body), 500):
        yield body[place : place + 500]


async def test_text_that_cannot_be_stored_is_cleaned(service: Service) -> None:
    response = await service.http.post(
        "/v1/jobs",
        content=b'{"goal": "nul \\u0000 half \\ud83d literal \\\\u0000", "metadata": {"k": "a\\u0000b"}}',
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 202
    assert response.json()["goal"] == "nul  half \N{REPLACEMENT CHARACTER} literal \\u0000"
    assert response.json()["metadata"] == {"k": "ab"}


async def test_no_model_no_job(database_url: str) -> None:
    nothing = type(offer())(ModelRegistry(), ToolRegistry())
    async with running(database_url, nothing) as service:
        response = await service.http.post("/v1/jobs", json={"goal": "g"})
        assert told(response) == (503, "no_model")
        assert "models.toml" in response.json()["detail"]


def test_options_are_the_settings_of_a_job() -> None:
    own = {name for name in OF_A_JOB if name not in ("answer_mode", "budget")}  # fields of the job itself
    assert set(Options.model_fields) == own
    for name in own:
        value = getattr(Settings(), name)
        assert getattr(Options.model_validate({name: value}), name) == value


# Idempotency


async def test_the_same_key_gives_the_same_job(service: Service) -> None:
    key = {"idempotency-key": "k1"}
    first = await service.http.post("/v1/jobs", json={"goal": "g", "mode": "dag"}, headers=key)
    again = await service.http.post("/v1/jobs", content=b'{"mode":"dag",  "goal":"g"}',
                                    headers={**key, "content-type": "application/json"})  # fmt: skip
    assert again.json() == first.json()
    other = await service.http.post("/v1/jobs", json={"goal": "other"}, headers=key)
    assert told(other) == (422, "idempotency_mismatch")
    assert told(await service.http.post("/v1/plans", json={"goal": "g"}, headers=key)) == (422, "idempotency_mismatch")
    assert len((await service.http.get("/v1/jobs")).json()["data"]) == 1
    for bad in ("", "x" * 256, "\x7f"):
        response = await service.http.post("/v1/jobs", json={"goal": "g"}, headers={"idempotency-key": bad})
        assert told(response) == (422, "validation")


async def test_concurrent_duplicates_are_one_job(service: Service) -> None:
    async def once() -> str:
        return await made_with(service, "same")

    ids = await asyncio.gather(*(once() for _ in range(12)))
    assert len(set(ids)) == 1
    async with service.database.connection() as connection:
        assert await connection.fetchval("select count(*) from dw_jobs") == 1
        assert await connection.fetchval("select count(*) from pgqueuer") == 1


async def made_with(service: Service, key: str) -> str:
    response = await service.http.post("/v1/jobs", json={"goal": "g"}, headers={"idempotency-key": key})
    assert response.status_code == 202
    return str(response.json()["id"])


# Looked at


async def test_a_whole_job_is_what_its_worker_wrote(service: Service) -> None:
    work = workshop(Brain(with_tools), [look_up, note])
    job = await made(service, mode="dag", metadata={"who": "me"})
    row = await ran(service.database, work, job)
    shown = (await service.http.get(f"/v1/jobs/{job}")).json()
    assert shown["status"] == "completed"
    assert shown["answer"] == "the written answer"
    assert {**shown, **row["summary"]} == shown
    assert (shown["id"], shown["metadata"], shown["kind"]) == (job, {"who": "me"}, "run")


@pytest.mark.parametrize("mode", ["dag", "react"])
async def test_folding_the_events_gives_what_the_worker_wrote(service: Service, mode: str) -> None:
    """The account of a running job is made of its events: at the end it must be the same as the worker's own."""
    job = await made(service, mode=mode)
    row = await ran(service.database, workshop(Brain(with_tools), [look_up, note]), job)
    events = await service.database.rows("fold.events", job, row["seq"])
    folded = job_of({**row, "summary": None}, fold(row, events)).to_json()
    for name in ("id", "status", "goal", "mode", "plan", "answer", "rounds", "iterations", "usage"):
        assert folded[name] == row["summary"][name], name
    assert folded["usage"]["by_role"].keys() >= {"synthesis"}
    unknown = ("taint", "fallbacks")  # these no event of a step tells
    assert [{**step, **dict.fromkeys(unknown)} for step in folded["steps"]] == [
        {**step, **dict.fromkeys(unknown)} for step in row["summary"]["steps"]
    ]


async def test_a_job_at_any_moment(service: Service) -> None:
    """After each of its events the job can be had, what it says is never less than before, and its end comes last."""
    finished = await made(service, mode="dag")
    row = await ran(service.database, workshop(Brain(with_tools), [look_up, note]), finished)
    events = await events_of(service.database, finished)
    job, calls, ended = await made(service, mode="dag"), 0, 0
    async for count in written(service.database, job, events[:-1]):
        shown = (await service.http.get(f"/v1/jobs/{job}")).json()
        assert shown["status"] == "running"
        assert (shown["ended_at"], shown["error"]) == (None, None)
        done = sum(step["status"] == "completed" for step in shown["steps"])
        assert (shown["usage"]["calls"], done) >= (calls, ended)
        calls, ended = shown["usage"]["calls"], done
        plans = [event["payload"] for event in events[:count] if event["channel"] == "plan"]
        assert shown["plan"] == (plans[-1] if plans else None)
        text = "".join(event["payload"].get("content", "") for event in events[:count] if event["channel"] == "answer")
        assert shown["answer"] == (text or None)
    assert (calls, ended) == (row["summary"]["usage"]["calls"], 4)


async def test_jobs_are_listed_newest_first_in_pages(service: Service) -> None:
    ids = [await made(service, metadata={"n": number, "who": "ab"[number % 2]}) for number in range(7)]
    seen: list[str] = []
    after: dict[str, Any] = {}
    while True:
        page = (await service.http.get("/v1/jobs", params={"limit": 3, **after})).json()
        seen += [job["id"] for job in page["data"]]
        if not page["has_more"]:
            break
        assert page["next"] == seen[-1]
        after = {"after": page["next"]}
    assert seen == ids[::-1]
    assert await listed(service, {"metadata.who": "b"}) == [ids[5], ids[3], ids[1]]
    assert await listed(service, {"metadata.n": "5", "metadata.who": "b"}) == [ids[5]]
    assert await listed(service, {"metadata.n": "9"}) == []
    assert await listed(service, {"status": "queued", "limit": 1}) == [ids[6]]
    assert await listed(service, {"status": ["running", "completed"]}) == []
    assert await listed(service, {"after": "job_of_nobody"}) == []
    for params in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"status": "lost"}, {"after": ""}, {"who": "b"},
                   {f"metadata.{number}": "x" for number in range(5)}):  # fmt: skip
        assert told(await service.http.get("/v1/jobs", params=params))[0] == 422, params
    assert "who" in (await service.http.get("/v1/jobs", params={"who": "b"})).json()["detail"]


async def listed(service: Service, params: dict[str, Any]) -> list[str]:
    response = await service.http.get("/v1/jobs", params=params)
    assert response.status_code == 200, response.text
    return [job["id"] for job in response.json()["data"]]


async def test_unknown_jobs(service: Service) -> None:
    for name in ("job_" + "0" * 24, "%00", "%ED%A0%80", "x" * 3_000, "..%2f"):
        assert told(await service.http.get(f"/v1/jobs/{name}")) == (404, "not_found"), name


# Waited for


async def test_a_reply_is_held_until_the_job_ends(service: Service) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(service.http.post("/v1/jobs?wait=30", json={"goal": "g", "mode": "dag"}))
        job = await only_job(service)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await ran(service.database, workshop(Brain()), job)
    assert (waiting.result().status_code, waiting.result().json()["status"]) == (202, "completed")
    quick = await service.http.post("/v1/jobs?wait=0.2", json={"goal": "other"})
    assert (quick.status_code, quick.json()["status"]) == (202, "queued")
    for wait in ("-1", "nan", "inf", "x"):
        assert told(await service.http.post(f"/v1/jobs?wait={wait}", json={"goal": "g"})) == (422, "validation")


async def only_job(service: Service) -> str:
    while True:
        async with service.database.connection() as connection:
            rows = await connection.fetch("select id from dw_jobs where ended_at is null")
        if rows:
            return str(rows[0]["id"])
        await asyncio.sleep(0.02)


async def test_a_plan_only(service: Service) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(service.http.post("/v1/plans", json={"goal": "g"}))
        job = await only_job(service)
        await ran(service.database, workshop(Brain()), job)
    response = waiting.result()
    plan = response.json()
    assert (response.status_code, response.headers["location"]) == (200, f"/v1/jobs/{job}")
    assert [step["id"] for step in plan["steps"]] == ["a", "b", "c", "d"]
    assert (plan["job"], plan["usage"]["calls"], plan["goal"]) == (job, 1, "g")
    later = await service.http.post("/v1/plans?wait=0", json={"goal": "g"})
    assert (later.status_code, later.json()["status"], later.json()["kind"]) == (202, "queued", "plan")
    for body in ({"goal": "g", "plan": PLAN}, {"goal": "g", "mode": "dag"}, {"goal": ""}):
        assert told(await service.http.post("/v1/plans", json=body))[0] == 422


async def test_a_plan_that_cannot_be_made(service: Service) -> None:
    circle = {"steps": [{"id": "a", "task": "x", "dependencies": ["a"]}]}
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(service.http.post("/v1/plans", json={"goal": "g"}))
        job = await only_job(service)
        await ran(service.database, workshop(Brain(make_plan=circle)), job)
    assert told(waiting.result()) == (422, "plan_invalid")
    assert waiting.result().json()["job"] == job


# Spoken to


async def letters(database: Database, job: str) -> list[tuple[str, Any]]:
    async with database.connection() as connection:
        rows = await connection.fetch("select kind, payload from dw_inbox where job = $1 order by id", job)
    return [(row["kind"], row["payload"]) for row in rows]


async def test_a_message_and_a_stop_reach_the_inbox(service: Service) -> None:
    job = await made(service)
    said = await service.http.post(f"/v1/jobs/{job}/messages", json={"text": "in euros"})
    assert (said.status_code, said.json()) == (202, {"job": job, "sent": "message"})
    assert (await service.http.post(f"/v1/jobs/{job}/stop")).status_code == 202
    assert await letters(service.database, job) == [("message", {"text": "in euros"}), ("stop", {})]
    for body in ({}, {"text": ""}, {"text": " "}, {"text": 1}, {"text": "x", "more": 1}):
        assert told(await service.http.post(f"/v1/jobs/{job}/messages", json=body))[0] == 422
    await service.http.post(f"/v1/jobs/{job}/cancel")
    for path, body in (("messages", {"text": "late"}), ("stop", {})):
        assert told(await service.http.post(f"/v1/jobs/{job}/{path}", json=body)) == (409, "job_ended")


async def test_a_job_that_nobody_runs_is_cancelled_at_once(service: Service) -> None:
    job = await made(service, plan=PLAN)
    response = await service.http.post(f"/v1/jobs/{job}/cancel")
    shown = response.json()
    assert (response.status_code, shown["status"], shown["error_code"]) == (202, "cancelled", "cancelled")
    assert shown["answer"]
    assert shown["ended_at"] is not None
    assert [(step["id"], step["status"]) for step in shown["steps"]] == [("s1", "cancelled"), ("s2", "cancelled")]
    events = await events_of(service.database, job)
    assert [(event["seq"], event["channel"]) for event in events] == [(1, "done")]
    assert events[0]["payload"]["status"] == "cancelled"
    assert {"answer", "iterations", "usage", "elapsed", "cost", "status"} <= events[0]["payload"].keys()
    again = await service.http.post(f"/v1/jobs/{job}/cancel")
    assert (again.status_code, again.json()) == (202, shown)
    assert (await service.http.get(f"/v1/jobs/{job}")).json() == shown
    brain = Brain()
    await ran(service.database, workshop(brain), job)  # whoever finds it in the queue has nothing to do
    assert (brain.kinds, (await service.http.get(f"/v1/jobs/{job}")).json()) == ([], shown)


async def test_a_job_is_cancelled_while_a_worker_claims_it(service: Service) -> None:
    """Whoever comes first ends it: once, in order, and both say the same."""
    work = workshop(Brain())
    for _ in range(10):
        job = await made(service, mode="react")
        cancelled, row = await asyncio.gather(
            service.http.post(f"/v1/jobs/{job}/cancel"), ran(service.database, work, job)
        )
        assert cancelled.status_code == 202
        events = await events_of(service.database, job)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert [event["channel"] for event in events].count("done") == 1
        shown = (await service.http.get(f"/v1/jobs/{job}")).json()
        assert shown["status"] in ("cancelled", "completed")
        assert events[-1]["payload"]["status"] == shown["status"]
        assert (await row_of(service.database, job))["owner"] is None
        assert row["id"] == job


async def test_a_waiting_job_that_nobody_runs_keeps_what_it_has_when_it_is_cancelled(service: Service) -> None:
    finished = await made(service, mode="dag")
    await ran(service.database, workshop(Brain(with_tools), [look_up, note]), finished)
    job, events = await made(service, mode="dag"), await events_of(service.database, finished)
    last = next(at for at, event in enumerate(events) if event["payload"].get("status") == "completed")
    async for _ in written(service.database, job, events[: last + 1], at_once=True):
        pass
    shown = (await service.http.post(f"/v1/jobs/{job}/cancel")).json()
    assert [step["status"] for step in shown["steps"]].count("completed") == 1
    assert {step["status"] for step in shown["steps"]} == {"completed", "cancelled"}
    assert shown["answer"] == "step result"
    assert shown["usage"]["calls"] > 0


async def test_a_running_job_is_cancelled_by_its_worker(service: Service) -> None:
    job = await made(service)
    async for _ in written(service.database, job, [{"channel": "phase", "step_id": None, "payload": {"phase": "x"}}],
                           release=False):  # fmt: skip
        response = await service.http.post(f"/v1/jobs/{job}/cancel")
    shown = response.json()
    assert (response.status_code, shown["status"], shown["cancel_requested"]) == (202, "running", True)
    row = await service.jobs.get("", job)
    assert row is not None
    assert (row["cancel"], row["ended_at"]) == (True, None)


async def test_a_call_is_decided_once(service: Service) -> None:
    job = await made(service)
    asked = {"call_id": "c1", "tool_name": "mail", "tool_args": {}, "status": "waiting", "reason": "", "deadline": None}
    path = f"/v1/jobs/{job}/approvals/c1"
    async for count in written(service.database, job, [approval(asked), approval({**asked, "status": "approved"})]):
        shown = (await service.http.get(f"/v1/jobs/{job}")).json()
        if count == 1:
            assert [(call["call_id"], call["step_id"]) for call in shown["approvals"]] == [("c1", "s1")]
            for body in ({}, {"approve": "yes"}, {"approve": 1}, {"approve": True, "why": "x"}):
                assert told(await service.http.post(path, json=body))[0] == 422
            response = await service.http.post(path, json={"approve": False, "reason": "no"})
            assert (response.status_code, response.json()) == (202, {"job": job, "sent": "decide"})
        else:
            assert shown["approvals"] == []
            assert told(await service.http.post(path, json={"approve": True})) == (409, "already_decided")
    decision = {"call_id": "c1", "approve": False, "reason": "no", "decided_by": "user"}
    assert await letters(service.database, job) == [("decide", decision)]
    other = await service.http.post(f"/v1/jobs/{job}/approvals/c2", json={"approve": True})
    assert told(other) == (404, "not_found")


def approval(payload: dict[str, Any]) -> dict[str, Any]:
    return {"channel": "approval", "step_id": "s1", "payload": payload}


async def test_a_decision_puts_a_job_that_gave_up_its_place_back_into_the_queue(service: Service) -> None:
    job = await made(service)
    waiting = {
        "call_id": "c1",
        "tool_name": "mail",
        "tool_args": {},
        "status": "waiting",
        "reason": "",
        "deadline": None,
    }
    async for _ in written(service.database, job, [approval(waiting)], at_once=True, status="needs_decision"):
        pass
    async with service.database.connection() as connection:
        await connection.execute("delete from pgqueuer")
    assert (await service.http.get(f"/v1/jobs/{job}")).json()["status"] == "needs_decision"
    response = await service.http.post(f"/v1/jobs/{job}/approvals/c1", json={"approve": True})
    assert response.status_code == 202
    async with service.database.connection() as connection:
        assert await connection.fetchval("select count(*) from pgqueuer where dedupe_key = $1", job) == 1


def test_a_job_ended_from_outside_has_no_step_left_open() -> None:
    row: dict[str, Any] = dict.fromkeys(
        ("started_at", "created_at", "ended_at", "parent", "summary"), None
    ) | {"id": "j", "mode": "dag", "goal": "g", "status": "running", "metadata": {}, "request": {}}  # fmt: skip
    steps = [{"id": "s1", "task": "x"}, {"id": "s2", "task": "y"}]
    events = [{"channel": "plan", "step_id": None, "payload": {"goal": "g", "steps": steps}}]
    job = cancelled(job_of(row, fold(row, events)))
    assert (job.status, job.error_code) == ("cancelled", "cancelled")
    assert {step.status for step in job.steps.values()} == {"cancelled"}
    assert all(step.ended_at is not None for step in job.steps.values())
