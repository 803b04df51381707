"""Public cases of running a service: many jobs on few connections, a tool's thread that is cancelled, faults inside."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from executor.store.database import Connection, Database
from executor.workers.inbox import Inbox
from executor.workers.stored_job import run_stored_job
from registry.messages import ToolCall
from registry.tools import tool
from tests.support.service import Service, running
from tests.support.stored_jobs import Brain, ran, workshop

FILE = Path(__file__).parents[1] / "cases" / "execution.jsonl"
CASES = {row["id"]: row for row in map(json.loads, FILE.read_text(encoding="utf-8").splitlines())}
PATIENCE = 30.0
PLAN = {"steps": [{"id": "s1", "task": "work"}]}


async def made(service: Service, **body: Any) -> str:
    response = await service.http.post("/v1/jobs", json={"goal": "g", **body})
    assert response.status_code == 202
    return str(response.json()["id"])


@pytest.fixture
def in_use(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many connections are in use at the moment."""
    count, connection = [0], Database.connection

    @asynccontextmanager
    async def counted(self: Database, **named: Any) -> AsyncIterator[Connection]:
        async with connection(self, **named) as found:
            count[0] += 1
            try:
                yield found
            finally:
                count[0] -= 1

    monkeypatch.setattr(Database, "connection", counted)
    return count


async def test_no_connection_is_held_during_a_model_call(database_url: str, in_use: list[int]) -> None:
    """ex-pool-held: all model calls of all jobs are under way at once, and every connection is free meanwhile."""
    jobs = CASES["ex-pool-held"]["input"]["runs"]
    waiting, go = [0], asyncio.Event()

    async def step(request: Any) -> str:
        waiting[0] += 1
        await go.wait()
        return "step result"

    async with running(database_url, size=5) as service, asyncio.TaskGroup() as group:
        ids = [await made(service, mode="react") for _ in range(jobs)]
        work = workshop(Brain(step))
        for job in ids:
            group.create_task(run_stored_job(service.database, uuid4(), job, work))
        async with asyncio.timeout(PATIENCE):
            while waiting[0] < jobs or in_use[0]:
                await asyncio.sleep(0.01)
        answers = await asyncio.gather(*(service.http.get(f"/v1/jobs/{job}") for job in ids))
        assert [answer.json()["status"] for answer in answers] == ["running"] * jobs
        go.set()
        ended = await asyncio.gather(*(finished(service, job) for job in ids))
    assert {job["status"] for job in ended} == {"completed"}


async def finished(service: Service, job: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            shown: dict[str, Any] = (await service.http.get(f"/v1/jobs/{job}")).json()
            if shown["ended_at"] is not None:
                return shown
            await asyncio.sleep(0.05)


async def test_a_tool_s_thread_that_outlives_its_job(database_url: str) -> None:
    """ex-thread-cancel: the thread can't be stopped; the job ends all the same, what the thread brings is dropped."""
    expected = CASES["ex-thread-cancel"]["expect"]
    entered, leave = threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        """Takes long."""
        entered.set()
        leave.wait(PATIENCE)
        return "too late"

    brain = Brain(lambda request: [ToolCall("c1", "slow", {})])
    async with running(database_url) as service, Inbox.open(service.database) as inbox:
        job = await made(service, plan=PLAN)
        async with asyncio.TaskGroup() as group:
            group.create_task(run_stored_job(service.database, uuid4(), job, workshop(brain, [slow], inbox)))
            assert await asyncio.to_thread(entered.wait, PATIENCE)
            calls = len(brain.kinds)
            assert (await service.http.post(f"/v1/jobs/{job}/cancel")).json()["cancel_requested"]
            shown = await finished(service, job)
            leave.set()
        assert shown["status"] == expected["run_status"]
        assert len(brain.kinds) - calls == expected["model_calls_after"]
        assert "too late" not in (await service.http.get(f"/v1/jobs/{job}")).text
        assert [step["status"] for step in shown["steps"]] == ["cancelled"]


async def test_a_fault_in_the_executor_s_own_bookkeeping(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ex-background-exception: the job ends visibly, with the error in its account."""
    expected = CASES["ex-background-exception"]["expect"]

    def broken(*given: Any) -> Any:
        raise KeyError("bookkeeping")

    monkeypatch.setattr("executor.dag._Execution.result", broken)
    async with running(database_url) as service:
        job = await made(service, plan=PLAN)
        await ran(service.database, workshop(Brain()), job)
        shown = (await service.http.get(f"/v1/jobs/{job}")).json()
    assert shown["status"] == expected["run_status"]
    assert (shown["error_code"], "KeyError" in shown["error"]) == ("internal", expected["error_recorded"])
    assert expected["log_lacks"] not in caplog.text
