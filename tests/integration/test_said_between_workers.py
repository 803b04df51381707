"""What is said to a job after its worker died and before the next one goes on is heard by that one before anything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from executor.store.database import Database, Row
from executor.store.jobs import JobStore
from executor.workers.inbox import Inbox
from executor.workers.stored_job import run_stored_job
from executor.workers.workshop import Workshop
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.tools import Tool, tool
from tests.support.processes import until
from tests.support.stored_jobs import Brain, cut, events_of, new_job, ran, told, workshop

STEP = [{"id": "a", "task": "x", "dependencies": []}]


async def left(database: Database, work: Workshop, job: str, channel: str) -> dict[str, Any]:
    """Runs the job until something of this channel is told, and leaves it; what was told."""
    task = asyncio.create_task(run_stored_job(database, uuid4(), job, work))

    async def there() -> bool:
        return bool(told(await events_of(database, job), channel))

    await until(there)
    task.cancel()
    await asyncio.wait({task})
    found: dict[str, Any] = told(await events_of(database, job), channel)[0]
    return found


async def said(database: Database, job: str, kind: str, **payload: Any) -> None:
    assert await JobStore(database).send("", job, kind, payload)


async def went_on(database: Database, work: Workshop, job: str) -> Row:
    async with asyncio.timeout(60), Inbox.open(database) as inbox:
        return await ran(database, replace(work, inbox=inbox), job)


def wiping(wiped: list[str]) -> tuple[Any, list[Tool]]:
    @tool(requires_approval=True)
    def wipe(disk: str) -> str:
        """Wipes a disk."""
        wiped.append(disk)
        return "wiped"

    def step(request: ChatRequest) -> Any:
        asked = any(message.role == "tool" for message in request.messages)
        return "done" if asked else [ToolCall("c", "wipe", {"disk": "sda"})]

    return Brain(step, STEP), [wipe]


async def test_a_message_to_a_job_that_had_written_its_answer(database: Database) -> None:
    """All but the last event was there: it is not ended over the head of who was told that the message is taken."""
    brain = Brain(None, STEP, revise_plan={"keep": ["a"], "steps": [{"id": "b", "task": "y"}]})
    job = await new_job(database)
    await ran(database, workshop(brain), job)
    await cut(database, job, len(await events_of(database, job)) - 1)
    await said(database, job, "message", text="in French")
    row = await went_on(database, workshop(brain), job)
    events = await events_of(database, job)
    assert [note["content"] for note in told(events, "inject")] == ["in French"]
    assert [step["id"] for step in row["summary"]["steps"]] == ["a", "b"]
    assert row["status"] == "completed"


@pytest.mark.parametrize("mode", ["react", "dag"])
async def test_a_decision_in_time_holds_however_late_a_worker_comes(database: Database, mode: str) -> None:
    wiped: list[str] = []
    brain, tools = wiping(wiped)
    work, job = workshop(brain, tools), await new_job(database, mode=mode)
    call = await left(database, work, job, "approval")
    await said(database, job, "decide", call_id=call["call_id"], approve=True, reason="", decided_by="ann")
    async with database.transaction() as connection:  # the deadline passes
        await connection.execute("update dw_events set ts = ts - 1000000 where job = $1", job)
    await went_on(database, work, job)
    approvals = told(await events_of(database, job), "approval")
    assert [told_["status"] for told_ in approvals] == ["waiting", "approved"]
    assert wiped == ["sda"]


async def test_a_step_that_is_to_be_cancelled_does_not_go_on(database: Database) -> None:
    async def never(request: ChatRequest) -> str:
        await asyncio.sleep(60)
        return "too late"

    work, job = (
        workshop(Brain(never, [*STEP, {"id": "b", "task": "y", "dependencies": ["a"]}])),
        await new_job(database),
    )
    await left(database, work, job, "step_progress")
    await said(database, job, "cancel_step", step_id="a")
    row = await went_on(database, work, job)
    assert [step["status"] for step in row["summary"]["steps"]] == ["cancelled", "skipped"]


async def test_a_stop_ends_the_wait_of_a_single_agent(database: Database) -> None:
    wiped: list[str] = []
    brain, tools = wiping(wiped)
    work, job = workshop(brain, tools), await new_job(database, mode="react")
    await left(database, work, job, "approval")
    await said(database, job, "stop")
    row = await went_on(database, work, job)
    assert (row["status"], wiped) == ("cancelled", [])
    assert told(await events_of(database, job), "approval")[-1]["status"] == "rejected"


@pytest.mark.parametrize("first", [0, 1])
async def test_one_call_of_two_was_approved_and_under_way(database: Database, first: int) -> None:
    """The other one waits on; of the one that was under way it is asked whether it took effect, and neither is made
    again."""
    wiped: list[str] = []
    _, tools = wiping(wiped)

    def both(request: ChatRequest) -> Any:
        asked = any(message.role == "tool" for message in request.messages)
        return "done" if asked else [ToolCall(f"c{disk}", "wipe", {"disk": disk}) for disk in ("sda", "sdb")]

    async def statuses(call: str) -> list[str]:
        approvals = told(await events_of(database, job), "approval")
        return [told_["status"] for told_ in approvals if told_["call_id"] == call]

    async def ends() -> bool:
        return any(told_["status"] == "end" for told_ in told(await events_of(database, job), "call"))

    async def uncertain() -> bool:
        return await statuses(done) == ["waiting", "approved", "uncertain"]

    work, job = workshop(Brain(both, STEP), tools), await new_job(database)
    keys = [f"{job}/a/1/1/{number}" for number in (1, 2)]
    done, waiting = keys[first], keys[1 - first]
    async with Inbox.open(database) as inbox, asyncio.timeout(60):
        here = replace(work, inbox=inbox)
        task = asyncio.create_task(run_stored_job(database, uuid4(), job, here))
        await until(lambda: statuses(waiting))
        await said(database, job, "decide", call_id=done, approve=True)
        await until(ends)
        task.cancel()
        await asyncio.wait({task})
        calls = [event["seq"] for event in await events_of(database, job) if event["channel"] == "call"]
        await cut(database, job, calls[0])  # it was begun
        task = asyncio.create_task(run_stored_job(database, uuid4(), job, here))
        await said(database, job, "decide", call_id=waiting, approve=True)
        await until(uncertain)
        await said(database, job, "decide", call_id=done, approve=True)
        await task
    events = await events_of(database, job)
    assert [told_["status"] for told_ in told(events, "done")] == ["completed"]
    assert sorted(wiped) == ["sda", "sdb"]
