"""Tools that call models: on the job's account, as children of their call."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from agent import ReActAgent
from executor import run_job, start_job
from planner import Plan, PlanStep
from registry import ModelRegistry, Price, Tool, ToolContext, tool
from registry.errors import UsageError
from registry.llm_types import ChatRequest
from registry.messages import Message, ToolCall
from registry.testing import ScriptedLLM

PRICE = Price(Decimal(1), Decimal(2))


@tool(read_only=True)
async def summarise(text: str, context: ToolContext) -> str:
    """Summarises a text."""
    result = await context.llm("fast").chat([Message.user(f"summarise: {text}")])
    return f"{result.message.content} ({context.tool_name} {context.key})"


def agent_script(request: ChatRequest) -> Any:
    if any(message.role == "tool" for message in request.messages):
        return "the answer"
    return [ToolCall("c1", "summarise", {"text": "a long text"})]


def registry() -> tuple[ModelRegistry, ScriptedLLM, ScriptedLLM]:
    main = ScriptedLLM(agent_script, price=PRICE, model_id="main")
    small = ScriptedLLM(lambda request: "short", price=PRICE, model_id="small")
    models = ModelRegistry()
    models.register("main", main, roles=["general"])
    models.register("small", small, roles=["fast"])
    return models, main, small


def test_the_model_is_not_told_of_the_context() -> None:
    assert list(summarise.parameters["properties"]) == ["text"]
    assert summarise.parameters["required"] == ["text"]
    assert summarise.context == "context"


async def test_an_agent_of_its_own_counts_the_tools_call() -> None:
    llm = ScriptedLLM([[ToolCall("c1", "summarise", {"text": "t"})], "short", "the answer"], price=PRICE)
    result = await ReActAgent(llm, [summarise]).run("q")
    assert result.answer == "the answer"
    assert result.usage.calls == 3
    assert "short" in result.tool_calls[0].observation


async def test_two_of_the_agent_and_one_of_the_tool_are_three_in_a_job() -> None:
    models, main, small = registry()
    handle = start_job("q", models, tools=[summarise], mode="react", answer_mode="direct")
    job = await handle.result()
    assert (job.usage.calls, len(main.requests), len(small.requests)) == (3, 2, 1)
    assert job.by_role["tool"].calls == 1
    assert job.by_model["small"].calls == 1
    assert job.cost == job.by_model["main"].cost + job.by_model["small"].cost  # type: ignore[operator]


async def test_a_tools_model_call_is_the_child_of_its_call() -> None:
    models, _, _ = registry()
    handle = start_job(
        Plan("q", (PlanStep("s1", "summarise it"),)), models, tools=[summarise], mode="dag", options=None
    )
    job = await handle.result()
    assert job.steps["s1"].usage.calls == 3
    turns = [event for event in handle.log.events if event.channel == "turn" and event.payload["role"] == "tool"]
    ends = [event for event in handle.log.events if event.channel == "call" and event.payload["status"] == "end"]
    assert [event.payload["call_id"] for event in turns] == [ends[0].payload["key"]]
    assert turns[0].step_id == "s1"
    assert ends[0].payload["usage"]["calls"] == 1
    assert turns[0].seq < ends[0].seq


async def test_a_tool_object_names_or_hints_its_context() -> None:
    seen: list[ToolContext] = []

    def by_hint(ctx: ToolContext, x: int = 0) -> str:
        seen.append(ctx)
        return "done"

    def by_name(x: int = 0, where: Any = None) -> str:
        seen.append(where)
        return "done"

    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [Tool("a", "does a", schema, by_hint), Tool("b", "does b", schema, by_name, context="where")]
    llm = ScriptedLLM([[ToolCall("1", "a", {"x": 1}), ToolCall("2", "b", {"x": 2})], "ok"])
    await ReActAgent(llm, tools).run("q")
    assert sorted(context.tool_name for context in seen) == ["a", "b"]
    assert len({context.key for context in seen}) == 2


async def test_outside_a_run_there_is_no_model() -> None:
    with pytest.raises(UsageError, match="outside an agent's run"):
        ToolContext("x").llm()


async def test_a_model_that_fails_inside_a_tool_is_the_tools_error() -> None:
    from registry.errors import AuthError

    llm = ScriptedLLM([[ToolCall("c1", "summarise", {"text": "t"})], AuthError("no"), "sorry"])
    result = await ReActAgent(llm, [summarise]).run("q")
    assert result.tool_calls[0].is_error
    assert result.answer == "sorry"


async def test_run_job_reports_the_tools_cost() -> None:
    models, _, small = registry()
    job = await run_job("q", models, tools=[summarise], mode="react", answer_mode="direct")
    assert small.requests
    assert job.by_role["tool"].cost is not None
    assert job.by_role["tool"].cost > 0
