"""The parts of a job that goes on: its times, what was said, its steps, what is not told again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executor.dag import DAGExecutor
from executor.job import JobRunner
from executor.job_state import JobState
from executor.job_types import JobRequest
from executor.letters import note_of
from executor.log.memory import MemoryLog
from executor.options import RunOptions
from executor.recovery.job_past import PARTS, JobPast
from executor.recovery.past_time import PastTime
from executor.recovery.retold import Retold
from executor.recovery.step_past import AttemptStart, StepPast
from executor.results import StepOutcome, StepResult
from executor.schedule import reduce
from executor.schedule_types import PlanStarted, Shape, SkipStep, StartStep, State, Stop
from planner import Plan, PlanStep
from registry.errors import UsageError
from registry.fallback import Fallback
from registry.llm_types import ChatRequest
from registry.messages import Event, ToolCall, Usage
from registry.models import as_registry
from registry.testing import ScriptedLLM
from registry.tools import ToolRegistry, tool
from tests.support.cuts import Scenario, kind_of, run


def event(channel: str, payload: Any, step_id: str | None = None, ts: float = 0.0) -> Event:
    return Event("job_1", 1, ts, channel, step_id, payload)


def progress(step: str, status: str, ts: float, **more: Any) -> Event:
    return event("step_progress", {**StepResult(status, id=step).progress(), **more}, step, ts)  # type: ignore[arg-type]


STARTED = {"goal": "g", "mode": "dag", "models": {}, "tools": [], "marker": "m"}


def past(*events: Event) -> JobPast:
    return JobPast.read([event("job_started", STARTED, ts=100.0), *events])


def letter(kind: str, **said: Any) -> Event:
    return event("note", note_of(1, kind, said))


def approval(call: str, status: str, step: str | None = None, ts: float = 0.0) -> Event:
    return event("approval", {"call_id": call, "status": status, "deadline": 60.0}, step, ts)


# Times


def test_waits_and_times_without_a_worker_are_left_out() -> None:
    time = PastTime()
    for told in (
        event("job_started", STARTED, ts=0.0),
        progress("a", "running", 1.0),
        progress("b", "running", 1.0),
        progress("a", "waiting", 3.0),
        progress("b", "completed", 6.0),  # from here on all of it waits
        progress("a", "running", 26.0),
        event("turn", {}, "a", 28.0),  # the last word of a worker that died
        event("note", {"kind": "restored", "at": 1000.0}, ts=1001.0),
        progress("a", "completed", 1004.0),
    ):
        time.hear(told)
    assert time.steps == {"a": 2.0 + 2.0 + 4.0, "b": 5.0}
    assert time.spent == 6.0 + 2.0 + 4.0


def test_a_single_agent_that_waits_is_a_job_that_waits() -> None:
    time = PastTime()
    for told in (event("job_started", STARTED), approval("c", "waiting", ts=2.0), approval("c", "approved", ts=50.0),
                 event("turn", {}, ts=53.0)):  # fmt: skip
        time.hear(told)
    assert time.spent == 5.0


# What was said


def test_what_nobody_took_in_waits_still() -> None:
    events = [
        letter("message", text="one"),
        letter("message", text="two\n\nlines"),
        letter("message", text="late"),  # in the log, and not delivered yet when the job took in the others
        event("inject", {"type": "inject", "content": "one\n\ntwo\n\nlines"}),
    ]
    said = past(*events).said
    assert (said.follow_ups, said.waiting) == (("one", "two\n\nlines"), ("late",))


def test_what_could_not_be_followed_is_nothing() -> None:
    said = past(
        letter("decide", call_id="c", approve=True),  # nobody waits for it: it must not approve a later call
        approval("c", "waiting", "a"),
        letter("decide", call_id="c", approve="yes"),
        letter("message", text="  "),
        letter("dance"),
    ).said
    assert (dict(said.decisions), said.waiting) == ({}, ())


def test_a_decision_stands_until_its_event() -> None:
    asked, decided = approval("c", "waiting", "a"), letter("decide", call_id="c", approve=False, reason="no")
    again = letter("decide", call_id="c", approve=True)
    assert past(asked, decided, again).said.decisions["c"]["approve"] is False
    assert not past(asked, decided, approval("c", "rejected", "a")).said.decisions


# Answers


def test_a_new_part_is_above_all_that_may_have_been_seen() -> None:
    delta = event("answer", {"status": "delta", "content": "x", "offset": 0, "part": 1_007})
    told = past(event("answer", {"status": "start"}), delta)
    assert (told.part, told.answer, told.voided) == (1_007 + PARTS, "x", True)
    assert past().part == PARTS
    assert not past(event("answer", {"status": "start"})).voided
    assert not past(delta, event("answer", {"status": "done"})).voided


# What is not told again


def test_a_step_that_will_wait_again_says_nothing_of_running() -> None:
    plan = Plan("g", (PlanStep("a", "x"),)).to_json()
    begun = [event("plan", plan), event("phase", {"phase": "executing"}), progress("a", "running", 1.0),
             approval("c", "waiting", "a"), progress("a", "waiting", 2.0)]  # fmt: skip
    waiting, decided = Retold(past(*begun)), Retold(past(*begun, approval("c", "approved", "a")))
    running, waits = progress("a", "running", 0.0), progress("a", "waiting", 0.0)
    assert [waiting.again(told.channel, told.payload, "a") for told in (running, waits, running, waits)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert not decided.again(running.channel, running.payload, "a")


def test_a_mark_counts_once_and_in_its_stage() -> None:
    change = Fallback("m", "n", "overloaded", "analyzer")
    told = Retold(past(event("phase", {"phase": "analyzing"}), event("fallback", change.to_json())))
    assert told.again("phase", {"phase": "analyzing"}, None)
    assert not told.again("phase", {"phase": "analyzing"}, None)
    assert not told.again("fallback", change.to_json(), None)  # the phase that came again is another stage
    told = Retold(past(event("phase", {"phase": "analyzing"}), event("fallback", change.to_json())))
    assert told.again("fallback", change.to_json(), None)
    assert not told.again("answer", {"status": "delta", "content": "x"}, None)


async def test_who_took_over_is_told_before_the_next_event_only() -> None:
    log = MemoryLog("job_1", events=[event("job_started", STARTED)])
    log.lead("note", {"kind": "restored"})
    assert len(log.events) == 1
    log.append("phase", {"phase": "planning"})
    log.append("phase", {"phase": "executing"})
    assert [told.channel for told in log.events] == ["job_started", "note", "phase", "phase"]
    assert [told.seq for told in log.events[1:]] == [2, 3, 4]


# The schedule of an execution that goes on


def started(steps: list[PlanStep], slots: int, **more: Any) -> tuple[State, tuple[Any, ...]]:
    return reduce(State.initial(Shape.of(steps), slots), PlanStarted(**more))


def test_begun_steps_start_again_whatever_the_slots() -> None:
    steps = [PlanStep("a", "x"), PlanStep("b", "x"), PlanStep("c", "x")]
    state, commands = started(steps, 1, begun=("b", "c"))
    assert commands == (StartStep("b"), StartStep("c"))
    assert [state.status_of(name) for name in "abc"] == ["pending", "running", "running"]


def test_what_stopped_an_execution_stops_it_still() -> None:
    steps = [PlanStep("a", "x", on_failure="fail_fast"), PlanStep("b", "x"), PlanStep("c", "x", ("b",))]
    state, commands = started(steps, 5, kept={"a": "failed"}, begun=("b",))
    assert (state.status_of("b"), state.status_of("c")) == ("running", "skipped")
    state, commands = started(steps, 5, begun=("b",), stop=Stop("Skipped — new"))
    assert commands == (StartStep("b"), SkipStep("a", "Skipped — new"), SkipStep("c", "Skipped — new"))
    steps = [PlanStep("a", "x"), PlanStep("b", "x")]
    state, _ = started(steps, 5, kept={"a": "failed"}, codes={"a": "budget_exceeded"})
    assert state.outcome == "budget_exceeded"
    state, commands = started(steps, 5, kept={"a": "failed"})  # of another job: no reason to stop
    assert commands == (StartStep("b"),)


# Steps that go on


class Asked:
    """Notes what it is asked to do."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.briefs: list[Any] = []
        self.seconds = seconds

    def model_of(self, step: PlanStep) -> str:
        return "m"

    async def run_step(self, brief: Any, emit: Any, meter: Any) -> StepOutcome:
        self.briefs.append(brief)
        await asyncio.sleep(self.seconds)
        return StepOutcome("", "broken", "it broke") if "never" in brief.step.task else StepOutcome("done")


