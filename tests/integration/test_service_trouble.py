"""When the database is slow, gone or of another version, and when the service itself is at fault."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from executor import create_app
from executor.settings_model import Settings
from executor.store.database import Database, DatabaseError
from executor.store.jobs import JobStore
from registry.errors import ConfigError
from registry.messages import ToolCall
from registry.tools import tool
from tests.support import postgres
from tests.support.service import Service, listening, offer, running
from tests.support.stored_jobs import Brain, events_of, ran, workshop

FILE = Path(__file__).parents[1] / "cases" / "execution.jsonl"
CASES = {row["id"]: row for row in map(json.loads, FILE.read_text(encoding="utf-8").splitlines())}


async def test_the_wait_for_a_connection_is_bounded(database_url: str) -> None:
    """ex-pool-wait-bounded"""
    case = CASES["ex-pool-wait-bounded"]
    async with running(database_url, size=1) as service, service.database.connection():
        loop = asyncio.get_running_loop()
        began = loop.time()
        response, ready, health = await asyncio.gather(
            *(service.http.get(path) for path in ("/v1/jobs", "/readyz", "/healthz"))
        )
        assert response.status_code == case["expect"]["http_status"] == 503
        assert loop.time() - began < case["expect"]["within_s"]
        assert (response.json()["code"], response.headers["retry-after"]) == ("busy", "1")
        assert (ready.status_code, health.status_code) == (503, 200)


async def test_a_database_that_is_gone(postgres_server: tuple[str, str], database_url: str) -> None:
    async with running(database_url) as service:
        job = (await service.http.post("/v1/jobs", json={"goal": "g"})).json()["id"]
        await postgres.dropped(postgres_server[0], database_url)
        for method, path in (("GET", f"/v1/jobs/{job}"), ("GET", "/v1/jobs"), ("GET", "/readyz")):
            response = await service.http.request(method, path)
            assert (response.status_code, response.json()["code"]) == (503, "database_unavailable"), path
            assert response.headers["retry-after"]
            assert postgres.name_of(database_url) not in response.text
        response = await service.http.post("/v1/jobs", json={"goal": "g"})
        assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")
        assert (await service.http.get("/healthz")).status_code == 200


async def test_another_version_s_database_is_refused(database_url: str) -> None:
    async with running(database_url) as service:
        async with service.database.connection() as connection:
            await connection.execute("insert into dw_migrations (number, name, sum) values (9999, 'new', 'x')")
        response = await service.http.get("/readyz")
        assert (response.status_code, response.json()["code"]) == (503, "database")
        assert "newer version" in response.json()["detail"]
    app = create_app(Settings.of({"database_url": database_url}, {}), workshop=offer())
    with pytest.raises(DatabaseError, match="newer version"):
        async with app.router.lifespan_context(app):
            pytest.fail("it has started")


async def test_what_is_not_configured_is_told_at_the_start() -> None:
    app = create_app(Settings(), workshop=offer())
    with pytest.raises(ConfigError, match="DAGWRIGHT_DATABASE_URL"):
        async with app.router.lifespan_context(app):
            pytest.fail("it has started")


async def test_the_database_of_the_settings_is_opened_and_closed(database_url: str) -> None:
    app = create_app(Settings.of({"database_url": database_url}, {}), workshop=offer())
    async with app.router.lifespan_context(app):
        database: Database = app.state.database
        assert (await JobStore(database).page("", limit=1)) == ([], False)
    assert database.pool.is_closing()


async def test_a_fault_of_its_own_shows_nothing_of_its_inside(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise KeyError("the inside: sk-secret-of-somebody-0123456789")

    monkeypatch.setattr("executor.service.routes.jobs.ordered", broken)
    with structlog.testing.capture_logs() as logged:
        async with running(database_url) as service:
            response = await service.http.post("/v1/jobs", json={"goal": "g"})
            assert (response.status_code, response.json()["code"]) == (500, "internal")
            assert "inside" not in response.text
            assert (await service.http.get("/v1/jobs")).status_code == 200
    assert "request_failed" in [entry["event"] for entry in logged]


async def test_a_given_application_is_described(database_url: str) -> None:
    app = create_app(Settings(), workshop=offer())
    app.openapi()
    async with running(database_url) as service, listening(service.app):
        response = await service.http.get("/docs")
    assert response.status_code == 200


# What tools bring, as the API's readers get it


def returning(value: Callable[[], Any]) -> Any:
    @tool(name="stats")
    def stats() -> Any:
        """Statistics."""
        return value()

    return stats


def once(request: Any) -> Any:
    if any(message.role == "tool" for message in request.messages):
        return "done"
    return [ToolCall("c1", "stats", {})]


OUTPUTS: dict[str, Callable[[], Any]] = {
    "ex-nan-output": lambda: {"mean": math.nan, "max": math.inf},
    "ex-nul-byte": lambda: CASES["ex-nul-byte"]["input"]["tool_output"],
    "ex-nul-literal-text": lambda: CASES["ex-nul-literal-text"]["input"]["tool_output"],
    "ex-lone-surrogate": lambda: "ok \ud83d end",
}


@pytest.mark.parametrize("name", OUTPUTS)
async def test_what_tools_bring_reaches_readers_as_strict_json(database_url: str, name: str) -> None:
    expected = CASES[name]["expect"]
    async with running(database_url) as service:
        job = await worked(service, OUTPUTS[name])
        response = await service.http.get(f"/v1/jobs/{job}")
        shown = strict(response.content)
        assert shown["status"] == expected.get("run_status", "completed")
        assert {step["status"] for step in shown["steps"]} == {expected.get("step_status", "completed")}
        async with service.http.stream("GET", f"/v1/jobs/{job}/events") as stream:
            told = (await stream.aread()).decode()  # whole UTF-8
        for line in told.splitlines():
            if line.startswith("data: "):
                strict(line.removeprefix("data: "))
        events = await events_of(service.database, job)
        seen = json.dumps([event["payload"] for event in events if event["channel"] == "step"])
        for part in expected.get("stored_text_contains", []):
            assert part in seen
        if name == "ex-nul-byte":
            assert "\\u0000" not in seen
        if expected.get("stored_text_equals_input"):
            assert json.dumps(OUTPUTS[name]())[1:-1] in seen


async def worked(service: Service, value: Callable[[], Any]) -> str:
    plan = {"steps": [{"id": "s1", "task": "work"}]}
    job = (await service.http.post("/v1/jobs", json={"goal": "g", "plan": plan})).json()["id"]
    await ran(service.database, workshop(Brain(once), [returning(value)]), job)
    return str(job)


def strict(text: str | bytes) -> Any:
    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)
