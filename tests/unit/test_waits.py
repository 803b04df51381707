"""Calls that wait for a human: decided, rejected, out of time, or nobody there to ask."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.waits import ApprovalRequest, Decision, PendingCall, merged
from executor import JobHandle, JobOptions, RunOptions, run_job, start_job
from planner import Plan, PlanStep
from registry import tool
from registry.errors import UsageError
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.testing import ScriptedLLM
from registry.tools import Tool

NO_ANALYSIS = JobOptions(analyze=False)


class Ships:
    """A tool that writes and asks first; `sent` is what it did."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def tool(self, **declared: Any) -> Tool:
        def send(to: str) -> str:
            """Sends the parcel."""
            self.sent.append(to)
            return f"sent to {to}"

        return tool(requires_approval=True, **declared)(send)


def script(request: ChatRequest) -> Any:
    if request.stream and not request.tools:
        return "written up"
    told = next((message for message in reversed(request.messages) if message.role == "tool"), None)
    if told is not None:
        return f"done: {told.content}"
    return [ToolCall("c1", "send", {"to": "Ada"})]


def waiting(*ids: str) -> Plan:
    return Plan("ship", tuple(PlanStep(name, f"ship {name}") for name in ids))


async def until_waiting(handle: JobHandle, count: int = 1) -> None:
    async with asyncio.timeout(5):
        while len(handle.waiting) < count:
            await asyncio.sleep(0)


def approvals(handle: JobHandle) -> list[str]:
    return [event.payload["status"] for event in handle.log.events if event.channel == "approval"]


async def test_nobody_can_be_asked_is_a_rejection_at_once_that_says_so() -> None:
    ships, events = Ships(), []
    job = await run_job(
        waiting("s1"), ScriptedLLM(script), tools=[ships.tool()], options=NO_ANALYSIS, on_event=events.append
    )
    assert ships.sent == []
    assert "nobody can be asked" in job.steps["s1"].output
    told = [event.payload for event in events if event.channel == "approval"]
    assert [(payload["status"], payload["decided_by"]) for payload in told] == [("rejected", "nobody")]


@pytest.mark.parametrize("approve", [True, False])
async def test_the_handle_decides(approve: bool) -> None:
    ships = Ships()
    handle = start_job(waiting("s1"), ScriptedLLM(script), tools=[ships.tool()], options=NO_ANALYSIS)
    await until_waiting(handle)
    assert handle.status == "needs_decision"
    call = handle.waiting[0]
    assert (call.tool_name, call.tool_args, call.step_id) == ("send", {"to": "Ada"}, "s1")
    handle.decide(call.call_id, approve, "wrong address")
    job = await handle.result()
    assert handle.status == job.status
    assert ships.sent == (["Ada"] if approve else [])
    assert ("wrong address" in job.steps["s1"].output) is not approve
    assert approvals(handle) == ["waiting", "approved" if approve else "rejected"]


async def test_an_unknown_or_decided_call_can_not_be_decided() -> None:
    handle = start_job(waiting("s1"), ScriptedLLM(script), tools=[Ships().tool()], options=NO_ANALYSIS)
    await until_waiting(handle)
    with pytest.raises(UsageError, match="no call 'x' waits"):
        handle.decide("x", True)
    call = handle.waiting[0].call_id
    handle.decide(call, True)
    with pytest.raises(UsageError, match="waits for a decision"):
        handle.decide(call, False)
    await handle.result()


async def test_while_a_call_waits_the_slot_is_free_and_the_steps_clock_stands() -> None:
    ships = Ships()
    options = JobOptions(RunOptions(max_concurrency=1, step_timeout=0.5), analyze=False)

    def answer(request: ChatRequest) -> Any:
        if "Your step: ship b" in request.messages[1].content:
            return "b is done"
        return script(request)

    handle = start_job(waiting("a", "b"), ScriptedLLM(answer), tools=[ships.tool()], options=options)
    await until_waiting(handle)
    async with asyncio.timeout(5):
        async for event in handle.events():
            if event.step_id == "b" and event.payload.get("status") == "completed":
                break
    await asyncio.sleep(0.6)  # longer than a step may run
    handle.decide(handle.waiting[0].call_id, True)
    job = await handle.result()
    assert {name: step.status for name, step in job.steps.items()} == {"a": "completed", "b": "completed"}
    assert ships.sent == ["Ada"]