async def test_an_attempt_goes_on_as_what_it_was() -> None:
    began = StepPast(
        StepResult("running", model="m", started_at=5.0, id="a"),
        AttemptStart(2, "m", retries=1, failure=("broken", "it broke"), taint=("web",)),
        elapsed=30.0,
        usage=Usage(100, 10, calls=3),
        calls=((1, {"status": "start", "key": "k", "tool_name": "t", "tool_args": {}}),),
    )
    runner = Asked()
    executor = DAGExecutor(ScriptedLLM([]), runner=runner, options=RunOptions(step_retries=1))
    executor_plan = Plan("g", (PlanStep("a", "never"), PlanStep("b", "fine")))
    result = await executor.execute(executor_plan, begun={"a": began})
    step = result.steps["a"]
    assert (step.attempts, step.started_at, step.error_code) == (2, 5.0, "broken")  # its retry was used
    assert step.elapsed >= 30.0
    assert (step.usage.calls, step.usage.input_tokens, step.taint) == (3, 100, ("web",))
    first = next(brief for brief in runner.briefs if brief.step.id == "a")
    assert first.failure == ("broken", "it broke")


async def test_the_time_limit_goes_on() -> None:
    began = StepPast(StepResult("running", started_at=5.0, id="a"), elapsed=599.9)
    executor = DAGExecutor(ScriptedLLM([]), runner=Asked(60.0), step_timeout=600.0)
    result = await executor.execute(Plan("g", (PlanStep("a", "x"),)), begun={"a": began})
    assert result.steps["a"].error_code == "timeout"


