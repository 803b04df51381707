"""Jobs that meet the end of their budget: how they end, and what they still say."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from executor import JobOptions, run_job, start_job
from planner import Plan, PlanStep
from registry import ModelRegistry, Price, ToolContext, tool
from registry.errors import (
    BadRequestError,
    BudgetExceededError,
)
from registry.llm_types import ChatRequest
from registry.messages import LLMResult, Message, ToolCall, Usage
from registry.testing import ScriptedLLM

ONE = Price(Decimal(1), Decimal(1))


# Jobs


@tool(read_only=True)
def look_up(key: str) -> str:
    """Looks a key up in the table."""
    return f"value of {key}"


def judged(request: ChatRequest, **verdict: Any) -> Any:
    name = request.tool_choice["name"]  # type: ignore[index]
    told = {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": "judged", **verdict}
    return [ToolCall("f", name, told)]


def script(request: ChatRequest) -> Any:
    if isinstance(request.tool_choice, dict):
        return judged(request)
    return "the written answer" if request.stream else "step result"


def events(handle: Any, channel: str = "budget") -> list[dict[str, Any]]:
    return [dict(event.payload) for event in handle.log.events if event.channel == channel]


CHAIN = Plan("goal", tuple(PlanStep(f"s{n}", "do it", (f"s{n - 1}",) if n else ()) for n in range(30)))


async def test_a_job_whose_step_meets_the_end_answers_from_what_is_kept() -> None:
    llm = ScriptedLLM(script, max_output_tokens=1_000)
    handle = start_job(CHAIN, llm, budget={"tokens": 9_000})
    job = await handle.result()
    assert (job.status, job.error_code, job.answer) == ("budget_exceeded", "budget_exceeded", "the written answer")
    assert "does not allow this call" in (job.error or "")
    done = [step.status for step in job.steps.values()]
    assert done.count("completed") > 3
    assert "skipped" in done
    assert llm.requests[-1].stream
    told = events(handle)
    assert told[-1]["reason"] == "end"
    assert told[-1]["tokens"]["reserved"] == 0
    assert told[-1]["tokens"]["spent"] <= 9_000
    assert [event.channel for event in handle.log.events][-1] == "done"
    assert not [event async for event in handle.events() if event.channel == "budget"]


async def test_a_planner_that_meets_the_end_says_so_plainly() -> None:
    llm = ScriptedLLM(script)
    job = await run_job("goal " * 500, llm, mode="dag", budget={"tokens": 1_500})
    assert (job.status, job.error_code) == ("budget_exceeded", "budget_exceeded")
    assert "1500tokens" in job.answer
    assert llm.requests == []


async def test_an_analysis_that_does_not_fit_ends_the_job_with_the_steps_written_up() -> None:
    plan = Plan("goal", (PlanStep("a", "do it", ()),))
    long = "fact " * 1_500

    def reply(request: ChatRequest) -> Any:
        if isinstance(request.tool_choice, dict):
            return judged(request)
        return "the written answer" if request.stream else long

    llm = ScriptedLLM(reply, max_output_tokens=3_000)
    job = await run_job(plan, llm, budget={"tokens": 12_000})
    assert (job.status, job.answer) == ("budget_exceeded", "the written answer")
    assert not any(isinstance(request.tool_choice, dict) for request in llm.requests)


async def test_a_reply_that_the_budget_cut_is_the_budgets_fault() -> None:
    def reply(request: ChatRequest) -> Any:
        return LLMResult(Message.assistant("{"), Usage(500, request.max_tokens or 0), "length", "")

    llm = ScriptedLLM(reply, max_output_tokens=8_000)
    job = await run_job("goal", llm, mode="dag", budget={"tokens": 40_000})
    assert (job.status, job.error_code) == ("budget_exceeded", "budget_exceeded")
    assert "too short a reply" in (job.error or "")
    job = await run_job("goal", llm, mode="dag", budget={"tokens": 4_000_000})
    assert (job.status, job.error_code) == ("failed", "truncated")


async def test_a_single_agent_that_meets_the_end_answers_from_what_is_kept() -> None:
    def reply(request: ChatRequest) -> Any:
        if request.stream:
            return "the written answer"
        return [ToolCall(f"c{len(request.messages)}", "look_up", {"key": f"k{len(request.messages)}"})]

    llm = ScriptedLLM(reply, max_output_tokens=1_000)
    job = await run_job("goal", llm, tools=[look_up], mode="react", budget={"tokens": 60_000})
    assert (job.status, job.answer) == ("budget_exceeded", "the written answer")
    assert "value of k" in str(llm.requests[-1].messages[-1].content)


async def test_without_room_for_a_synthesis_the_results_are_the_answer() -> None:
    models = ModelRegistry()
    models.register("cheap", ScriptedLLM(lambda request: "step result", price=ONE), roles=["general"])
    dear = ScriptedLLM(lambda request: "never asked", price=Price(Decimal(1_000), Decimal(1_000)), model_id="dear")
    models.register("dear", dear, roles=["smart"])
    plan = Plan("goal", (PlanStep("a", "do it", ()), PlanStep("b", "do it", ("a",))))
    handle = start_job(plan, models, budget={"usd": "0.05"})
    job = await handle.result()
    assert (job.status, job.answer) == ("budget_exceeded", "step result")
    assert dear.requests == []
    assert [event.get("final") for event in events(handle) if event["reason"] == "refused"][-1] is True


async def test_a_done_job_whose_answer_can_not_be_afforded_says_so() -> None:
    models = ModelRegistry()
    models.register("cheap", ScriptedLLM(lambda request: "step result", price=ONE), roles=["general"])
    dear = ScriptedLLM([], price=Price(Decimal(1_000), Decimal(1_000)), model_id="dear")
    models.register("dear", dear, roles=["smart"])
    plan = Plan("goal", (PlanStep("a", "do it", ()),))
    job = await run_job(plan, models, budget={"usd": "0.05"}, options=JobOptions(analyze=False))
    assert (job.status, job.error_code, job.answer) == ("budget_exceeded", "budget_exceeded", "step result")
    assert [step.status for step in job.steps.values()] == ["completed"]


async def test_what_a_tool_asks_a_model_counts_too() -> None:
    refused: list[str] = []

    @tool(read_only=True)
    async def ask(text: str, context: ToolContext) -> str:
        """Asks a model."""
        try:
            return (await context.llm().chat([Message.user(text * 4_000)])).message.content
        except BudgetExceededError as error:
            refused.append(str(error))
            raise

    def reply(request: ChatRequest) -> Any:
        if request.stream or any(message.role == "tool" for message in request.messages):
            return "done"
        return [ToolCall("c", "ask", {"text": "long"})]

    llm = ScriptedLLM(reply, max_output_tokens=500)
    handle = start_job("goal", llm, tools=[ask], mode="react", budget={"tokens": 12_000})
    job = await handle.result()
    assert refused
    assert job.answer == "done"
    assert next(event["role"] for event in events(handle) if event["reason"] == "refused") == "tool"


async def test_a_stop_while_the_result_is_judged_pays_for_no_new_plan() -> None:
    plan = [{"id": "a", "task": "do it", "dependencies": []}]
    asked: list[str] = []

    def reply(request: ChatRequest) -> Any:
        if isinstance(request.tool_choice, dict):
            asked.append(request.tool_choice["name"])
            if asked[-1] == "make_plan":
                return [ToolCall("f", "make_plan", {"steps": plan})]
            handle.stop()
            return judged(request, achieved=False, confidence=0.1)
        return "text"

    handle = start_job("goal", ScriptedLLM(reply), mode="dag")
    job = await handle.result()
    assert (job.status, job.error_code) == ("cancelled", "stopped")
    assert asked == ["make_plan", "judge_result"]


@pytest.mark.parametrize("fails", ["judge_result", "revise_plan"])
async def test_a_message_that_comes_while_a_call_fails_is_taken_in(fails: str) -> None:
    heard: list[str] = []
    failed: list[str] = []

    def reply(request: ChatRequest) -> Any:
        if not isinstance(request.tool_choice, dict):
            return "text"
        name = request.tool_choice["name"]
        if name == "make_plan":
            return [ToolCall("f", name, {"steps": [{"id": "a", "task": "do it", "dependencies": []}]})]
        if name == fails and not failed:
            failed.append(name)
            handle.send("look at y, too")
            return BadRequestError("the server refuses this")
        if name == "revise_plan":
            heard.append(str(request.messages[-1].content))
            return [ToolCall("f", name, {"steps": [{"id": "b", "task": "y", "dependencies": []}], "keep": ["a"]})]
        return judged(request, achieved=bool(heard), confidence=0.9 if heard else 0.1)

    handle = start_job("goal", ScriptedLLM(reply), mode="dag")
    job = await handle.result()
    assert heard
    assert "look at y, too" in heard[0]
    assert job.status == "completed", job.error
