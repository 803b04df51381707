"""Hooks around whole jobs: for every call in every mode, a plan's steps included, and out of the model's reach."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agent.builtin_hooks import ApprovalHook, AuditLogHook, RateLimitHook, ReadOnlyHook, TruncateHook
from agent.hooks import Hook, HookContext, HookRegistry, HookResult, PostToolUseHook, PreToolUseHook, SessionStartHook
from agent.waits import Decision, PendingCall
from executor import Job, JobOptions, run_job
from executor.hooks_config import HookEntry
from planner import Plan, PlanStep
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.testing import FakeClock, ScriptedLLM
from registry.tools import Tool

NATIVE: dict[str, bool] | None = None
JSON_MODE = {"tool_call": False, "json_mode": True, "streaming": True}


class Tools:
    """`look` reads and `send` writes; `ran` is what they did."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        parameters = {"properties": {"to": {"type": "string", "maxLength": 9}}, "required": ["to"]}
        self.tools = [
            Tool("look", "Looks.", parameters, lambda to: self._did("look", to), read_only=True),
            Tool("send", "Sends.", parameters, lambda to: self._did("send", to)),
        ]

    def _did(self, name: str, to: str) -> str:
        self.ran.append(f"{name} {to}")
        return f"{name}ed {to} " + "x" * 5_000


def native(*calls: str) -> Any:
    """A model that makes these calls in one turn in each step, then says what came of them."""

    def script(request: ChatRequest) -> Any:
        told = [message.content for message in request.messages if message.role == "tool"]
        if told:
            return "done: " + " | ".join(told)
        return [ToolCall(f"c{n}", name, {"to": "Ada"}) for n, name in enumerate(calls)] if request.tools else "written"

    return script


def in_json(call: str) -> Any:
    """The same where the model can't call tools: the observation comes as a user's message."""

    def script(request: ChatRequest) -> Any:
        if request.stream:
            return "written"
        if sum(message.role == "assistant" for message in request.messages):
            return json.dumps({"type": "final_answer", "answer": f"done: {request.messages[-1].content}"})
        return json.dumps({"type": "tool_call", "tool_name": call, "tool_args": {"to": "Ada"}})

    return script


async def run(
    script: Any, tools: Tools, hooks: Iterable[Hook], *steps: str, abilities: dict[str, bool] | None = None, **more: Any
) -> Job:
    plan = Plan("work", tuple(PlanStep(name, f"work {name}") for name in steps or ("s1",)))
    llm = ScriptedLLM(script, abilities=abilities)
    options = JobOptions(analyze=False)
    return await run_job(plan, llm, tools=tools.tools, hooks=HookRegistry(hooks), options=options, **more)


def outputs(job: Job) -> str:
    return "\n".join(step.output or "" for step in job.steps.values())


@pytest.mark.parametrize(("abilities", "scripted"), [(NATIVE, native), (JSON_MODE, in_json)])
async def test_only_reading(abilities: dict[str, bool] | None, scripted: Any) -> None:
    tools = Tools()
    assert "looked Ada" in outputs(await run(scripted("look"), tools, [ReadOnlyHook()], abilities=abilities))
    blocked = outputs(await run(scripted("send"), tools, [ReadOnlyHook()], abilities=abilities))
    assert "The call was blocked: only tools that change nothing may be used here" in blocked
    assert tools.ran == ["look Ada"]


async def test_a_limit_is_shared_by_a_jobs_steps() -> None:
    tools = Tools()
    hooks = [RateLimitHook(2, 60, clock=FakeClock())]
    job = await run(native("look", "send"), tools, hooks, "a", "b", "c", "d")
    assert sorted(tools.ran) == ["look Ada"] * 2 + ["send Ada"] * 2
    assert outputs(job).count("has reached its limit of 2 calls in 60 s") == 4


