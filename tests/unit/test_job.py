"""The job pipeline: routes, rounds, follow-ups, stops, and a true account of how it ended."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from executor import JobOptions, RunOptions, run_job, start_job
from executor.rounds import after_round
from planner import Plan, PlanStep
from registry import ModelRegistry, Price
from registry.errors import AuthError, BadRequestError, OverloadedError, UsageError
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.testing import FakeClock, ScriptedLLM
from registry.tools import Tool, tool

DIAMOND = [
    {"id": "a", "task": "find x", "dependencies": []},
    {"id": "b", "task": "double x", "dependencies": ["a"]},
    {"id": "c", "task": "halve x", "dependencies": ["a"]},
    {"id": "d", "task": "sum up", "dependencies": ["b", "c"]},
]


@tool(read_only=True)
def look_up(key: str) -> str:
    """Looks a key up in the table."""
    return f"value of {key}"


def forced(request: ChatRequest) -> str:
    choice = request.tool_choice
    return str(choice["name"]) if isinstance(choice, dict) else ""


class Brain:
    """Answers each kind of call by a table that tests change; a callable gets the request. Counts the calls by kind."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "choose_mode": {"mode": "dag", "domain_hint": None},
            "make_plan": {"steps": DIAMOND},
            "judge_result": {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": "judged"},
            "step": "step result",
            "synthesis": "the written answer",
            **answers,
        }
        self.kinds: list[str] = []
        self.requests: list[tuple[str, ChatRequest]] = []

    def __call__(self, request: ChatRequest) -> Any:
        kind = forced(request)
        if not kind:
            kind = "synthesis" if request.stream else "step"
        self.kinds.append(kind)
        self.requests.append((kind, request))
        answer = self.answers[kind]
        if isinstance(answer, list) and not (answer and isinstance(answer[0], ToolCall)):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if callable(answer):
            answer = answer(request)
        return [ToolCall("f", kind, answer)] if isinstance(answer, dict) else answer

    def count(self, kind: str) -> int:
        return self.kinds.count(kind)


def models(brain: Brain, **options: Any) -> ScriptedLLM:
    return ScriptedLLM(brain, **options)


async def test_a_goal_becomes_a_plan_runs_and_is_written_up():
    brain, events = Brain(), []
    job = await run_job("sum it up", models(brain), tools=[look_up], on_event=events.append)
    assert (job.status, job.answer, job.mode, job.rounds) == ("completed", "the written answer", "dag", 1)
    assert [step.status for step in job.steps.values()] == ["completed"] * 4
    assert brain.kinds == ["choose_mode", "make_plan", "step", "step", "step", "step", "judge_result", "synthesis"]
    assert job.usage.calls == 8
    assert {role: usage.calls for role, usage in job.by_role.items()} == {
        "router": 1, "planner": 1, "step": 4, "analyzer": 1, "synthesis": 1,
    }  # fmt: skip
    phases = [event.payload["phase"] for event in events if event.channel == "phase"]
    assert phases == ["planning", "executing", "analyzing", "synthesizing"]
    assert events[-1].channel == "done"
    seqs = [event.seq for event in events]
    assert seqs == sorted(set(seqs))
    text = "".join(event.payload.get("content", "") for event in events if event.channel == "answer")
    assert text == job.answer


async def test_dependencies_results_reach_the_steps():
    brain = Brain(step=["41", "82", "20.5", "102.5"])
    await run_job("goal", models(brain), mode="dag", options=JobOptions())
    last = [request for kind, request in brain.requests if kind == "step"][-1]
    text = "\n".join(message.content for message in last.messages)
    assert "82" in text
    assert "20.5" in text


async def test_react_mode_is_one_agent_and_one_synthesis():
    brain = Brain(step=[[ToolCall("c", "look_up", {"key": "a"})], "found"])
    job = await run_job("what is a?", models(brain), tools=[look_up], mode="react")
    assert (job.status, job.answer) == ("completed", "the written answer")
    assert brain.kinds == ["step", "step", "synthesis"]
    assert job.plan is None


async def test_the_router_decides():
    brain = Brain(choose_mode={"mode": "react", "domain_hint": None}, step="hello", synthesis="Hello!")
    assert (await run_job("hi", models(brain))).mode == "react"


async def test_a_domain_takes_the_reasoning_model_and_asks_for_sources():
    brain = Brain(choose_mode={"mode": "dag", "domain_hint": "medical"})
    registry = ModelRegistry()
    registry.register("plain", models(brain), roles=["general"])
    deep = Brain()
    registry.register("deep", models(deep, model_id="deep"), roles=["reasoning"])
    job = await run_job("goal", registry)
    assert {step.model for step in job.steps.values()} == {"deep"}
    assert "source" in deep.requests[0][1].messages[0].content


