"""Identical calls of pure tools: one runs, the others wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executor import JobOptions, run_job
from planner import Plan, PlanStep
from registry import tool
from registry.call_cache import CallCache
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.testing import ScriptedLLM
from registry.tool_run import ToolOutcome


class Counted:
    """A call that takes `seconds` and comes to the same each time; `runs` counts how often it was made."""

    def __init__(self, outcome: ToolOutcome, seconds: float) -> None:
        self.outcome, self.seconds, self.runs = outcome, seconds, 0

    async def __call__(self) -> ToolOutcome:
        self.runs += 1
        await asyncio.sleep(self.seconds)
        return self.outcome


async def test_one_flight_for_all_who_ask_at_once_and_later() -> None:
    cache, call = CallCache(), Counted(ToolOutcome("7", False), 0.01)
    answers = await asyncio.gather(*(cache.answer("k", call) for _ in range(10)))
    answers.append(await cache.answer("k", call))
    assert call.runs == 1
    assert [outcome.text for outcome, _ in answers] == ["7"] * 11
    assert [known for _, known in answers].count(False) == 1


async def test_an_error_answers_those_who_wait_and_is_not_kept() -> None:
    cache, call = CallCache(), Counted(ToolOutcome("down", True), 0.01)
    await asyncio.gather(*(cache.answer("k", call) for _ in range(5)))
    assert call.runs == 1
    await cache.answer("k", call)
    assert call.runs == 2


async def test_when_the_one_who_runs_is_cancelled_the_next_takes_over() -> None:
    cache, call = CallCache(), Counted(ToolOutcome("7", False), 0.02)
    first = asyncio.create_task(cache.answer("k", call))
    await asyncio.sleep(0.005)
    others = [asyncio.create_task(cache.answer("k", call)) for _ in range(3)]
    await asyncio.sleep(0.005)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert [outcome.text for outcome, _ in await asyncio.gather(*others)] == ["7"] * 3
    assert call.runs == 2


@pytest.mark.parametrize(("pure", "expected"), [(True, 1), (False, 4)])
async def test_steps_of_a_job_share_pure_answers_only(pure: bool, expected: int) -> None:
    ran: list[Any] = []

    @tool(read_only=True, pure=pure)
    async def square(x: float) -> float:
        """Squares a number."""
        ran.append(x)
        await asyncio.sleep(0.01)
        return x * x

    def script(request: ChatRequest) -> Any:
        if request.stream:
            return "written"
        told = [message.content for message in request.messages if message.role == "tool"]
        if told:
            return told[-1]
        return [ToolCall("c", "square", {"x": 3} if "first" in request.messages[1].content else {"x": 3.0})]

    plan = Plan("q", tuple(PlanStep(name, f"{name} square") for name in ("first", "second", "third", "fourth")))
    job = await run_job(plan, ScriptedLLM(script), tools=[square], options=JobOptions(analyze=False))
    assert {step.output for step in job.steps.values()} == {"9.0"}
    assert len(ran) == expected
