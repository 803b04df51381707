"""A job that is cut off anywhere goes on from there and comes to the same end: nothing told, paid or done twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.waits import Decision, PendingCall
from executor.job_options import JobOptions
from executor.job_types import JobRequest
from executor.options import RunOptions
from executor.recovery.lost_calls import LostCalls
from executor.results import StepResult
from planner import Plan, PlanStep
from registry import ModelRegistry, Price
from registry.budget import Budget
from registry.errors import BadRequestError, OverloadedError
from registry.llm_types import ChatRequest
from registry.messages import Event, Message, ToolCall
from registry.retry import RetryPolicy
from registry.testing import ScriptedLLM
from registry.tool_context import ToolContext
from registry.tools import Tool, tool
from tests.support import routed_scenarios
from tests.support.cuts import (
    Run,
    Say,
    Scenario,
    account,
    answer_of,
    choices,
    history,
    open_writes,
    run,
    turns,
    usage_told,
)
from tests.support.routed_scenarios import YES, text_of, tools

STEPS = [
    {"id": "a", "task": "find x", "dependencies": []},
    {"id": "b", "task": "double x", "dependencies": ["a"]},
    {"id": "c", "task": "halve x", "dependencies": ["a"]},
]
NO = {"achieved": False, "confidence": 0.2, "reasoning": "the sum is missing", "final_answer": ""}


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


MOST = 25
"""Places at which a job is cut off, where not all are tried."""
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
        done = sum(message.role == "tool" for message in request.messages)
        if kind == "step" and "find x" in text and "User follow-up" not in text and done == 3:
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


def plan_only() -> Scenario:
    def speaks(kind: str, request: ChatRequest, say: Say) -> Any:
        if "and y" not in text_of(request):
            say("message", text="and y")
        return brain(kind, request, say)

    return Scenario(JobRequest("sum it up", plan_only=True), speaks, tools, OPTIONS)


def step_cancelled() -> Scenario:
    """A step is cancelled while its model is asked; the plan ends without it."""

    def cancels(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "judge_result":
            return YES
        if kind == "step" and "double x" in text_of(request):
            say("cancel_step", step_id="b")
        return brain(kind, request, say)

    return Scenario(JobRequest("sum it up", mode="dag"), cancels, tools, OPTIONS, cuts=True)


def approved() -> Scenario:
    """Calls that wait for a human; one is approved, the other not."""

    def guarded(runs: list[str]) -> Sequence[Tool]:
        look_up, write = tools(runs)
        return [look_up, replace(write, requires_approval=True)]

    async def approve(call: PendingCall) -> Decision:
        return Decision(call.tool_args["text"] == "y", "says the boss", "boss")

    def alone(kind: str, request: ChatRequest, say: Say) -> Any:
        done = sum(message.role == "tool" for message in request.messages)
        if kind == "step" and done < 2:
            return [ToolCall(f"c{done}", "write", {"text": "yz"[done]})]
        return given().brain(kind, request, say)

    return Scenario(given().request, alone, guarded, OPTIONS, approve=approve)


def kept() -> Scenario:
    """A forked job: some steps have results already, one of them a failure that is nobody's business any more."""
    plan = Plan("g", (PlanStep("x", "one"), PlanStep("y", "two", ("x",)), PlanStep("f", "three")))
    results = {
        "x": StepResult("completed", "x is 41", attempts=1, model="m", started_at=1.0, ended_at=2.0, id="x"),
        "f": StepResult("failed", "", "auth: no", started_at=1.0, ended_at=2.0, error_code="auth", id="f"),
    }
    return Scenario(JobRequest("g", plan, kept=results, parent="job_0"), given().brain, tools, OPTIONS)


