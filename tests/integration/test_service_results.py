"""What jobs bring beside their answers: plans in three languages, artifacts that run nothing; tools there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from planner.plan import Plan
from tests.support.service import Service, running

PLAN = {"steps": [{"id": "s1", "task": 'find "x"'}, {"id": "s2", "task": "double x", "dependencies": ["s1"]}]}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as found:
        yield found


async def made(service: Service, **body: Any) -> str:
    response = await service.http.post("/v1/jobs", json={"goal": "g", **body})
    return str(response.json()["id"])


async def test_a_plan_in_three_languages(service: Service) -> None:
    job = await made(service, plan=PLAN)
    path = f"/v1/jobs/{job}/plan"
    plan = await service.http.get(path)
    assert [step["id"] for step in plan.json()["steps"]] == ["s1", "s2"]
    made_of_it = Plan.from_json(plan.json())
    mermaid, dot = [await service.http.get(f"{path}?format={name}") for name in ("mermaid", "dot")]
    assert (mermaid.text, mermaid.headers["content-type"]) == (made_of_it.mermaid(), "text/vnd.mermaid; charset=utf-8")
    assert (dot.text, dot.headers["content-type"]) == (made_of_it.dot(), "text/vnd.graphviz; charset=utf-8")
    assert mermaid.headers["x-content-type-options"] == dot.headers["x-content-type-options"] == "nosniff"
    wrong = await service.http.get(f"{path}?format=svg")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "validation")
    without = await service.http.get(f"/v1/jobs/{await made(service)}/plan")
    assert (without.status_code, without.json()["code"]) == (404, "no_plan")


ARTIFACTS = {
    "notes.txt": ("text/plain", "inline", "text/plain; charset=utf-8"),
    "chart.png": ("image/png", "inline", "image/png"),
    "page.html": ("text/html", "attachment", "text/html; charset=utf-8"),
    "drawing.svg": ("image/svg+xml", "attachment", "image/svg+xml"),
    "feed.xml": ("application/xml", "attachment", "application/xml"),
    "code.js": ("text/javascript; charset=utf-16", "attachment", "text/javascript; charset=utf-8"),
    "odd": ("text/html\r\nX-Evil: 1", "attachment", "application/octet-stream"),
    "ü \"'/;\r\n.html": ("text/html", "attachment", "text/html; charset=utf-8"),
}


async def test_artifacts_can_run_nothing_in_a_browser(service: Service) -> None:
    job = await made(service)
    async with service.database.connection() as connection:
        for name, (mime, _, _) in ARTIFACTS.items():
            await connection.execute(
                "insert into dw_artifacts (job, name, mime, data) values ($1, $2, $3, $4)", job, name, mime, b"<b>"
            )
    listed = (await service.http.get(f"/v1/jobs/{job}/artifacts")).json()["data"]
    assert {row["name"]: row["size"] for row in listed} == dict.fromkeys(ARTIFACTS, 3)
    for name, (_, disposition, kind) in ARTIFACTS.items():
        if "/" in name:
            continue  # no tool can give such a name: see registry.artifacts
        response = await service.http.get(f"/v1/jobs/{job}/artifacts/{name}")
        assert (response.status_code, response.content) == (200, b"<b>"), name
        headers = response.headers
        assert headers["content-type"] == kind
        assert headers["content-disposition"].startswith(f"{disposition}; filename*=UTF-8''")
        assert headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert "x-evil" not in headers
    assert set((await service.http.get(f"/v1/jobs/{job}")).json()["artifacts"]) == set(ARTIFACTS)
    for name in ("none", "%00", "..%2f..%2fetc%2fpasswd", "x" * 1_000, "%ED%A0%80"):
        response = await service.http.get(f"/v1/jobs/{job}/artifacts/{name}")
        assert (response.status_code, response.json()["code"]) == (404, "not_found"), name


async def test_the_tools_there_are(service: Service) -> None:
    (tool,) = (await service.http.get("/v1/tools")).json()["data"]
    assert (tool["name"], tool["description"], tool["read_only"]) == ("lookup", "Looks up a word.", True)
    assert tool["parameters"]["properties"].keys() == {"word"}
