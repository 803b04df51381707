"""A job that is cut off anywhere goes on from there and comes to the same end: nothing told, paid or done twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from executor.job_options import JobOptions
from executor.job_types import JobRequest
from executor.options import RunOptions
from planner import Plan, PlanStep
from registry import ModelRegistry, Price
from registry.budget import Budget
from registry.errors import OverloadedError
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.retry import RetryPolicy
from registry.testing import ScriptedLLM
from registry.tool_context import ToolContext
from registry.tools import Tool, tool
from tests.support.cuts import Run, Say, Scenario, account, answer_of, history, open_writes, run, turns, usage_told

STEPS = [
    {"id": "a", "task": "find x", "dependencies": []},
    {"id": "b", "task": "double x", "dependencies": ["a"]},
    {"id": "c", "task": "halve x", "dependencies": ["a"]},
]
YES = {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": "judged"}
NO = {"achieved": False, "confidence": 0.2, "reasoning": "the sum is missing", "final_answer": ""}


def tools(runs: list[str]) -> Sequence[Tool]:
    @tool(read_only=True)
    def look_up(key: str) -> str:
        """Looks a key up."""
        runs.append("look_up")
        return f"value of {key}"

    @tool
    def write(text: str, ctx: ToolContext) -> str:
        """Writes a text down."""
        runs.append(ctx.key)
        return f"wrote {text}"

    return [look_up, write]


def text_of(request: ChatRequest) -> str:
    return "\n".join(message.content for message in request.messages)


def worker(request: ChatRequest) -> Any:
    """A step that looks something up, writes something down, and answers."""
    done = sum(message.role == "tool" for message in request.messages)
    if "sum again" in text_of(request):
        return "the sum is 6"
    if done == 0:
        return [ToolCall("c1", "look_up", {"key": "x"}), ToolCall("c2", "write", {"text": "y"})]
    return [ToolCall("c3", "write", {"text": "z"})] if done == 2 else "step result"


def brain(kind: str, request: ChatRequest, say: Say) -> Any:
    """Plans STEPS, finds the first round wanting, and adds a step in the second."""
    text = text_of(request)
    match kind:
        case "choose_mode":
            return {"mode": "dag", "domain_hint": None}
        case "make_plan":
            return {"steps": STEPS}
        case "judge_result":
            return YES if "the sum is 6" in text else NO
        case "revise_plan":
            return {"keep": ["a", "b"], "steps": [{"id": "e", "task": "sum again", "dependencies": ["a", "b"]}]}
        case "synthesis":
            return "the answer that was written at length"
    return worker(request)


OPTIONS = JobOptions(run=RunOptions(agent={"completion_check": False}))


def planned() -> Scenario:
    return Scenario(JobRequest("sum it up"), brain, tools, OPTIONS)


def given() -> Scenario:
    plan = Plan("g", (PlanStep("x", "one"), PlanStep("y", "two", ("x",)), PlanStep("z", "three")))

    def judge(kind: str, request: ChatRequest, say: Say) -> Any:
        return YES if kind == "judge_result" else brain(kind, request, say)

    return Scenario(JobRequest("g", plan), judge, tools, OPTIONS)


def follow_up() -> Scenario:
    """Something is said while a step runs: what has not begun is skipped, and the plan is changed for it."""

    def speaks(kind: str, request: ChatRequest, say: Say) -> Any:
        text = text_of(request)
        if kind == "step" and "find x" in text and "User follow-up" not in text and request.messages[-1].role == "tool":
            if sum(message.role == "tool" for message in request.messages) == 3:
                say("message", text="also name the source")
        if kind == "revise_plan":
            return {"keep": ["a"], "steps": [{"id": "s", "task": "sum again", "dependencies": ["a"]}]}
        return brain(kind, request, say)

    return Scenario(JobRequest("sum it up", mode="dag"), speaks, tools, OPTIONS)


def late_message() -> Scenario:
    """Something is said while the answer is written."""

    def speaks(kind: str, request: ChatRequest, say: Say) -> Any:
        text = text_of(request)
        if kind == "synthesis" and "in French" not in text:
            say("message", text="in French")
        if kind == "judge_result":
            return YES
        if kind == "revise_plan":
            return {"keep": ["a", "b", "c"], "steps": []}
        return brain(kind, request, say)

    return Scenario(JobRequest("sum it up", mode="dag"), speaks, tools, OPTIONS)


def stopped() -> Scenario:
    def stops(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "step" and "double x" in text_of(request) and request.messages[-1].role != "tool":
            say("stop")
        return brain(kind, request, say)

    return Scenario(JobRequest("sum it up", mode="dag"), stops, tools, OPTIONS)


def react() -> Scenario:
    return Scenario(JobRequest("what is x?", mode="react"), brain, tools, OPTIONS)


def react_twice() -> Scenario:
    """A further round of a single agent, for what was said while the answer was written."""

    def speaks(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "synthesis" and "and y?" not in text_of(request):
            say("message", text="and y?")
        if kind == "step" and request.messages[-1].content.startswith("and y?"):
            return "y is 7"
        return brain(kind, request, say)

    return Scenario(JobRequest("what is x?", mode="react"), speaks, tools, OPTIONS)


def react_spoken_to() -> Scenario:
    """What is said while the agent works is the agent's."""

    def speaks(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "step" and request.messages[-1].role != "tool" and "USER INTERRUPT" not in text_of(request):
            say("message", text="hurry up")
        return brain(kind, request, say)

    return Scenario(JobRequest("what is x?", mode="react"), speaks, tools, OPTIONS)


def direct() -> Scenario:
    def answers(kind: str, request: ChatRequest, say: Say) -> Any:
        return worker(request) if kind == "synthesis" else brain(kind, request, say)

    return Scenario(JobRequest("what is x?", mode="react", answer_mode="direct"), answers, tools, OPTIONS)


def checked() -> Scenario:
    """A step's first result does not pass; it is worked over."""

    def checks(kind: str, request: ChatRequest, say: Say) -> Any:
        text = text_of(request)
        if kind == "check_result":
            return {"passed": "better" in text, "feedback": "too short"}
        if kind == "judge_result":
            return YES
        if kind == "step" and "too short" in text:
            return "a better result"
        return brain(kind, request, say)

    plan = Plan("g", (PlanStep("x", "one"), PlanStep("y", "two", ("x",))))
    options = JobOptions(run=RunOptions(agent={"completion_check": False}, step_verification=True))
    return Scenario(JobRequest("g", plan), checks, tools, options)


def retried() -> Scenario:
    """A step ends without a result, and is tried again."""

    def fails(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "judge_result":
            return YES
        if kind == "step" and "one" in text_of(request) and "empty_response" not in text_of(request):
            return worker(request) if sum(message.role == "tool" for message in request.messages) < 2 else ""
        return brain(kind, request, say)

    plan = Plan("g", (PlanStep("x", "one"), PlanStep("y", "two", ("x",))))
    options = JobOptions(run=RunOptions(agent={"completion_check": False}, step_retries=1))
    return Scenario(JobRequest("g", plan), fails, tools, options)


def fallback() -> Scenario:
    """The first model's provider is out in the middle of a step, and at the end, too."""

    def models(ask: Any) -> ModelRegistry:
        def out(request: ChatRequest) -> Any:
            busy = sum(message.role == "tool" for message in request.messages) >= 2 or request.stream
            return OverloadedError("down") if busy else ask(request)

        registry, once = ModelRegistry(), RetryPolicy(tries=1)
        first = ScriptedLLM(out, model_id="first")
        first.retry = once
        registry.register("first", first, roles=["general"], fallbacks=["second"])
        registry.register("second", ScriptedLLM(ask, model_id="second"))
        return registry

    return Scenario(given().request, given().brain, tools, OPTIONS, models)


def react_fallback() -> Scenario:
    return Scenario(react().request, brain, tools, OPTIONS, fallback().models)


def budgeted() -> Scenario:
    """The budget ends in the middle of the work; the answer is written from what is kept for it."""

    def models(ask: Any) -> ModelRegistry:
        registry = ModelRegistry()
        registry.register("m", ScriptedLLM(ask, price=Price(1, 1)), roles=["general"])
        return registry

    def endless(kind: str, request: ChatRequest, say: Say) -> Any:
        done = sum(message.role == "tool" for message in request.messages)
        if kind == "step" and "two" in text_of(request):
            return [ToolCall(f"c{done}", "look_up", {"key": f"{done}"})]
        return brain(kind, request, say)

    plan = Plan("g", (PlanStep("x", "one"), PlanStep("y", "two", ("x",))))
    return Scenario(JobRequest("g", plan, budget=Budget.of({"tokens": 12_000})), endless, tools, OPTIONS, models)


SCENARIOS = [
    planned, given, follow_up, late_message, stopped, react, react_twice, react_spoken_to, direct, checked, retried,
    fallback, react_fallback, budgeted,
]  # fmt: skip


@pytest.mark.parametrize("make", SCENARIOS, ids=lambda make: make.__name__)
async def test_from_every_place_to_the_same_end(make: Any) -> None:
    whole = await run(make())
    assert whole.events[-1].channel == "done"
    for length in range(1, len(whole.events)):
        prefix = whole.events[:length]
        again = await run(make(), prefix)
        place = f"after {length} of {len(whole.events)}: {prefix[-1].channel} {dict(prefix[-1].payload)}"[:400]
        assert again.events[:length] == prefix, place
        _nothing_twice(whole, again, length, place)
        if not open_writes(prefix, ["write"]):
            _the_same(whole, again, place)


def _nothing_twice(whole: Run, again: Run, length: int, place: str) -> None:
    prefix, rest = again.events[:length], again.events[length:]
    known = {event.payload["key"] for event in prefix if event.channel == "call" and event.payload["status"] == "start"}
    assert not known & set(again.runs), place
    written = [key for key in again.runs if key != "look_up"]
    assert len(written) == len(set(written)), place
    ended = {
        event.step_id for event in prefix
        if event.channel == "step_progress" and event.payload["status"] in ("completed", "failed")
    }  # fmt: skip
    later = {event.step_id for event in rest if event.channel == "turn"}
    replaced = {
        event.step_id for event in rest if event.channel == "step_progress" and event.payload["status"] == "running"
    }
    assert not (ended & later) - replaced, place
    assert [event.seq for event in again.events] == list(range(1, len(again.events) + 1)), place
    assert [event.channel for event in again.events].count("done") == 1, place


def _the_same(whole: Run, again: Run, place: str) -> None:
    assert turns(again.events) == turns(whole.events), place
    assert usage_told(again.events) == again.job.usage.to_json(), place
    assert account(again.job) == account(whole.job), place
    assert answer_of(again.events) == answer_of(whole.events), place
    told, known = history(again.events), history(whole.events)
    assert told.keys() == known.keys(), place
    for step in known:
        assert told[step] == known[step], place
