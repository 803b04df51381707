"""Jobs under a limit of time: what is kept for the answer, and whose time does not count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.waits import Decision, PendingCall
from executor import JobOptions, RunOptions, run_job, start_job
from executor.job_time import JobTime
from planner import Plan, PlanStep
from registry import tool
from registry.errors import (
    BudgetExceededError,
)
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.testing import FakeClock, ScriptedLLM
from tests.support.virtual_time import VirtualClock, virtually


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def judged(request: ChatRequest, **verdict: Any) -> Any:
    name = request.tool_choice["name"]  # type: ignore[index]
    told = {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": "judged", **verdict}
    return [ToolCall("f", name, told)]


def events(handle: Any, channel: str = "budget") -> list[dict[str, Any]]:
    return [dict(event.payload) for event in handle.log.events if event.channel == channel]


TWO = Plan("goal", (PlanStep("a", "quick", ()), PlanStep("b", "slow", ())))


@tool(read_only=True)
async def find(key: str) -> str:
    """Finds a key in the table."""
    return f"value of {key}"


@virtually
async def test_a_job_that_is_out_of_time_answers_with_what_it_has() -> None:
    async def reply(request: ChatRequest) -> Any:
        if request.stream:
            await asyncio.sleep(20)
            return "the written answer"
        if "slow" in str(request.messages):
            await asyncio.sleep(3_600)
        return "step result"

    job = await run_job(TWO, ScriptedLLM(reply), budget={"seconds": 600}, clock=VirtualClock())
    assert (job.status, job.error_code, job.answer) == ("budget_exceeded", "budget_exceeded", "the written answer")
    assert [step.status for step in job.steps.values()] == ["completed", "cancelled"]
    assert "600 seconds" in (job.error or "")
    assert job.elapsed == 590  # 30 seconds are kept, 20 were needed


@virtually
async def test_an_answer_that_takes_too_long_is_replaced_by_the_results() -> None:
    async def reply(request: ChatRequest) -> Any:
        if request.stream or "slow" in str(request.messages):
            await asyncio.sleep(3_600)
        return "step result"

    job = await run_job(TWO, ScriptedLLM(reply), budget="10m", clock=VirtualClock())
    assert (job.status, job.answer, job.elapsed) == ("budget_exceeded", "step result", 600)


@virtually
async def test_a_single_agent_out_of_time_shows_what_it_found() -> None:
    async def reply(request: ChatRequest) -> Any:
        if request.stream:
            return "the written answer"
        if any(message.role == "tool" for message in request.messages):
            await asyncio.sleep(3_600)
        return [ToolCall("c", "find", {"key": "k"})]

    llm = ScriptedLLM(reply)
    job = await run_job("goal", llm, tools=[find], mode="react", budget={"seconds": 600}, clock=VirtualClock())
    assert (job.status, job.answer) == ("budget_exceeded", "the written answer")
    assert "value of k" in str(llm.requests[-1].messages[-1].content)


@virtually
async def test_a_cancelled_job_stays_cancelled_under_a_time_limit() -> None:
    async def reply(request: ChatRequest) -> Any:
        await asyncio.sleep(3_600)

    plan = Plan("goal", (PlanStep("a", "x", ()),))
    handle = start_job(plan, ScriptedLLM(reply), budget={"seconds": 3_600}, clock=VirtualClock())
    await settled()
    handle.cancel()
    assert (await handle.result()).status == "cancelled"


@virtually
async def test_time_that_ends_in_the_middle_of_the_answer_leaves_the_results() -> None:
    async def reply(request: ChatRequest) -> Any:
        if isinstance(request.tool_choice, dict):
            return judged(request)
        if request.stream:
            await asyncio.sleep(3_600)
        return "step result"

    plan = Plan("goal", (PlanStep("a", "x", ()),))
    handle = start_job(plan, ScriptedLLM(reply), budget={"seconds": 100}, clock=VirtualClock())
    job = await handle.result()
    assert (job.status, job.answer, job.elapsed) == ("budget_exceeded", "step result", 100)
    answers = events(handle, "answer")
    assert [event["status"] for event in answers] == ["start", "reset", "start", "delta", "done"]


@tool(requires_approval=True)
async def send(to: str) -> str:
    """Sends the parcel."""
    return f"sent to {to}"


@pytest.mark.parametrize("work", ["goal", Plan("goal", (PlanStep("a", "send it", ()),))], ids=["react", "dag"])
@virtually
async def test_a_slow_human_costs_no_time_of_the_budget(work: str | Plan) -> None:
    async def reply(request: ChatRequest) -> Any:
        await asyncio.sleep(5)
        if isinstance(request.tool_choice, dict):
            return judged(request)
        if request.stream or any(message.role == "tool" for message in request.messages):
            return "done"
        return [ToolCall("c", "send", {"to": "Ada"})]

    async def approve(call: PendingCall) -> Decision:
        await asyncio.sleep(3_600)
        return Decision(approve=True)

    mode: Any = "dag" if isinstance(work, Plan) else "react"
    given: dict[str, Any] = {"tools": [send], "mode": mode, "budget": {"seconds": 60}, "approve": approve}
    handle = start_job(work, ScriptedLLM(reply), clock=VirtualClock(), **given)
    job = await handle.result()
    assert (job.status, job.answer) == ("completed", "done")
    turns = len([event for event in handle.log.events if event.channel == "turn"])
    assert events(handle)[-1]["seconds"]["spent"] == 5 * turns
    assert job.elapsed == 3_600 + 5 * turns


@virtually
async def test_a_human_costs_time_while_another_step_works() -> None:
    async def reply(request: ChatRequest) -> Any:
        if request.stream:
            return "the written answer"
        if "slow" in str(request.messages):
            await asyncio.sleep(3_600)
        return [ToolCall("c", "send", {"to": "Ada"})]

    async def approve(call: PendingCall) -> Decision:
        await asyncio.sleep(7_200)
        return Decision(approve=True)

    plan = Plan("goal", (PlanStep("a", "send it", ()), PlanStep("b", "slow", ())))
    options = JobOptions(RunOptions(step_timeout=None))
    given: dict[str, Any] = {"tools": [send], "budget": {"seconds": 600}, "approve": approve, "options": options}
    job = await run_job(plan, ScriptedLLM(reply), clock=VirtualClock(), **given)
    assert (job.status, job.elapsed) == ("budget_exceeded", 570)


@virtually
async def test_a_limit_is_put_off_by_the_time_a_human_took() -> None:
    time = JobTime(60, VirtualClock())

    async def work() -> str:
        async with time.parked():
            await asyncio.sleep(3_600)
        return "done"

    assert await time.work(work) == "done"
    with pytest.raises(BudgetExceededError, match="budget of 60 seconds is used up"):
        await time.work(lambda: asyncio.sleep(3_600))


async def test_the_clock_stands_while_a_human_is_waited_for() -> None:
    clock = FakeClock()
    time = JobTime(100, clock)
    clock.now += 10
    time.stops()
    time.stops()
    clock.now += 1_000
    time.goes()
    clock.now += 1_000
    assert time.spent == 10
    time.goes()
    clock.now += 5
    assert (time.spent, time.left) == (15, 85)


async def test_the_clock_stands_when_all_living_steps_wait() -> None:
    clock = FakeClock()
    time = JobTime(None, clock)
    for step in ("a", "b"):
        time.step(step, "running")
    time.step("a", "waiting")
    clock.now += 1
    time.step("b", "completed")
    clock.now += 100
    assert time.spent == 1
    time.step("a", "running")
    clock.now += 1
    time.step("a", "completed")
    clock.now += 1
    assert time.spent == 3


async def test_the_time_that_is_kept_belongs_to_the_answer_once() -> None:
    time = JobTime(1_000, FakeClock())

    async def work() -> list[float]:
        limit = time._limit
        assert limit is not None
        seen = [limit.when() or 0.0]
        for change in (time.open_reserve, time.open_reserve, time.close_reserve, time.close_reserve):
            change()
            seen.append(limit.when() or 0.0)
        return [when - seen[0] for when in seen]

    assert await time.work(work) == pytest.approx([0, 30, 30, 0, 0])