async def test_a_human_decides_on_what_may_change_things() -> None:
    tools, asked = Tools(), []

    async def approve(call: PendingCall) -> Decision:
        asked.append(call)
        return Decision(call.step_id == "a", "one is enough")

    job = await run(native("look", "send"), tools, [ApprovalHook(deadline=60)], "a", "b", approve=approve)
    assert sorted(tools.ran) == ["look Ada", "look Ada", "send Ada"]
    assert [(call.tool_name, call.request.deadline) for call in asked] == [("send", 60)] * 2
    assert {call.step_id for call in asked} == {"a", "b"}
    assert "one is enough" in (job.steps["b"].output or "")
    assert "one is enough" not in (job.steps["a"].output or "")


async def test_a_human_sees_what_will_run_and_is_not_asked_in_vain() -> None:
    class Redirect(PreToolUseHook):
        async def execute(self, ctx: HookContext) -> HookResult:
            return HookResult(modified_args={"to": "Bob"})

    class Refuse(PreToolUseHook):
        async def execute(self, ctx: HookContext) -> HookResult:
            return HookResult(False, "never")

    asked: list[Any] = []

    async def approve(call: PendingCall) -> Decision:
        asked.append(dict(call.tool_args))
        return Decision(True)

    tools = Tools()
    await run(native("send"), tools, [ApprovalHook(), Redirect()], approve=approve)
    await run(native("send"), tools, [ApprovalHook(), Refuse()], approve=approve)
    assert (asked, tools.ran) == ([{"to": "Bob"}], ["send Bob"])


async def test_rewritten_arguments_are_validated_again() -> None:
    class Long(PreToolUseHook):
        async def execute(self, ctx: HookContext) -> HookResult:
            return HookResult(modified_args={"to": "x" * 10})

    tools = Tools()
    job = await run(native("send"), tools, [Long()])
    assert tools.ran == []
    assert "they no longer fit" in outputs(job)


async def test_every_call_stands_in_the_audit_log_as_it_ended(tmp_path: Path) -> None:
    tools, file = Tools(), tmp_path / "audit.jsonl"
    job = await run(native("look", "send"), tools, [AuditLogHook(file), TruncateHook(300)], "a", "b")
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    told = sorted((line["step_id"], line["tool"], line["outcome"], line["observation_chars"]) for line in lines)
    assert told == [
        ("a", "look", "ok", 300),
        ("a", "send", "ok", 300),
        ("b", "look", "ok", 300),
        ("b", "send", "ok", 300),
    ]
    assert {line["job_id"] for line in lines} == {job.id}
    assert {line["arguments"] for line in lines} == {'{"to": "Ada"}'}
    assert all(line["duration"] >= 0 and len(line["notes"]) == 1 for line in lines)
    await run(native("send"), tools, [AuditLogHook(file), ReadOnlyHook()], "c")
    last = json.loads(file.read_text("utf-8").splitlines()[-1])
    assert (last["step_id"], last["tool"], last["outcome"]) == ("c", "send", "blocked")


async def test_a_broken_guard_blocks_and_a_broken_observer_does_not() -> None:
    class Guard(PreToolUseHook):
        name = "guard"

        async def execute(self, ctx: HookContext) -> Any:
            return "go on"

    class Observer(PostToolUseHook):
        async def execute(self, ctx: HookContext) -> Any:
            raise RuntimeError("no")

    class Start(SessionStartHook):
        async def execute(self, ctx: HookContext) -> Any:
            raise RuntimeError("no")

    tools = Tools()
    job = await run(native("send"), tools, [Guard()])
    assert tools.ran == []
    assert "blocked: the guard 'guard' failed: it returned a str, not a HookResult" in outputs(job)
    job = await run(native("send"), tools, [Observer(), Start()])
    assert (job.status, tools.ran) == ("completed", ["send Ada"])


async def test_declared_hooks_hold_whoever_starts_the_job() -> None:
    tools = Tools()
    options = JobOptions(analyze=False, hooks=(HookEntry("read_only"),))
    plan = Plan("work", (PlanStep("s1", "work"),))
    llm = ScriptedLLM(native("send"))
    job = await run_job(plan, llm, tools=tools.tools, options=options)
    assert tools.ran == []
    assert "only tools that change nothing" in outputs(job)
    await run_job(plan, llm, tools=tools.tools, options=options, hooks=[])  # said explicitly
    assert tools.ran == ["send Ada"]
