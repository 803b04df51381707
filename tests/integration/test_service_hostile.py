"""Requests that nobody sends by mistake: each gets an answer that says what is wrong, and none breaks anything."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.service import Service, running


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as found:
        yield found


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("depth", [300, 900])
async def test_a_plan_that_is_nested_too_deeply_is_refused(service: Service, depth: int) -> None:
    plan = '{"steps": [{"id": "a", "task": "t"}], "more": ' + nested(depth) + "}"
    headers = {"content-type": "application/json"}
    response = await service.http.post("/v1/jobs", content='{"goal": "g", "plan": ' + plan + "}", headers=headers)
    assert response.status_code == 422, response.text
    assert response.json()["problems"][0][:2] == ["too_deep", ["plan"]]
    lines = f'{{"custom_id": "a", "goal": "g", "plan": {plan}}}\n' + json.dumps({"custom_id": "b", "goal": "g"})
    headers = {"content-type": "application/jsonl"}
    batch = (await service.http.post("/v1/batches?mode=run", content=lines, headers=headers)).json()
    assert (batch["counts"]["processing"], batch["counts"]["errored"]) == (1, 1)


async def test_a_budget_beyond_reckoning_is_refused(service: Service) -> None:
    for budget in ({"usd": "1e999999999999"}, {"seconds": 1e300}, 1e308):
        response = await service.http.post("/v1/jobs", json={"goal": "g", "budget": budget})
        assert (response.status_code, response.json()["code"]) == (422, "budget_invalid")


async def test_what_is_no_id_is_not_found_by_any_route(service: Service) -> None:
    for name in ("%00", "%ED%A0%80", "x" * 3_000, "job_%00"):
        for end in ("", "/events", "/plan", "/artifacts", "/artifacts/%00"):
            response = await service.http.get(f"/v1/jobs/{name}{end}")
            assert (response.status_code, response.json()["code"]) == (404, "not_found"), (name, end)


async def test_no_answer_repeats_a_key(service: Service) -> None:
    secret = "dwk_" + "aB3_dE6-gH9jK2mN5pQ8sT1vW4xY7zC0bF3hJ6kL9nR"  # as the service's own keys look
    for body in ({"goal": "g", secret: 1}, {"goal": "g", "models": [secret]}, {"goal": f"use {secret}"}):
        response = await service.http.post("/v1/jobs", json=body)
        assert response.status_code in (202, 422)
        assert secret not in response.text, body
    assert secret not in (await service.http.get("/v1/jobs")).text


async def test_a_parameter_that_is_none_is_refused_by_its_name(service: Service) -> None:
    job = (await service.http.post("/v1/jobs", json={"goal": "g"})).json()["id"]
    batch = await service.http.post("/v1/batches", json={"mode": "plan", "requests": [{"custom_id": "a", "goal": "g"}]})
    for method, path, name in (
        ("POST", "/v1/jobs?waits=5", "waits"),
        ("GET", "/v1/jobs?metadata.=1", "metadata."),
        ("GET", f"/v1/jobs/{job}?wait=5", "wait"),
        ("GET", f"/v1/jobs/{job}/events?from=3", "from"),
        ("GET", f"/v1/jobs/{job}/plan?fromat=dot", "fromat"),
        ("GET", "/v1/batches?metadata.a=b", "metadata.a"),
        ("GET", f"/v1/batches/{batch.json()['id']}/results?limit=3", "limit"),
        ("POST", "/v1/plans?n=1", "n"),
        ("GET", "/v1/tools?x", "x"),
    ):
        response = await service.http.request(method, path, json={"goal": "g"} if method == "POST" else None)
        problem = response.json()
        assert (response.status_code, problem["code"]) == (422, "unknown_field"), path
        assert problem["problems"][0][1] == [name]
    assert len((await service.http.get("/v1/jobs")).json()["data"]) == 1
    for path in ("/v1/models?after=x", "/healthz?now=1", "/metrics?x=1", "/v1/jobs?metadata.a=b&limit=3&status=queued"):
        assert (await service.http.get(path)).status_code == 200, path


async def test_a_body_that_is_no_text_is_told_like_one_that_is_no_json(service: Service) -> None:
    headers = {"content-type": "application/json"}
    for body in (b'{"goal": "\xff"}', b"{", b"\x00"):
        response = await service.http.post("/v1/jobs", content=body, headers=headers)
        assert (response.status_code, response.json()["code"]) == (400, "invalid_json"), body
    chat = await service.http.post("/v1/chat/completions", content=b'{"model": "\xff"}', headers=headers)
    assert (chat.status_code, chat.json()["error"]["code"]) == (400, "invalid_json")


async def test_a_batch_has_one_mode(service: Service) -> None:
    body = {"mode": "plan", "requests": [{"custom_id": "a", "goal": "g"}]}
    response = await service.http.post("/v1/batches?mode=run", json=body)
    assert (response.status_code, response.json()["problems"][0][1]) == (422, ["mode"])
    assert (await service.http.post("/v1/batches?mode=plan", json=body)).status_code == 202


async def test_an_empty_last_event_id_is_none(service: Service) -> None:
    job = (await service.http.post("/v1/jobs", json={"goal": "g"})).json()["id"]
    await service.http.post(f"/v1/jobs/{job}/cancel")
    response = await service.http.get(f"/v1/jobs/{job}/events", headers={"last-event-id": ""})
    assert "event: done" in response.text
    for wrong in ("abc", "-1", "1.5", str(2**70)):
        response = await service.http.get(f"/v1/jobs/{job}/events", headers={"last-event-id": wrong})
        assert (response.status_code, response.json()["code"]) == (422, "validation"), wrong


async def test_a_balancer_may_ask_with_head(service: Service) -> None:
    for path in ("/healthz", "/readyz"):
        response = await service.http.head(path)
        assert (response.status_code, response.content) == (200, b"")