async def test_a_step_that_was_to_be_cancelled_does_not_begin() -> None:
    runner = Asked()
    began = StepPast(StepResult("running", started_at=5.0, id="a"))
    plan = Plan("g", (PlanStep("a", "x"), PlanStep("b", "x", ("a",)), PlanStep("c", "x")))
    result = await DAGExecutor(ScriptedLLM([]), runner=runner).execute(
        plan, begun={"a": began}, cancelled=["a", "gone"]
    )
    assert {name: step.status for name, step in result.steps.items()} == {
        "a": "cancelled", "b": "skipped", "c": "completed",
    }  # fmt: skip
    assert [brief.step.id for brief in runner.briefs] == ["c"]


# What a job is made from


def test_kept_results_are_ended_ones_of_a_plan() -> None:
    plan = Plan("g", (PlanStep("a", "x"), PlanStep("b", "x", ("a",))))
    request = JobRequest("g", plan, kept={"a": StepResult("completed", "A", id="a")})
    assert request.plan is not None
    assert request.plan.kept == ("a",)
    with pytest.raises(UsageError, match="is running"):
        JobRequest("g", plan, kept={"a": StepResult("running", id="a")})
    with pytest.raises(UsageError, match="give the plan"):
        JobRequest("g", kept={"a": StepResult("completed", "A", id="a")})


def test_a_result_comes_back_from_its_progress() -> None:
    result = StepResult(
        "completed", "out", None, None, 2, "m", Usage(5, 6, calls=1), 1.0, 2.0, 1.0, None, 3, 4, "a", ("web",),
        (Fallback("m", "n", "timeout", "step"),),
    )  # fmt: skip
    assert StepResult.from_progress("a", result.progress()) == result


