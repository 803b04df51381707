"""The rules of the schedule, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from executor.schedule import reduce
from executor.schedule_types import (
    Abort,
    CancelStep,
    Finish,
    PlanStarted,
    ResumeStep,
    Shape,
    SkipStep,
    StartStep,
    State,
    StepCancelled,
    StepCompleted,
    StepFailed,
    StepReady,
    StepWaiting,
    Stop,
    StopStep,
)
from registry.errors import UsageError


@dataclass(frozen=True)
class Step:
    id: str
    dependencies: tuple[str, ...] = ()
    on_failure: str = "skip_dependents"


def steps(text: str) -> list[Step]:
    """`a b<a c<a+b d!continue<a` as steps."""
    found = []
    for word in text.split():
        head, _, needs = word.partition("<")
        name, _, policy = head.partition("!")
        found.append(Step(name, tuple(needs.split("+")) if needs else (), policy or "skip_dependents"))
    return found


class Run:
    def __init__(self, text: str, max_concurrency: int = 5, kept: dict[str, Any] | None = None) -> None:
        self.state = State.initial(Shape.of(steps(text)), max_concurrency)
        self.first = self.on(PlanStarted(kept or {}))

    def on(self, event: Any) -> list[Any]:
        self.state, commands = reduce(self.state, event)
        return list(commands)

    def statuses(self) -> dict[str, str]:
        return {step: self.state.status_of(step) for step in self.state.shape.ids}


def started(commands: list[Any]) -> list[str]:
    return [command.step for command in commands if isinstance(command, StartStep)]


def test_a_step_starts_the_moment_its_last_dependency_completes() -> None:
    run = Run("a b c<a d<a+b")
    assert started(run.first) == ["a", "b"]
    assert started(run.on(StepCompleted("a"))) == ["c"]  # b still runs: no waves
    assert started(run.on(StepCompleted("b"))) == ["d"]


def test_the_longest_remaining_path_goes_first_and_ties_go_by_plan_order() -> None:
    run = Run("x y a b<a c<b z", max_concurrency=1)
    order = started(run.first)
    while run.state.outcome is None:
        order += started(run.on(StepCompleted(order[-1])))
    assert order == ["a", "b", "x", "y", "c", "z"]


def test_never_more_than_the_slots() -> None:
    run = Run(" ".join(f"s{n}" for n in range(10)), max_concurrency=3)
    assert started(run.first) == ["s0", "s1", "s2"]
    assert started(run.on(StepCompleted("s1"))) == ["s3"]


def test_a_failure_skips_all_the_way_down_and_other_branches_go_on() -> None:
    run = Run("a b<a c<b x y<x")
    assert run.on(StepFailed("a")) == [
        SkipStep("b", "Skipped — a failed", "a"),
        SkipStep("c", "Skipped — a failed", "a"),
    ]
    assert started(run.on(StepCompleted("x"))) == ["y"]
    assert run.on(StepCompleted("y")) == [Finish("partial")]


def test_continue_lets_the_dependents_run() -> None:
    run = Run("a!continue b<a")
    assert started(run.on(StepFailed("a"))) == ["b"]
    assert run.on(StepCompleted("b")) == [Finish("partial")]


def test_fail_fast_stops_with_grace() -> None:
    run = Run("a!fail_fast b c<b")
    assert run.on(StepFailed("a")) == [SkipStep("c", "Skipped — a failed", "a")]
    assert run.on(StepCompleted("b")) == [Finish("partial")]


def test_nothing_completed_and_something_failed_is_failed() -> None:
    assert Run("a b<a").on(StepFailed("a"))[-1] == Finish("failed")


def test_the_budget_ends_the_plan() -> None:
    run = Run("a!continue b c<b")
    assert run.on(StepFailed("a", "budget_exceeded")) == [
        SkipStep("c", "Skipped — a failed: budget_exceeded", "a"),
    ]
    assert run.on(StepCompleted("b")) == [Finish("budget_exceeded")]


def test_a_refused_key_ends_the_plan_as_failed() -> None:
    run = Run("a b c<b")
    run.on(StepFailed("a", "auth"))
    assert run.on(StepCompleted("b")) == [Finish("failed")]


def test_stop_lets_what_runs_finish_and_skips_the_rest() -> None:
    run = Run("a b<a c")
    reason = "Skipped — user changed requirements"
    assert run.on(Stop(reason)) == [SkipStep("b", reason)]
    assert run.on(StepCompleted("a")) == []
    assert run.on(StepCompleted("c")) == [Finish("partial")]


def test_stop_before_anything_ran_is_cancelled() -> None:
    state = State.initial(Shape.of(steps("a b<a")), 1)
    state, commands = reduce(state, Stop("Skipped — stopped"))
    assert commands[-1] == Finish("cancelled")


def test_a_cancelled_step_keeps_its_slot_until_its_work_is_over() -> None:
    run = Run("a b", max_concurrency=1)
    assert run.on(StopStep("a")) == [CancelStep("a")]
    assert run.on(StopStep("a")) == []
    assert started(run.on(StepCancelled("a"))) == ["b"]
    assert run.on(StepCompleted("b")) == [Finish("partial")]


def test_a_cancelled_pending_step_never_runs_and_its_dependents_are_skipped() -> None:
    run = Run("a b<a c<b")
    assert run.on(StopStep("b")) == [CancelStep("b"), SkipStep("c", "Skipped — b was cancelled", "b")]
    assert run.on(StepCompleted("a")) == [Finish("partial")]


def test_a_result_that_crosses_its_cancellation_does_not_count() -> None:
    run = Run("a b<a")
    run.on(StopStep("a"))
    run.on(StepCompleted("a"))
    assert run.statuses() == {"a": "cancelled", "b": "skipped"}


def test_a_waiting_step_gives_up_its_slot_and_queues_again() -> None:
    run = Run("a b c", max_concurrency=1)
    assert started(run.on(StepWaiting("a"))) == ["b"]
    assert run.on(StepReady("a")) == []
    assert run.on(StepReady("a")) == []
    assert run.on(StepCompleted("b")) == [ResumeStep("a")]
    assert run.statuses()["a"] == "running"
    assert started(run.on(StepCompleted("a"))) == ["c"]


def test_nobody_is_waited_for_after_a_stop() -> None:
    run = Run("a b", max_concurrency=2)
    run.on(StepWaiting("a"))
    assert run.on(Stop("Skipped — stopped")) == [CancelStep("a")]
    assert run.on(StepWaiting("b")) == [CancelStep("b")]
    run.on(StepCancelled("a"))
    assert run.on(StepCancelled("b")) == [Finish("partial")]


def test_a_decision_before_the_stop_still_counts() -> None:
    run = Run("a b", max_concurrency=1)
    run.on(StepWaiting("a"))
    run.on(StepReady("a"))
    run.on(StepReady("a"))  # said twice is said once
    assert run.on(Stop("Skipped — stopped")) == []
    assert run.on(StepCompleted("b")) == [ResumeStep("a")]
    assert run.on(StepCompleted("a")) == [Finish("completed")]


def test_abort_cancels_what_runs() -> None:
    run = Run("a b c<a", max_concurrency=2)
    run.on(StepWaiting("b"))
    commands = run.on(Abort())
    assert [type(command).__name__ for command in commands] == ["CancelStep", "CancelStep", "SkipStep"]
    run.on(StepCancelled("a"))
    assert run.on(StepCancelled("b")) == [Finish("cancelled")]


def test_kept_steps_are_not_run() -> None:
    run = Run("a b<a c<b", kept={"a": "completed", "b": "completed"})
    assert run.first == [StartStep("c")]
    assert Run("a b<a", kept={"a": "completed", "b": "completed"}).first == [Finish("completed")]


def test_a_kept_failure_still_has_its_consequences() -> None:
    assert Run("a b<a", kept={"a": "failed"}).first == [SkipStep("b", "Skipped — a failed", "a"), Finish("failed")]


def test_late_reports_change_nothing() -> None:
    run = Run("a")
    run.on(StepCompleted("a"))
    done = run.state
    for event in (StepFailed("a"), StepWaiting("a"), StepReady("a"), StopStep("a"), Stop("x")):
        assert run.on(event) == []
        assert run.state.status_of("a") == "completed"
        assert run.state.outcome == done.outcome


@pytest.mark.parametrize("text", ["a<b b<a", "a<x", "a a", "a<a"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Shape.of(steps(text))


def test_a_dependency_outside_the_plan_may_be_given() -> None:
    assert Shape.of(steps("b<a"), given={"a"}).missing == (0,)


def test_a_doubled_dependency_counts_once() -> None:
    assert Shape.of(steps("a b<a+a")).missing == (0, 1)
