"""Steps done by real agents on scripted models."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from executor import DAGExecutor, RunOptions
from planner.plan import Plan, PlanStep
from registry.context import caller
from registry.errors import AuthError, ContextLengthError, ProviderError, RefusalError
from registry.messages import Event, LLMResult, Message, ToolCall, Usage
from registry.models import ModelRegistry
from registry.prices import Price
from registry.testing import ScriptedLLM
from registry.tools import tool


@tool(read_only=True)
def look_up(key: str) -> str:
    """Looks up a key."""
    return f"value of {key}"


ONE = Plan("goal", (PlanStep("a", "find it"),))


async def test_each_step_has_a_fresh_agent_on_the_model_of_its_hint() -> None:
    general, fast = ScriptedLLM(["from general"] * 2, model_id="g"), ScriptedLLM(["from fast"], model_id="f")
    models = ModelRegistry()
    models.register("big", general)
    models.register("small", fast, roles=["fast"])
    steps = (PlanStep("a", "one"), PlanStep("b", "two", ("a",), model_hint="fast"), PlanStep("c", "three", ("b",)))
    result = await DAGExecutor(models, [look_up]).execute(Plan("goal", steps))
    assert [(step.model, step.output) for step in result.steps.values()] == [
        ("big", "from general"),
        ("small", "from fast"),
        ("big", "from general"),
    ]
    assert len(general.requests[1].messages) == len(general.requests[0].messages) == 2  # no memory of other steps
    executor = DAGExecutor(models)
    assert executor._resolve_agent(steps[0]) is not executor._resolve_agent(steps[0])
    assert executor._resolve_agent(steps[1]).llm.model_id == "f"


async def test_tools_events_and_counts() -> None:
    seen: list[Event] = []
    llm = ScriptedLLM([[("look_up", {"key": "k"})], "it is: value of k"])
    result = await DAGExecutor(llm, [look_up], on_event=seen.append).execute(ONE)
    step = result.steps["a"]
    assert (step.output, step.iterations, step.tool_calls) == ("it is: value of k", 2, 1)
    assert step.usage.calls == 2
    assert {event.channel for event in seen} >= {"step", "step_progress"}
    assert {event.step_id for event in seen} == {"a"}
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (AuthError(), "auth"),
        (ProviderError("down", retryable=False), "provider_error"),
        (RefusalError("I won't"), "refusal"),
        (ContextLengthError("too long"), "context_length"),
    ],
)
async def test_an_agent_that_did_not_answer_has_failed(reply: Exception, code: str) -> None:
    result = await DAGExecutor(ScriptedLLM(lambda request: reply)).execute(ONE)
    step = result.steps["a"]
    assert step.status == "failed"
    assert step.error_code == code
    assert result.status == "failed"


async def test_the_iteration_limit_is_a_failure_that_keeps_what_there_is() -> None:
    llm = ScriptedLLM(lambda request: [("look_up", {"key": str(len(request.messages))})])
    options = RunOptions(agent={"max_iterations": 3})
    result = await DAGExecutor(llm, [look_up], options=options).execute(ONE)
    step = result.steps["a"]
    assert step.error_code == "max_iterations"
    assert step.error is not None
    assert step.error.startswith("max_iterations: ")
    assert "look_up" in step.output


async def test_an_unreadable_answer_is_a_failure_that_keeps_it() -> None:
    llm = ScriptedLLM(lambda request: "neither JSON nor anything", abilities={})
    result = await DAGExecutor(llm, [look_up]).execute(ONE)
    assert result.steps["a"].error_code == "unparsed"
    assert result.steps["a"].output == "neither JSON nor anything"


async def test_what_was_paid_for_counts_whatever_came_of_it() -> None:
    paid = LLMResult(
        Message.assistant(tool_calls=[ToolCall("1", "look_up", {"key": "k"})]), Usage(1_000, 1_000), "tool_calls", "m"
    )

    async def reply(request: Any) -> Any:
        if len(request.messages) > 2:
            await asyncio.Event().wait()
        return paid

    price = Price(input=Decimal(1), output=Decimal(1))
    executor = DAGExecutor(ScriptedLLM(reply, price=price), [look_up], step_timeout=0.1)
    result = await executor.execute(ONE)
    step = result.steps["a"]
    assert step.error_code == "timeout"
    assert step.usage.input_tokens == 1_000
    assert step.cost is not None
    assert step.cost > 0
    assert step.usage.partial  # the call that was cut off on its way


async def test_a_second_attempt_is_told_of_the_first() -> None:
    attempts: list[int] = []

    def reply(request: Any) -> Any:
        attempts.append(caller().attempt)
        return RefusalError("not like this") if len(attempts) == 1 else "done"

    llm = ScriptedLLM(reply)
    result = await DAGExecutor(llm, options=RunOptions(step_retries=1)).execute(ONE)
    assert result.status == "completed"
    assert result.steps["a"].attempts == 2
    assert attempts == [1, 2]
    assert "not like this" in llm.requests[1].messages[-1].content


async def test_a_long_dependency_reaches_the_step_uncut_where_the_model_has_room() -> None:
    table = "| k | v |\n|---|---|\n" + "| a | b |\n" * 6_000  # over 50,000 characters: too much for a plain message
    llm = ScriptedLLM([table, "done"], context_size=200_000, max_output_tokens=40_000)
    plan = Plan("goal", (PlanStep("a", "make it"), PlanStep("b", "read #a", ("a",))))
    result = await DAGExecutor(llm).execute(plan)
    assert result.status == "completed"
    assert table in llm.requests[1].messages[-1].content
