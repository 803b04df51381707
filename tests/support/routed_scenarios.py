"""Jobs whose models a policy chooses, to be cut off anywhere: cascades of each kind, and a budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from executor.job_options import JobOptions
from executor.job_types import JobRequest
from executor.options import RunOptions
from planner import Plan, PlanStep
from registry import ModelRegistry, Price
from registry.budget import Budget
from registry.budget_route import BudgetPolicy
from registry.cascade import Cascade
from registry.errors import OverloadedError, RefusalError
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.retry import RetryPolicy
from registry.testing import ScriptedLLM
from registry.tool_context import ToolContext
from registry.tools import Tool, tool
from tests.support.cuts import Say, Scenario

PLAN = Plan("g", (PlanStep("x", "count alpha"), PlanStep("y", "count beta", ("x",)), PlanStep("z", "count gamma")))
AGENT = {"completion_check": False}
YES = {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": "judged"}
WEAK, STRONG = "weak", "strong"


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


def is_of(task: str, request: ChatRequest) -> bool:
    """Whether the request is for the step of this task."""
    found = re.search(r"(?:Your step: |<task>\n)count (\w+)", request.messages[1].content)
    return found is not None and found[1] == task


def text_of(request: ChatRequest) -> str:
    return "\n".join(message.content for message in request.messages)


def two_models(
    ask: Callable[[ChatRequest], Any],
    weak: Callable[[ChatRequest, Callable[[ChatRequest], Any]], Any] = lambda request, ask: ask(request),
    fallbacks: Sequence[str] = (),
) -> ModelRegistry:
    """A cheap model, which answers by `weak`, and a strong one, which is the default, too."""
    registry = ModelRegistry()
    for name, reply, roles, price in (
        (WEAK, lambda request: weak(request, ask), ["fast"], Price(1, 1)),
        (STRONG, ask, ["general", "reasoning"], Price(10, 10)),
    ):
        llm = ScriptedLLM(reply, model_id=name, price=price)
        llm.retry = RetryPolicy(tries=1)
        registry.register(name, llm, roles, fallbacks if name == WEAK else ())
    return registry


def brain(kind: str, request: ChatRequest, say: Say) -> Any:
    """Each step looks something up, writes something down, and answers; a report is sure, a check passes."""
    match kind:
        case "judge_result":
            return YES
        case "check_result":
            return {"passed": True, "feedback": ""}
        case "report_confidence":
            return {"why": "nothing", "confidence": 0.9}
        case "synthesis":
            return "the answer that was written at length"
    done = sum(message.role == "tool" for message in request.messages)
    if done == 0:
        return [ToolCall("c1", "look_up", {"key": "x"}), ToolCall("c2", "write", {"text": "y"})]
    return "step result"


def options(**run: Any) -> JobOptions:
    return JobOptions(run=RunOptions(agent=AGENT, **{"routing": Cascade(), **run}))


def unsure() -> Scenario:
    """The cheap model doubts its result of one step."""

    def doubts(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "report_confidence" and is_of("alpha", request):
            return {"why": "a guess", "confidence": 0.2}
        return brain(kind, request, say)

    return Scenario(JobRequest("g", PLAN), doubts, tools, options(), two_models)


def found_wrong() -> Scenario:
    """The cheap model's results do not pass their checks, nor does the strong one's first of one step."""

    def strict(kind: str, request: ChatRequest, say: Say) -> Any:
        text = text_of(request)
        if kind == "check_result":
            return {"passed": "better" in text or not is_of("beta", request), "feedback": "too short"}
        if kind == "step" and "too short" in text:
            return "a better result" if "poor" in text else "a poor one"
        return brain(kind, request, say)

    routing = Cascade(threshold=0.0, check_results=True)
    return Scenario(JobRequest("g", PLAN), strict, tools, options(routing=routing, step_verification=True), two_models)


def weak_fails() -> Scenario:
    """The cheap model fails in one step, the strong one, too, and then not."""

    def models(ask: Callable[[ChatRequest], Any]) -> ModelRegistry:
        def weak(request: ChatRequest, ask: Callable[[ChatRequest], Any]) -> Any:
            busy = any(message.role == "tool" for message in request.messages)
            return RefusalError("no") if busy and is_of("alpha", request) else ask(request)

        return two_models(ask, weak)

    def fails(kind: str, request: ChatRequest, say: Say) -> Any:
        text = text_of(request)
        if kind == "step" and "(refusal)" in text and "(empty_response)" not in text:
            return ""
        return brain(kind, request, say)

    return Scenario(JobRequest("g", PLAN), fails, tools, options(step_retries=1), models)


def weak_is_out() -> Scenario:
    """The cheap model's provider is out; the strong one stands in, and its result does not pass at first."""

    def models(ask: Callable[[ChatRequest], Any]) -> ModelRegistry:
        return two_models(ask, lambda request, ask: OverloadedError("down"), [STRONG])

    def strict(kind: str, request: ChatRequest, say: Say) -> Any:
        text = text_of(request)
        if kind == "check_result":
            return {"passed": "better" in text, "feedback": "too short"}
        return "a better result" if kind == "step" and "too short" in text else brain(kind, request, say)

    return Scenario(JobRequest("g", PLAN), strict, tools, options(step_verification=True), models)


def goal(mode: str = "synthesis") -> Scenario:
    """A single agent, whose result does not pass, by a cheap model that can't say how sure it is afterwards."""

    def wordless(kind: str, request: ChatRequest, say: Say) -> Any:
        if kind == "report_confidence" or "likely is it" in text_of(request):
            return "Hm."
        if kind == "synthesis" and mode == "direct":
            return brain("step", request, say)
        return brain(kind, request, say)

    request = JobRequest("what is x?", mode="react", answer_mode=mode)  # type: ignore[arg-type]
    return Scenario(request, wordless, tools, options(routing=Cascade(check_results=True)), two_models)


def direct_goal() -> Scenario:
    return goal("direct")


def goal_found_wrong() -> Scenario:
    """A single agent's result does not pass; afterwards something is said."""

    def strict(kind: str, request: ChatRequest, say: Say) -> Any:
        text = text_of(request)
        if kind == "check_result":
            return {"passed": "better" in text or "and y" in text, "feedback": "too short"}
        if kind == "synthesis" and "and y?" not in text:
            say("message", text="and y?")
        if kind == "step" and request.messages[-1].content.startswith("and y?"):
            return "y is 7"
        return "a better result" if kind == "step" and "too short" in text else brain(kind, request, say)

    scenario = goal()
    return replace(scenario, brain=strict)


def within_budget() -> Scenario:
    """Nobody knows what a step takes: the cheap model begins. Once one has ended the budget is enough for the other."""
    plan = Plan("g", tuple(PlanStep(name, name * 3, (before,) if before else ()) for name, before in
                           (("a", ""), ("b", "a"), ("c", "b"), ("d", "c"))))  # fmt: skip
    run = RunOptions(agent=AGENT, routing=BudgetPolicy(("strong", "weak"), (50_000, 1_000)))
    return Scenario(
        JobRequest("g", plan, budget=Budget.of({"usd": "0.6"})), brain, tools, JobOptions(run=run), two_models
    )


ROUTED = [unsure, found_wrong, weak_fails, weak_is_out, goal, direct_goal, goal_found_wrong, within_budget]
