"""The executor's shell: what it promises beyond the schedule's rules. Steps are done by functions, not by models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest

from executor.dag import FOLLOW_UP, DAGExecutor
from executor.options import RunOptions
from executor.results import StepOutcome, StepResult
from planner.checks import PlanError
from planner.plan import Plan, PlanStep
from registry.context import caller
from registry.errors import AuthError, DagwrightError, UsageError
from registry.messages import Event, Usage
from registry.testing import ScriptedLLM

Work = Callable[[str], Awaitable[Any]]


class Runner:
    """Does a step by calling `work(step_id)`: a text is a result, a StepOutcome itself, an exception a failure."""

    def __init__(self, work: Work | None = None) -> None:
        self.work, self.briefs, self.running, self.most = work, [], set(), 0

    def model_of(self, step: PlanStep) -> str | None:
        return "small"

    async def run_step(self, brief: Any, emit: Any, meter: Any) -> StepOutcome:
        self.briefs.append(brief)
        name = brief.step.id
        self.running.add(name)
        self.most = max(self.most, len(self.running))
        try:
            done = "done" if self.work is None else await self.work(name)
        finally:
            self.running.discard(name)
        return done if isinstance(done, StepOutcome) else StepOutcome(done)


def plan(text: str) -> Plan:
    steps = []
    for word in text.split():
        head, _, needs = word.partition("<")
        name, _, policy = head.partition("!")
        steps.append(
            PlanStep(
                name,
                f"do {name}",
                tuple(needs.split("+")) if needs else (),
                on_failure=policy or "skip_dependents",  # type: ignore[arg-type]
            )
        )
    return Plan("the goal", tuple(steps))


def executor(work: Work | None = None, **options: Any) -> DAGExecutor:
    return DAGExecutor(ScriptedLLM([]), runner=Runner(work), **options)


def statuses(result: Any) -> dict[str, str]:
    return {name: step.status for name, step in result.steps.items()}


def left_over() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


async def test_a_plan_runs_to_its_end() -> None:
    async def work(name: str) -> StepOutcome:
        return StepOutcome(f"{name}!", iterations=2, tool_calls=3, usage=Usage(10, 5, cost=Decimal("0.01")))

    result = await executor(work).execute(plan("a b<a c<a+b"))
    assert result.status == "completed"
    assert list(result.steps) == ["a", "b", "c"]
    step = result.steps["c"]
    assert (step.output, step.model, step.attempts, step.iterations, step.tool_calls) == ("c!", "small", 1, 2, 3)
    assert step.error is None
    assert step.cost == Decimal("0.01")
    assert result.usage.cost == Decimal("0.03")
    assert result.usage.calls == 3
    assert step.started_at is not None
    assert step.ended_at is not None
    assert not left_over()


async def test_no_waves_and_no_more_than_the_slots() -> None:
    gate = asyncio.Event()
    order: list[str] = []

    async def work(name: str) -> str:
        order.append(name)
        if name == "slow":
            await gate.wait()
        if name == "c":
            gate.set()
        return name

    running = executor(work, max_concurrency=2)
    result = await running.execute(plan("slow a b<a c<b x y"))
    assert result.status == "completed"
    assert order.index("c") < order.index("y")  # c's path was the longest, though slow was still running
    assert running.runner.most == 2  # type: ignore[attr-defined]


async def test_a_step_that_raises_has_failed_and_nothing_else() -> None:
    async def work(name: str) -> str:
        if name == "a":
            raise DagwrightError("it broke")
        return name

    result = await executor(work).execute(plan("a b<a c"))
    assert statuses(result) == {"a": "failed", "b": "skipped", "c": "completed"}
    assert result.steps["a"].error == "error: it broke"
    assert result.steps["b"].error == "Skipped — a failed"
    assert result.steps["b"].root_cause == "a"
    assert result.status == "partial"


@pytest.mark.parametrize("blank", ["", "  \n "])
async def test_completed_with_nothing_is_a_failure(blank: str) -> None:
    async def work(name: str) -> str:
        return blank

    result = await executor(work).execute(plan("a"))
    assert result.steps["a"].status == "failed"
    assert result.steps["a"].error_code == "empty_output"


async def test_a_refused_key_stops_the_plan() -> None:
    async def work(name: str) -> str:
        raise AuthError

    result = await executor(work, max_concurrency=1).execute(plan("a!continue b c"))
    assert result.status == "failed"
    assert statuses(result) == {"a": "failed", "b": "skipped", "c": "skipped"}


async def test_a_used_up_budget_is_how_the_plan_ends() -> None:
    async def work(name: str) -> StepOutcome:
        return StepOutcome("half", "budget_exceeded", "budget_exceeded: it is used up") if name == "b" else "fine"  # type: ignore[return-value]

    result = await executor(work).execute(plan("a b<a c<b"))
    assert result.status == "budget_exceeded"
    assert result.steps["b"].output == "half"


async def test_a_failed_step_is_tried_again_and_told_why() -> None:
    tries: list[int] = []

    async def work(name: str) -> StepOutcome:
        tries.append(caller().attempt)
        usage = Usage(1, 1, cost=Decimal(1))
        if len(tries) < 3:
            return StepOutcome("partial", "max_iterations", "max_iterations: too long", usage=usage)
        return StepOutcome("done", usage=usage)

    running = executor(work, options=RunOptions(step_retries=2))
    result = await running.execute(plan("a"))
    assert result.steps["a"].status == "completed"
    assert result.steps["a"].attempts == 3
    assert result.usage.cost == 3
    assert tries == [1, 2, 3]
    briefs = running.runner.briefs  # type: ignore[attr-defined]
    assert briefs[0].failure is None
    assert "too long" in briefs[2].query()


async def test_retries_end_and_the_partial_output_is_kept() -> None:
    async def work(name: str) -> StepOutcome:
        return StepOutcome("as far as I got", "max_iterations", "max_iterations: too long")

    result = await executor(work, options=RunOptions(step_retries=1)).execute(plan("a"))
    step = result.steps["a"]
    assert (step.status, step.attempts, step.output) == ("failed", 2, "as far as I got")
    assert step.error_code == "max_iterations"


async def test_the_time_limit_counts_from_the_slot() -> None:
    async def work(name: str) -> str:
        if name == "slow":
            await asyncio.Event().wait()
        await asyncio.sleep(0.06)
        return name

    # one slot: c is queued far longer than its limit, and still has all of it
    result = await executor(work, max_concurrency=1, step_timeout=0.1).execute(plan("slow a b c"))
    assert statuses(result) == {"slow": "failed", "a": "completed", "b": "completed", "c": "completed"}
    assert result.steps["slow"].error == "timeout: not done after 0.1 s"
    assert result.steps["slow"].elapsed >= 0.1


async def test_a_timeout_inside_a_step_is_not_its_limit() -> None:
    async def work(name: str) -> str:
        raise TimeoutError("the tool's own")

    result = await executor(work).execute(plan("a"))
    assert result.steps["a"].error == "error: the tool's own"


async def test_stop_with_grace() -> None:
    async def work(name: str) -> str:
        running.stop(FOLLOW_UP)
        await asyncio.sleep(0.01)
        return name

    running = executor(work)
    result = await running.execute(plan("a b<a"))
    assert statuses(result) == {"a": "completed", "b": "skipped"}
    assert result.steps["b"].error == "Skipped — user changed requirements"
    assert result.status == "partial"


async def test_stop_before_the_first_plan_holds_for_it() -> None:
    running = executor()
    running.stop()
    result = await running.execute(plan("a b<a"))
    assert result.status == "cancelled"
    assert set(statuses(result).values()) == {"skipped"}
    running.stop()  # too late: it is over
    assert (await running.execute(plan("a"))).status == "completed"


async def test_cancel_a_step() -> None:
    async def work(name: str) -> str:
        if name == "a":
            assert running.cancel_step("a")
            await asyncio.Event().wait()
        return name

    running = executor(work)
    result = await running.execute(plan("a b<a c"))
    assert statuses(result) == {"a": "cancelled", "b": "skipped", "c": "completed"}
    assert result.steps["b"].root_cause == "a"
    assert running.cancel_step("a") is False
    assert not left_over()


async def test_a_result_that_crosses_its_cancellation_is_kept_but_does_not_count() -> None:
    async def work(name: str) -> str:
        if name == "a":
            running.cancel_step("a")
        return "just in time"

    running = executor(work)
    step = (await running.execute(plan("a b<a"))).steps["a"]
    assert (step.status, step.output, step.error) == ("cancelled", "just in time", "Cancelled")


async def test_cancel_a_step_that_does_not_exist() -> None:
    async def work(name: str) -> str:
        with pytest.raises(UsageError):
            running.cancel_step("nobody")
        return name

    running = executor(work)
    assert (await running.execute(plan("a"))).status == "completed"


async def test_abort_cancels_and_awaits_what_runs() -> None:
    cleaned: list[str] = []
    seen: list[Event] = []
    begun = asyncio.Event()

    async def work(name: str) -> str:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(name)
        return name

    running = executor(work, on_event=seen.append)
    task = asyncio.create_task(running.execute(plan("a b c<a")))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(cleaned) == ["a", "b"]
    assert not left_over()
    last = {event.step_id: event.payload["status"] for event in seen}
    assert last == {"a": "cancelled", "b": "cancelled", "c": "skipped"}
    assert (await executor().execute(plan("a"))).status == "completed"


async def test_one_plan_at_a_time() -> None:
    async def work(name: str) -> str:
        with pytest.raises(UsageError, match="one at a time"):
            await running.execute(plan("x"))
        return name

    running = executor(work)
    assert (await running.execute(plan("a"))).status == "completed"
    assert (await running.execute(plan("a b"))).status == "completed"


async def test_kept_steps_are_not_run_and_feed_the_others() -> None:
    running = executor()
    old = StepResult("completed", "forty-two", usage=Usage(5, 5, cost=Decimal(7)))
    given = Plan("goal", (PlanStep("a", "do a"), PlanStep("b", "use ${a} and #x", ("a", "x"))), kept=("x",))
    result = await running.execute(given, kept={"a": old, "x": StepResult("completed", "from before")})
    assert [brief.step.id for brief in running.runner.briefs] == ["b"]  # type: ignore[attr-defined]
    query = running.runner.briefs[0].query()  # type: ignore[attr-defined]
    assert "forty-two" in query
    assert "from before" in query
    assert set(result.steps) == {"a", "b", "x"}
    assert result.status == "completed"
    assert result.usage.cost == 0  # kept results were paid for before


async def test_what_cannot_be_kept_and_what_is_no_plan() -> None:
    with pytest.raises(UsageError):
        await executor().execute(plan("a"), kept={"a": StepResult("running")})
    for text in ("a<b b<a", "a<x"):
        with pytest.raises(PlanError):
            await executor().execute(plan(text))
    with pytest.raises(PlanError):
        await executor().execute(Plan("goal", ()))


async def test_each_change_of_status_is_an_event() -> None:
    seen: list[Event] = []

    async def work(name: str) -> str:
        if name == "b":
            raise DagwrightError("no")
        return "found"

    await executor(work, on_event=seen.append).execute(plan("a b<a c<b"))
    assert [(event.step_id, event.payload["status"]) for event in seen] == [
        ("a", "running"),
        ("a", "completed"),
        ("b", "running"),
        ("b", "failed"),
        ("c", "skipped"),
    ]
    assert {event.channel for event in seen} == {"step_progress"}
    assert [event.seq for event in seen] == [1, 2, 3, 4, 5]
    done = seen[1].payload
    assert done["result"] == "found"
    assert done["model"] == "small"
    assert done["started_at"].endswith("Z")
    assert {"duration", "usage", "cost", "error"} <= set(done)
    assert "step_id" not in done


async def test_the_log_knows_before_anything_is_done() -> None:
    history: list[str] = []

    class Log:
        async def append(self, events: Any) -> None:
            await asyncio.sleep(0.001)
            history.extend(f"{event.step_id} {event.payload['status']}" for event in events)

    async def work(name: str) -> str:
        history.append(f"{name} works")
        return name

    await executor(work, recorder=Log()).execute(plan("a b<a"))
    assert history == ["a running", "a works", "a completed", "b running", "b works", "b completed"]


async def test_a_log_that_lost_its_owner_ends_the_run() -> None:
    class Lost(Exception):
        pass

    class Log:
        async def append(self, events: Any) -> None:
            if any(event.payload["status"] == "completed" for event in events):
                raise Lost

    cancelled: list[str] = []

    async def work(name: str) -> str:
        if name == "b":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(name)
                raise
        return name

    with pytest.raises(Lost):
        await executor(work, recorder=Log()).execute(plan("a b"))
    assert cancelled == ["b"]
    assert not left_over()


async def test_waiting_for_a_human_gives_up_the_slot_and_stops_the_clock() -> None:
    decision = asyncio.Event()
    seen: list[Event] = []
    most: list[int] = []

    async def work(name: str) -> str:
        if name == "a":
            async with running.parked():
                await decision.wait()
            most.append(len(running.runner.running))  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        else:
            await asyncio.sleep(0.08)
            decision.set()
        return name

    running = executor(work, max_concurrency=1, step_timeout=0.15, on_event=seen.append)
    result = await running.execute(plan("a b c"))
    assert result.status == "completed"
    assert [event.payload.get("status") or event.payload["kind"] for event in seen if event.step_id == "a"] == [
        "running",
        "waiting",
        "ready",
        "running",
        "completed",
    ]
    assert result.steps["a"].elapsed < 0.08


async def test_a_wait_may_be_longer_than_the_limit() -> None:
    async def work(name: str) -> str:
        async with running.parked():
            await asyncio.sleep(0.1)
        return name

    running = executor(work, step_timeout=0.05)
    assert (await running.execute(plan("a"))).status == "completed"


async def test_a_call_that_waits_while_another_comes_back_gives_up_the_slot_again() -> None:
    decided, b_may_end, order = asyncio.Event(), asyncio.Event(), []

    async def wait_for_c() -> None:
        async with running.parked():
            b_may_end.set()
            await decided.wait()
        order.append("decided")

    async def work(name: str) -> str:
        if name == "a":
            async with asyncio.TaskGroup() as group, running.parked():
                await asyncio.sleep(0.01)  # b has the slot by now
                group.create_task(wait_for_c())
        elif name == "b":
            await b_may_end.wait()
        else:
            order.append("c")
            decided.set()
        return name

    running = executor(work, max_concurrency=1)
    async with asyncio.timeout(5):
        assert (await running.execute(plan("a b c"))).status == "completed"
    assert order == ["c", "decided"]


async def test_after_the_wait_the_limit_goes_on() -> None:
    async def work(name: str) -> str:
        async with running.parked():
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()
        return name

    running = executor(work, step_timeout=0.03)
    result = await running.execute(plan("a"))
    assert result.steps["a"].error_code == "timeout"


async def test_several_calls_of_a_step_wait_at_once() -> None:
    async def wait(seconds: float) -> None:
        async with running.parked():
            await asyncio.sleep(seconds)

    async def work(name: str) -> str:
        if name != "a":
            return name
        async with asyncio.TaskGroup() as group:
            for seconds in (0.0, 0.01, 0.01, 0.03):
                group.create_task(wait(seconds))
        await wait(0)
        return name

    running = executor(work, max_concurrency=1)
    async with asyncio.timeout(5):
        result = await running.execute(plan("a b"))
    assert result.status == "completed"


async def test_a_wait_that_fails_comes_back_for_its_slot() -> None:
    order = []

    async def work(name: str) -> str:
        if name == "b":
            await asyncio.sleep(0.05)
            order.append("b ends")
            return name
        try:
            async with running.parked():
                await asyncio.sleep(0.01)  # b has the slot by now
                raise DagwrightError("nobody answered")
        except DagwrightError as error:
            order.append("a goes on")
            return str(error)

    running = executor(work, max_concurrency=1)
    result = await running.execute(plan("a b"))
    assert result.steps["a"].output == "nobody answered"
    assert order == ["b ends", "a goes on"]
    assert result.status == "completed"


async def test_nobody_is_waited_for_after_a_stop() -> None:
    async def work(name: str) -> str:
        if name == "b":
            running.stop()
            return name
        async with running.parked():
            await asyncio.Event().wait()
        return name

    running = executor(work)
    result = await running.execute(plan("a b c<b"))
    assert statuses(result) == {"a": "cancelled", "b": "completed", "c": "skipped"}


async def test_parked_needs_a_running_step() -> None:
    with pytest.raises(UsageError):
        async with executor().parked("a"):
            pass


async def test_who_is_calling() -> None:
    async def work(name: str) -> str:
        who = caller()
        return f"{who.step_id} {who.role} {who.attempt}"

    result = await executor(work).execute(plan("a b"))
    assert [step.output for step in result.steps.values()] == ["a step 1", "b step 1"]


@pytest.mark.parametrize(
    "options",
    [{"max_concurrency": 0}, {"step_timeout": 0.0}, {"step_retries": -1}, {"structured_context_multiplier": 0}],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RunOptions(**options)


def test_results_survive_json() -> None:
    result = StepResult(
        "failed",
        "half",
        "timeout: not done",
        None,
        2,
        "small",
        Usage(3, 4, cost=Decimal("0.5")),
        1_700_000_000.5,
        1_700_000_001.25,
        0.75,
        "timeout",
        3,
        4,
        "a",
    )
    assert StepResult.from_json(result.to_json()) == result
    assert result.to_json()["started_at"] == "2023-11-14T22:13:20.500Z"
    assert StepResult.from_json(StepResult("skipped", error="x", id="b").to_json()) == StepResult(
        "skipped", error="x", id="b"
    )