async def test_not_achieved_replans_as_a_diff_and_keeps_finished_steps():
    verdicts = [
        {"achieved": False, "confidence": 0.3, "reasoning": "the sum is missing", "final_answer": ""},
        {"achieved": True, "confidence": 0.9, "reasoning": "ok", "final_answer": ""},
    ]
    revised = {"keep": ["a", "b"], "steps": [{"id": "e", "task": "sum again", "dependencies": ["a", "b"]}]}
    brain = Brain(judge_result=verdicts, revise_plan=revised)
    handle = start_job("goal", models(brain), mode="dag")
    job = await handle.result()
    assert (job.status, job.rounds) == ("completed", 2)
    assert brain.count("step") == 5
    diff = next(event for event in handle.log.events if event.channel == "plan_diff").payload
    assert (diff["kept"], diff["added"], diff["dropped"]) == (["a", "b"], ["e"], ["c", "d"])


async def test_rounds_are_bounded_and_the_account_is_true():
    no = {"achieved": False, "confidence": 0.2, "reasoning": "still nothing", "final_answer": ""}
    count = iter(range(100))
    brain = Brain(
        judge_result=no,
        revise_plan=lambda request: {"keep": [], "steps": [{"id": f"n{next(count)}", "task": f"try {next(count)}"}]},
    )
    job = await run_job("goal", models(brain), mode="dag")
    assert (job.status, job.rounds, brain.count("judge_result")) == ("partial", 3, 3)
    assert job.error == "still nothing"


async def test_confidence_stops_replanning():
    no = {"achieved": False, "confidence": 0.8, "reasoning": "nearly", "final_answer": ""}
    job = await run_job("goal", models(Brain(judge_result=no)), mode="dag")
    assert (job.status, job.rounds) == ("partial", 1)


async def test_a_given_plan_is_run_as_it_is():
    plan = Plan("do both", (PlanStep("x", "one"), PlanStep("y", "two", ("x",))))
    no = {"achieved": False, "confidence": 0.1, "reasoning": "no", "final_answer": ""}
    brain = Brain(judge_result=no)
    job = await run_job(plan, models(brain))
    assert job.rounds == 1
    assert "make_plan" not in brain.kinds
    assert "choose_mode" not in brain.kinds
    assert [step.id for step in job.plan.steps] == ["x", "y"]  # type: ignore[union-attr]


async def test_a_failed_step_is_never_a_success():
    def step(request: ChatRequest) -> Any:
        return BadRequestError("no") if "double" in request.messages[-1].content.split("\n")[0] + str(request) else "ok"

    plan = Plan("g", (PlanStep("a", "fine"), PlanStep("b", "double it")))
    job = await run_job(plan, models(Brain(step=step)))
    assert (job.steps["a"].status, job.steps["b"].status) == ("completed", "failed")
    assert job.status == "partial"
    assert job.error_code == "bad_request"


async def test_nothing_done_means_failed_without_paying_for_a_verdict():
    brain = Brain(step=BadRequestError("no"))
    job = await run_job(Plan("g", (PlanStep("a", "x"),)), models(brain))
    assert (job.status, brain.count("judge_result"), brain.count("synthesis")) == ("failed", 0, 0)
    assert "bad_request" in job.answer


@pytest.mark.parametrize("kind", ["choose_mode", "make_plan", "step", "judge_result"])
async def test_auth_errors_fail_the_job_at_once_in_any_role(kind: str):
    brain = Brain(**{kind: AuthError("the key is wrong")})
    job = await run_job("goal", models(brain))
    assert (job.status, job.error_code) == ("failed", "auth")
    assert brain.kinds[-1] == kind
    if kind == "step":
        assert brain.count("step") == 1


async def test_an_analyzer_outage_is_no_verdict():
    brain = Brain(judge_result=OverloadedError("busy"))
    job = await run_job("goal", models(brain, clock=FakeClock()), mode="dag")
    assert (job.status, job.error_code) == ("partial", "overloaded")
    assert "step result" in job.answer


async def test_synthesis_falls_back_to_the_analysis_then_to_the_results():
    job = await run_job("goal", models(Brain(synthesis=BadRequestError("no"))), mode="dag")
    assert (job.status, job.answer) == ("completed", "judged")
    verdict = {"achieved": True, "confidence": 0.9, "reasoning": "", "final_answer": ""}
    job = await run_job("goal", models(Brain(synthesis="", judge_result=verdict)), mode="dag")
    assert job.answer == "step result"