def said_while_replanning() -> Scenario:
    """What is said while the plan is changed changes it once more, and costs no round."""

    def speaks(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "revise_plan" and "and briefly" not in text_of(request):
            say("message", text="and briefly")
        return brain(kind, request, say)

    return Scenario(JobRequest("sum it up", mode="dag"), speaks, tools, OPTIONS)


def no_plan_after_all() -> Scenario:
    """The plan can't be changed: the job ends with what it has."""

    def spoils(kind: str, request: ChatRequest, say: Say) -> Any:
        return {"keep": [], "steps": []} if kind == "revise_plan" else brain(kind, request, say)

    return Scenario(JobRequest("sum it up", mode="dag"), spoils, tools, OPTIONS)


def failing() -> Scenario:
    """Steps fail in each way that a plan knows, one slot for all."""
    plan = Plan(
        "g",
        (
            PlanStep("x", "Broken.", on_failure="continue"),
            PlanStep("y", "two", ("x",)),
            PlanStep("z", "Broken.", ("y",), on_failure="fail_fast"),
            PlanStep("w", "three", ("z",)),
            PlanStep("v", "four", ("y",)),
        ),
    )

    def fails(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "judge_result":
            return YES
        broken = kind == "step" and "Broken." in request.messages[1].content[:130]
        return BadRequestError("no") if broken else brain(kind, request, say)

    options = replace(OPTIONS, run=replace(OPTIONS.run, max_concurrency=1))
    return Scenario(JobRequest("g", plan), fails, tools, options)


def tool_with_a_model() -> Scenario:
    """What a tool's own calls of models cost is the step's, and is paid once."""

    def asking(runs: list[str]) -> Sequence[Tool]:
        @tool(read_only=True)
        async def look_up(key: str, ctx: ToolContext) -> str:
            """Asks a model."""
            runs.append("look_up")
            return (await ctx.llm().chat([Message.user(f"what is {key}?")])).message.content

        return [look_up, tools(runs)[1]]

    def answers(kind: str, request: ChatRequest, say: Say) -> Any:
        return "41" if "what is x?" in text_of(request)[:20] else given().brain(kind, request, say)

    return Scenario(given().request, answers, asking, OPTIONS)


SCENARIOS = [
    planned, given, follow_up, late_message, stopped, react, react_twice, react_spoken_to, direct, checked, retried,
    fallback, react_fallback, budgeted, plan_only, step_cancelled, approved, kept,
    said_while_replanning, no_plan_after_all, failing, tool_with_a_model, *routed_scenarios.ROUTED,
]  # fmt: skip


@pytest.mark.parametrize("make", SCENARIOS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("most", [MOST, pytest.param(0, marks=[pytest.mark.heavy, pytest.mark.timeout(600)])])
async def test_from_every_place_to_the_same_end(make: Any, most: int) -> None:
    whole = await run(make())
    assert whole.events[-1].channel == "done"
    places = range(1, len(whole.events))
    if most and len(places) > most:
        places = sorted(random.Random(make.__name__).sample(places, most))
    for length in places:
        await _goes_on(make, whole, whole.events[:length])


@pytest.mark.parametrize("make", SCENARIOS, ids=lambda make: make.__name__)
async def test_one_worker_after_the_other_dies(make: Any) -> None:
    chance = random.Random(make.__name__)
    for _ in range(2):
        whole = await run(make())
        prefix = whole.events[: chance.randint(1, len(whole.events) - 1)]
        for _ in range(4):
            again = await _goes_on(make, whole, prefix)
            if len(prefix) >= len(again.events) - 2:
                break
            prefix = again.events[: chance.randint(len(prefix) + 1, len(again.events) - 1)]


async def _goes_on(make: Any, whole: Run, prefix: Sequence[Event]) -> Run:
    again = await run(make(), prefix)
    place = f"after {len(prefix)} of {len(whole.events)}: {prefix[-1].channel} {dict(prefix[-1].payload)}"[:400]
    assert again.events[: len(prefix)] == tuple(prefix), place
    _nothing_twice(again, len(prefix), place)
    lost = LostCalls()
    for event in again.events:
        lost.hear(event)
    if lost.turns():  # a budget has less left then
        assert again.job.usage.partial, place
        assert again.job.usage.calls == len(lost.turns()) + len(turns(again.events)), place
        assert all(event.seq <= len(prefix) for event in lost.turns()), place
    elif not open_writes(prefix, ["write"]):
        _the_same(whole, again, place, cuts=make().cuts)
    elif make in (
        given,
        react,
        direct,
        checked,
        retried,
        *routed_scenarios.ROUTED[:-1],
    ):  # no other round makes up for it, and nobody can be asked
        assert (again.job.status, again.job.error_code) in [
            (status, "uncertain_effect") for status in ("partial", "failed")
        ], place
    return again


def _nothing_twice(again: Run, length: int, place: str) -> None:
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


def _the_same(whole: Run, again: Run, place: str, *, cuts: bool) -> None:
    if cuts:
        ends = [{name: step.status for name, step in run.job.steps.items()} for run in (whole, again)]
        assert (ends[0], whole.job.status) == (ends[1], again.job.status), place
        return
    assert turns(again.events) == turns(whole.events), place
    assert choices(again.events) == choices(whole.events), place
    assert usage_told(again.events) == again.job.usage.to_json(), place
    assert account(again.job) == account(whole.job), place
    assert answer_of(again.events) == answer_of(whole.events), place
    told, known = history(again.events), history(whole.events)
    assert told.keys() == known.keys(), place
    for step in known:
        assert told[step] == known[step], place