# Calls that died with their worker


async def died_in_a_write() -> tuple[Event, ...]:
    """The log of a job whose worker died while its only step wrote something."""
    whole = await run(Scenario(JobRequest("g", PLAN, mode="dag"), writes, writing))
    place = next(place for place, told in enumerate(whole.events) if told.payload.get("status") == "start"
                 and told.channel == "call")  # fmt: skip
    return whole.events[: place + 1]


PLAN = Plan("g", (PlanStep("a", "write it down"),))


def writing(runs: list[str]) -> list[Any]:
    @tool
    def write(text: str) -> str:
        """Writes a text down."""
        runs.append(text)
        return "written"

    return [write]


def writes(kind: str, request: ChatRequest, say: Any) -> Any:
    if kind == "judge_result":
        return {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": ""}
    if kind == "revise_plan":
        return {"keep": [], "steps": [{"id": "b", "task": "say it"}]}
    if kind == "step" and request.messages[-1].role != "tool" and "write it down" in request.messages[1].content:
        return [ToolCall("c", "write", {"text": "x"})]
    return "said"


def goes_on(events: tuple[Event, ...], **more: Any) -> JobRunner:
    def ask(request: ChatRequest) -> Any:
        reply = writes(kind_of(request), request, None)
        return [ToolCall("f", kind_of(request), reply)] if isinstance(reply, dict) else reply

    state = JobState(
        JobRequest("g", PLAN, mode="dag"), as_registry(ScriptedLLM(ask)), ToolRegistry(writing([])),
        log=MemoryLog("job_1", events=events), past=JobPast.read(events), **more,
    )  # fmt: skip
    return JobRunner(state)


async def waits_for_a_word(runner: JobRunner) -> asyncio.Task[Any]:
    task = asyncio.create_task(runner.run())
    async with asyncio.timeout(20):
        while runner.status != "needs_decision":
            await asyncio.sleep(0.01)
    return task


async def test_a_message_does_not_make_an_uncertain_effect_forgotten() -> None:
    """The step that waits is stopped for it; it has failed, the planner reads why, and the job is not completed."""
    runner = goes_on(await died_in_a_write(), open_to_decisions=True)
    task = await waits_for_a_word(runner)
    runner.send("never mind")
    job = await task
    progress_of_a = [told.payload for told in runner.state.log.events if told.step_id == "a"  # type: ignore[attr-defined]
                     and told.channel == "step_progress"]  # fmt: skip
    assert (progress_of_a[-1]["status"], progress_of_a[-1]["error_code"]) == ("failed", "uncertain_effect")
    assert "write (job_1/a/1/1/1)" in progress_of_a[-1]["error"]
    assert {name: step.status for name, step in job.steps.items()} == {"b": "completed"}
    assert (job.status, job.error_code) == ("partial", "uncertain_effect")
    assert "write (job_1/a/1/1/1)" in (job.error or "")


async def test_a_cancelled_job_is_cancelled() -> None:
    runner = goes_on(await died_in_a_write(), open_to_decisions=True)
    task = await waits_for_a_word(runner)
    runner.cancel()
    job = await task
    assert (job.status, job.steps["a"].status) == ("cancelled", "cancelled")


@pytest.mark.parametrize(("approve", "status"), [(True, "completed"), (False, "failed")])
async def test_a_humans_word_settles_it(approve: bool, status: str) -> None:
    events = await died_in_a_write()
    runner = goes_on(events, open_to_decisions=True)
    task = await waits_for_a_word(runner)
    runner.decide(runner.state.waits.pending[0].call_id, approve)
    job = await task
    assert (job.status, job.steps["a"].status) == (status, status)
    told = runner.state.log.events  # type: ignore[attr-defined]
    settled = next(place for place, one in enumerate(told) if one.payload.get("status") == "settled")
    again = await goes_on(told[: settled + 1]).run()  # whoever goes on after that knows it, and asks nobody
    assert (again.status, again.steps["a"].status) == (status, status)