async def test_the_deadline_rejects() -> None:
    from agent import HookContext, HookResult, PreToolUseHook

    class Ask(PreToolUseHook):
        name = "ask"

        async def execute(self, ctx: HookContext) -> HookResult:
            return HookResult(approval=ApprovalRequest("costs money", deadline=0.05))

    ships = Ships()
    handle = start_job(waiting("s1"), ScriptedLLM(script), tools=[ships.tool()], options=NO_ANALYSIS, hooks=[Ask()])
    job = await handle.result()
    assert ships.sent == []
    assert "nobody decided within 0.05 s" in job.steps["s1"].output
    assert approvals(handle) == ["waiting", "expired"]


async def test_a_function_is_asked_and_a_broken_one_approves_nothing() -> None:
    async def yes(call: PendingCall) -> Decision:
        return Decision(True, "fine")

    async def broken(call: PendingCall) -> Decision:
        raise OSError("no terminal")

    async def nonsense(call: PendingCall) -> Decision:
        return "yes"  # type: ignore[return-value]

    for approve, sent in ((yes, ["Ada"]), (broken, []), (nonsense, [])):
        ships = Ships()
        job = await run_job(
            waiting("s1"), ScriptedLLM(script), tools=[ships.tool()], options=NO_ANALYSIS, approve=approve
        )
        assert ships.sent == sent
        assert job.status == "completed"


async def test_the_handle_may_be_quicker_than_the_function_which_is_then_cancelled() -> None:
    withdrawn = asyncio.Event()

    async def slow(call: PendingCall) -> Decision:
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        raise AssertionError

    ships = Ships()
    handle = start_job(waiting("s1"), ScriptedLLM(script), tools=[ships.tool()], options=NO_ANALYSIS, approve=slow)
    await until_waiting(handle)
    await asyncio.sleep(0)
    handle.decide(handle.waiting[0].call_id, True)
    await handle.result()
    assert withdrawn.is_set()
    assert ships.sent == ["Ada"]


async def test_cancelling_and_stopping_end_the_wait() -> None:
    for end, expected in (("cancel", "cancelled"), ("stop", "cancelled")):
        ships = Ships()
        handle = start_job(waiting("s1"), ScriptedLLM(script), tools=[ships.tool()], options=NO_ANALYSIS)
        await until_waiting(handle)
        getattr(handle, end)()
        async with asyncio.timeout(5):
            job = await handle.result()
        assert job.status == expected
        assert ships.sent == []
        assert handle.waiting == ()


async def test_a_single_agent_waits_too_and_a_stop_ends_it() -> None:
    ships = Ships()
    handle = start_job("ship it", ScriptedLLM(script), tools=[ships.tool()], mode="react", answer_mode="direct")
    await until_waiting(handle)
    assert handle.status == "needs_decision"
    handle.stop()
    async with asyncio.timeout(5):
        job = await handle.result()
    assert job.status == "cancelled"
    assert ships.sent == []


async def test_two_calls_of_one_turn_are_decided_apart() -> None:
    ships = Ships()

    def both(request: ChatRequest) -> Any:
        if any(message.role == "tool" for message in request.messages):
            return "done"
        return [ToolCall("c1", "send", {"to": "Ada"}), ToolCall("c2", "send", {"to": "Bob"})]

    handle = start_job(waiting("s1"), ScriptedLLM(both), tools=[ships.tool()], options=NO_ANALYSIS)
    await until_waiting(handle, 2)
    by_name = {call.tool_args["to"]: call.call_id for call in handle.waiting}
    handle.decide(by_name["Bob"], True)
    handle.decide(by_name["Ada"], False)
    await handle.result()
    assert ships.sent == ["Bob"]


def test_requests_are_merged() -> None:
    assert merged([None]) is None
    assert merged([ApprovalRequest("a", 5), None, ApprovalRequest("b", 3), ApprovalRequest("a", 9)]) == (
        ApprovalRequest("a; b", 3)
    )
