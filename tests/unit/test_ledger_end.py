"""What a tool leaves running can't spend on a job that has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executor import JobOptions, run_job
from planner import Plan, PlanStep
from registry import tool
from registry.errors import UsageError
from registry.messages import Message, ToolCall
from registry.testing import ScriptedLLM
from registry.tool_context import ToolContext


@pytest.mark.parametrize("budget", [None, "20k tokens"])
async def test_a_task_that_outlives_its_tool_gets_no_more_calls(budget: str | None) -> None:
    ended = asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    @tool
    async def start(ctx: ToolContext) -> str:
        """Starts something and does not wait for it."""

        async def later() -> Any:
            await ended.wait()
            return await ctx.llm().chat([Message.user("go on")])

        left.append(asyncio.create_task(later()))
        return "started it"

    def script(request: Any) -> Any:
        if not request.tools or any(message.role == "tool" for message in request.messages):
            return "done"
        return [ToolCall("c1", "start", {})]

    llm = ScriptedLLM(script)
    plan = Plan("g", (PlanStep("s1", "start it"),))
    job = await run_job(plan, llm, tools=[start], options=JobOptions(analyze=False), budget=budget)
    sent = len(llm.requests)
    ended.set()
    with pytest.raises(UsageError, match="the job has ended"):
        await left[0]
    assert (job.status, len(llm.requests)) == ("completed", sent)
