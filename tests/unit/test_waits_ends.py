"""Waits for a human that could outlive their job, and words that are no approval."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.waits import Decision, PendingCall
from executor import JobOptions, RunOptions, run_job, start_job
from planner import Plan, PlanStep
from registry import tool
from registry.errors import UsageError
from registry.messages import Event, ToolCall
from registry.testing import ScriptedLLM

NO_ANALYSIS = JobOptions(analyze=False)
PLAN = Plan("ship", (PlanStep("s1", "ship it"),))


class Ships:
    """A tool that asks first; `sent` is what it did."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def tool(self) -> Any:
        @tool(requires_approval=True)
        def send(to: str) -> str:
            """Sends the parcel."""
            self.sent.append(to)
            return f"sent to {to}"

        return send


@pytest.mark.parametrize("mode", ["react", "dag"])
async def test_a_call_that_comes_after_the_stop_does_not_wait(mode: Any) -> None:
    ships, asked, stopped = Ships(), asyncio.Event(), asyncio.Event()

    async def script(request: Any) -> Any:
        if any(message.role == "tool" for message in request.messages):
            return "done"
        asked.set()
        await stopped.wait()
        return [ToolCall("c1", "send", {"to": "Ada"})]

    goal = PLAN if mode == "dag" else "ship it"
    handle = start_job(goal, ScriptedLLM(script), tools=[ships.tool()], mode=mode, options=NO_ANALYSIS)
    await asked.wait()
    handle.stop()
    stopped.set()
    async with asyncio.timeout(10):
        job = await handle.result()
    assert (job.status, ships.sent) == ("cancelled", [])


def calls_once(request: Any) -> Any:
    if any(message.role == "tool" for message in request.messages):
        return "done"
    return [ToolCall("c1", "send", {"to": "Ada"})]


async def test_only_true_approves() -> None:
    ships = Ships()

    async def approve(call: PendingCall) -> Decision:
        return Decision("no")  # type: ignore[arg-type]

    job = await run_job(PLAN, ScriptedLLM(calls_once), tools=[ships.tool()], options=NO_ANALYSIS, approve=approve)
    assert (job.status, ships.sent) == ("completed", [])
    handle = start_job(PLAN, ScriptedLLM(calls_once), tools=[ships.tool()], options=NO_ANALYSIS)
    async with asyncio.timeout(5):
        while not handle.waiting:
            await asyncio.sleep(0)
    with pytest.raises(UsageError, match="must be True or False"):
        handle.decide(handle.waiting[0].call_id, "false")  # type: ignore[arg-type]
    handle.decide(handle.waiting[0].call_id, False)
    await handle.result()
    assert ships.sent == []


async def test_a_question_that_ignores_its_end_does_not_hold_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.waits.GRACE", 0.05)
    free, asked = asyncio.Event(), asyncio.Event()

    async def approve(call: PendingCall) -> Decision:
        asked.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return Decision(True)

    ships = Ships()
    handle = start_job(PLAN, ScriptedLLM(calls_once), tools=[ships.tool()], options=NO_ANALYSIS, approve=approve)
    await asked.wait()
    handle.cancel()
    async with asyncio.timeout(10):
        assert (await handle.result()).status == "cancelled"
    free.set()
    await asyncio.sleep(0)
    assert ships.sent == []


async def test_an_attempt_after_one_that_broke_off_while_it_waited_has_a_slot_and_a_clock() -> None:
    def observe(event: Event) -> None:
        if event.channel == "call" and event.payload["tool_name"] == "look":
            raise RuntimeError("an observer that breaks")

    @tool
    async def look() -> str:
        """Looks."""
        return "seen it"

    turns: list[Any] = []

    async def script(request: Any) -> Any:
        turns.append(request)
        if len(turns) == 1:
            return [ToolCall("c1", "send", {"to": "Ada"}), ToolCall("c2", "look", {})]
        await asyncio.sleep(60)
        return "too late"

    options = JobOptions(RunOptions(step_timeout=0.5, step_retries=1, agent={"on_event": observe}), analyze=False)
    tools = [Ships().tool(), look]
    handle = start_job(PLAN, ScriptedLLM(script), tools=tools, options=options)
    async with asyncio.timeout(10):
        job = await handle.result()
    told = [event.payload["status"] for event in handle.log.events if event.channel == "step_progress"]
    assert (job.steps["s1"].error_code, len(turns)) == ("timeout", 2)
    assert told == ["running", "waiting", "running", "failed"]
