"""Waits for a human that could outlive their job, and words that are no approval."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.waits import Decision, PendingCall
from executor import JobOptions, run_job, start_job
from planner import Plan, PlanStep
from registry import tool
from registry.errors import UsageError
from registry.messages import ToolCall
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