async def test_a_plan_that_stays_invalid_fails_the_job_before_anything_runs():
    cycle = {
        "steps": [{"id": "a", "task": "x", "dependencies": ["b"]}, {"id": "b", "task": "y", "dependencies": ["a"]}]
    }
    brain = Brain(make_plan=cycle)
    job = await run_job("goal", models(brain), mode="dag")
    assert (job.status, job.error_code, brain.count("make_plan"), brain.count("step")) == (
        "failed",
        "plan_invalid",
        2,
        0,
    )


async def test_a_follow_up_stops_the_plan_and_replans_without_using_a_round():
    handle: Any = None

    def step(request: ChatRequest) -> str:
        if brain.count("step") == 1:
            handle.send("also for Porto")
        return "ok"

    revised = {"keep": ["a"], "steps": [{"id": "p", "task": "Porto", "dependencies": ["a"]}]}
    brain = Brain(step=step, revise_plan=revised)
    handle = start_job("goal", models(brain), mode="dag", options=JobOptions(max_replan_rounds=1))
    job = await handle.result()
    assert job.status == "completed"
    assert "[User follow-up]: also for Porto" in job.goal
    reasons = [e.payload["error"] for e in handle.log.events if e.channel == "step_progress" and e.payload["error"]]
    assert set(reasons) == {"Skipped — user changed requirements"}
    planning = next(request for kind, request in brain.requests if kind == "revise_plan")
    assert "also for Porto" in planning.messages[-1].content


async def test_a_message_during_synthesis_resets_the_answer_and_replans():
    handle: Any = None

    def write(request: ChatRequest) -> str:
        if brain.count("synthesis") == 1:
            handle.send("shorter")
        return "a long answer that is streamed in several pieces"

    revised = {"keep": ["a", "b", "c", "d"], "steps": [{"id": "s", "task": "shorten", "dependencies": ["d"]}]}
    brain = Brain(synthesis=write, revise_plan=revised)
    handle = start_job("goal", models(brain), mode="dag")
    job = await handle.result()
    assert (job.status, job.rounds) == ("completed", 2)
    answer = ""
    for event in handle.log.events:
        if event.channel == "answer":
            answer = "" if event.payload["status"] == "reset" else answer + event.payload.get("content", "")
    assert answer == job.answer


async def test_stop_ends_with_grace_and_what_there_is():
    handle: Any = None

    def step(request: ChatRequest) -> str:
        handle.stop()
        return "first result"

    brain = Brain(step=step)
    handle = start_job("goal", models(brain), mode="dag")
    job = await handle.result()
    assert job.status == "cancelled"
    assert job.steps["a"].status == "completed"
    assert {job.steps[name].status for name in "bcd"} == {"skipped"}
    assert "first result" in job.answer
    assert brain.count("synthesis") == 0


async def test_cancel_ends_at_once_with_a_done_event_and_no_task_left():
    async def slow(request: ChatRequest) -> str:
        await asyncio.sleep(60)
        return ""

    handle = start_job("goal", models(Brain(step=slow)), mode="dag")
    while not any(event.channel == "step_progress" for event in handle.log.events):
        await asyncio.sleep(0.01)
    handle.cancel()
    job = await handle.result()
    assert job.status == "cancelled"
    assert handle.log.events[-1].channel == "done"
    assert job.usage.partial  # the cancelled call may have cost something
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_run_job_propagates_after_the_done_event():
    async def slow(request: ChatRequest) -> str:
        await asyncio.sleep(60)
        return ""

    events: list[Any] = []
    task = asyncio.create_task(run_job("goal", models(Brain(step=slow)), mode="dag", on_event=events.append))
    while not any(event.channel == "step_progress" for event in events):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events[-1].channel == "done"


async def test_readers_see_the_history_once_in_order_and_can_resume():
    handle = start_job("goal", models(Brain()), mode="dag")
    first = [event async for event in handle.events()]
    again = [event async for event in handle.events(after=first[3].seq)]
    assert again == first[4:]
    assert not {"turn", "call", "job_started", "verdict"} & {event.channel for event in first}


async def test_costs_are_summed_and_unknown_is_not_zero():
    priced = models(Brain(), price=Price(Decimal(1), Decimal(2)))
    job = await run_job("goal", priced, mode="dag")
    assert job.cost is not None
    assert job.cost > 0
    assert not job.usage.partial
    job = await run_job("goal", models(Brain()), mode="dag")
    assert job.cost is None or job.usage.partial


async def test_wrong_use_is_refused_clearly():
    llm = models(Brain())
    with pytest.raises(UsageError, match="a budget has no 'euro'"):
        await run_job("goal", llm, budget={"euro": 1})
    with pytest.raises(UsageError, match="mode"):
        await run_job("goal", llm, mode="fast")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="empty"):
        await run_job("  ", llm)


async def test_history_given_as_dicts_is_refused_with_what_is_right():
    with pytest.raises(UsageError, match=r"not dict: use Message\.user"):
        await run_job("goal", models(Brain()), history=[{"role": "user", "content": "hi"}])  # type: ignore[list-item]


async def test_a_follow_up_that_needs_no_new_step_is_written_up_anew():
    def write(request: ChatRequest) -> str:
        if brain.count("synthesis") == 1:
            handle.send("in French, please")
        return "the answer" if brain.count("synthesis") == 1 else "la réponse"

    brain = Brain(synthesis=write, revise_plan={"keep": ["a", "b", "c", "d"], "steps": []})
    handle = start_job("goal", models(brain), mode="dag")
    job = await handle.result()
    assert (job.status, job.answer, job.error_code) == ("completed", "la réponse", None)
    assert (brain.count("step"), brain.count("judge_result"), job.rounds) == (4, 2, 1)
    assert "in French" in brain.requests[-1][1].messages[-1].content


def test_an_unknown_keyword_for_the_agents_is_refused_at_once():
    with pytest.raises(UsageError, match=r"no option 'max_iteration': there are .*max_iterations"):
        RunOptions(agent={"max_iteration": 3})
    with pytest.raises(UsageError, match="'llm'"):
        RunOptions(agent={"llm": None})


async def test_a_failing_observer_costs_nothing():
    def broken(event: Any) -> None:
        raise KeyError("observer")

    assert (await run_job("goal", models(Brain()), on_event=broken)).status == "completed"


def test_what_comes_after_a_round():
    def move(**given: Any) -> str:
        base = {"message_waits": False, "achieved": False, "confidence": 0.5, "used": 1, "rounds": 3, "enough": 0.8}
        return after_round(**{**base, **given})

    assert move() == "replan"
    assert move(achieved=True, message_waits=True) == "replan_for_message"
    assert move(achieved=True, used=3) == "synthesize"
    assert move(used=3, confidence=0.9) == "out_of_rounds"
    assert move(confidence=0.8) == "good_enough"
    assert move(fixed=True) == "out_of_rounds"


async def test_cancelling_at_once_or_twice_still_gives_the_cancelled_job():
    async def slow(request: ChatRequest) -> str:
        await asyncio.sleep(60)
        return ""

    for wait in (0, 0.02):
        handle = start_job("goal", models(Brain(step=slow)), mode="react")
        await asyncio.sleep(wait)
        handle.cancel()
        handle.cancel()
        assert (await handle.result()).status == "cancelled"
        assert [event async for event in handle.events()][-1].channel == "done"


async def test_a_cancelled_job_keeps_what_was_finished():
    async def second_is_slow(request: ChatRequest) -> str:
        if brain.count("step") > 1:
            handle.cancel()
            await asyncio.sleep(60)
        return "RESULT-A"

    brain = Brain(step=second_is_slow)
    handle = start_job("goal", models(brain), mode="dag")
    job = await handle.result()
    assert (job.status, job.steps["a"].status) == ("cancelled", "completed")
    assert "RESULT-A" in job.answer


async def test_a_message_on_the_last_turn_is_not_lost():
    def step(request: ChatRequest) -> str:
        if brain.count("step") == 1:
            handle.send("also B")
        return "ok"

    brain = Brain(step=step)
    options = JobOptions(run=RunOptions(agent={"max_iterations": 1}))
    handle = start_job("goal", models(brain), mode="react", options=options)
    job = await handle.result()
    assert "also B" in job.goal
    assert brain.count("step") == 2


@pytest.mark.parametrize("depth", [101, 900, 1_500, 20_000])
async def test_arguments_that_are_nested_too_deep_are_an_error_observation(depth: int) -> None:
    raw = '{"key": ' + "[" * depth + "]" * depth + "}"
    anything = Tool("look_up", "Looks anything up.", {"type": "object"}, lambda key: "found")
    llm = ScriptedLLM([[ToolCall("c1", "look_up", {}, raw, decoded=False)], "sorry"])
    job = await run_job("q", llm, tools=[anything], mode="react", answer_mode="direct")
    assert job.status == "completed"
    told = [message for message in llm.requests[-1].messages if message.role == "tool"]
    assert told[0].is_error
