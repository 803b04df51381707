"""What a fork of an ended job is made of: which steps run again, what is kept, and what can't be forked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.fork import NEVER_RUN, Fork, ForkError, Told, forked
from executor.results import StepResult
from executor.store.jobs import NewJob
from planner.plan import Plan, PlanStep

NOTHING = Told()


def plan_of(**dependencies: str) -> Plan:
    """A plan with a step for each name, which depends on the steps named, by blanks."""
    steps = (PlanStep(name, f"do {name}", tuple(others.split())) for name, others in dependencies.items())
    return Plan("the goal", tuple(steps), round=2, kept=("a",))


DIAMOND = plan_of(a="", b="a", c="a", d="b c")


def parent(plan: Plan | None = DIAMOND, **more: Any) -> dict[str, Any]:
    """The row of an ended job. `statuses`: those of steps that are not completed."""
    statuses = more.pop("statuses", {})
    steps = [result(name, statuses.get(name, "completed")).to_json() for name in (plan.by_id if plan else ())]
    summary = {"plan": None if plan is None else plan.to_json(), "steps": more.pop("steps", steps)}
    row = {
        "id": "job_parent", "kind": "run", "status": "completed", "goal": "the goal", "mode": "auto",
        "request": {"tools": ["t"], "budget": "1usd", "local": True, "plan": {"old": 1}, "options": {"max_steps": 3}},
        "metadata": {"who": "me"}, "ended_at": datetime(2026, 1, 2, tzinfo=UTC), "summary": summary,
    }  # fmt: skip
    return row | more


def result(name: str, status: Any = "completed", **more: Any) -> StepResult:
    error = None if status == "completed" else f"why {name}"
    return StepResult(
        status, f"out {name}" if status == "completed" else "", error, id=name, started_at=1.0, ended_at=2.0,
        taint=("web",), **more,
    )  # fmt: skip


def kept(job: NewJob) -> dict[str, StepResult]:
    return {one["id"]: StepResult.from_json(one) for one in job.request["kept"]}


def refused(row: dict[str, Any], fork: Fork, hints: Any = None) -> tuple[str, str]:
    with pytest.raises(ForkError) as caught:
        forked(row, NOTHING, fork, hints)
    return caught.value.code, str(caught.value)


def test_a_step_and_all_that_depends_on_it_run_again() -> None:
    job = forked(parent(), NOTHING, Fork("b"), None)
    assert (job.goal, job.mode, job.kind, job.parent, job.metadata) == (
        "the goal", "dag", "run", "job_parent", {"who": "me"},
    )  # fmt: skip
    assert kept(job) == {name: result(name) for name in "ac"}
    plan = Plan.from_json(job.request["plan"])
    assert (plan.kept, plan.round, plan.steps) == (("a", "c"), 1, DIAMOND.steps)
    others = {name: value for name, value in job.request.items() if name not in ("plan", "kept")}
    assert others == {"tools": ["t"], "budget": "1usd", "options": {"max_steps": 3}}


def test_without_descendants_their_results_stay() -> None:
    job = forked(parent(), NOTHING, Fork("a", descendants=False), None)
    assert kept(job) == {name: result(name) for name in "bcd"}


def test_the_model_is_for_the_step_alone() -> None:
    job = forked(parent(), NOTHING, Fork("b", model="large"), ("small", "large"))
    hints = {step.id: step.model_hint for step in Plan.from_json(job.request["plan"]).steps}
    assert hints == {"a": None, "b": "large", "c": None, "d": None}
    assert forked(parent(), NOTHING, Fork("b", model="general"), ("small",)).parent == "job_parent"
    code, told = refused(parent(), Fork("b", model="huge"), ("small", "large"))
    assert code == "unknown_model"
    assert "small, large" in told


def test_what_was_said_meanwhile_belongs_to_the_goal() -> None:
    told = Told.of(
        [
            {"channel": "route", "step_id": None, "payload": {"mode": "dag", "domain_hint": "legal"}},
            {"channel": "inject", "step_id": None, "payload": {"type": "inject", "content": "in French"}},
            {"channel": "inject", "step_id": None, "payload": {"type": "inject", "content": "and short"}},
        ]
    )
    job = forked(parent(), told, Fork("d"), None)
    assert job.goal == "the goal\n\n[User follow-up]: in French\n\n[User follow-up]: and short"
    assert job.request["plan"]["goal"] == job.goal
    assert job.request["domain"] == "legal"
    again = forked(parent(request=job.request, goal=job.goal), NOTHING, Fork("d"), None)
    assert (again.goal, again.request["domain"]) == (job.goal, "legal")


def test_artifacts_of_kept_steps_are_shared() -> None:
    event = {"channel": "step", "step_id": "b", "payload": {"artifact": {"name": "b.csv"}}}
    told = Told.of([event, {**event, "step_id": "c", "payload": {"artifact": {"name": "c.csv"}}}])
    row = parent(request={"artifacts": {"a.csv": "a", "old.csv": "b"}})
    job = forked(row, told, Fork("b"), None)
    assert (job.artifacts, job.request["artifacts"]) == (("a.csv", "c.csv"), {"a.csv": "a", "c.csv": "c"})
    assert "artifacts" not in forked(row, told, Fork("a"), None).request


def test_what_failed_before_and_is_kept_stops_nothing() -> None:
    steps = (PlanStep("a", "do a", on_failure="fail_fast"), PlanStep("b", "do b"), PlanStep("c", "do c", ("a",)))
    row = parent(Plan("g", steps), statuses={"a": "failed", "c": "skipped"})
    plan = Plan.from_json(forked(row, NOTHING, Fork("b"), None).request["plan"])
    assert plan.by_id["a"].on_failure == "skip_dependents"
    assert Plan.from_json(forked(row, NOTHING, Fork("a"), None).request["plan"]).by_id["a"].on_failure == "fail_fast"


def test_a_step_whose_dependency_has_no_result_is_refused_with_the_step_to_fork() -> None:
    steps = [
        result("a", "failed"), result("b", "skipped", root_cause="a"), result("c", "skipped", root_cause="a"),
        result("d", "skipped", root_cause="b"),
    ]  # fmt: skip
    row = parent(steps=[one.to_json() for one in steps])
    code, told = refused(row, Fork("d"))
    assert code == "kept_without_result"
    assert "fork the job at 'a'" in told
    assert kept(forked(row, NOTHING, Fork("a"), None)) == {}
    only = kept(forked(row, NOTHING, Fork("a", descendants=False), None))
    assert {name: step.status for name, step in only.items()} == {"b": "skipped", "c": "skipped", "d": "skipped"}


def test_a_failure_that_others_go_on_with_is_kept() -> None:
    steps = (PlanStep("a", "do a", on_failure="continue"), PlanStep("b", "do b", ("a",)))
    job = forked(parent(Plan("g", steps), statuses={"a": "failed"}), NOTHING, Fork("b"), None)
    assert kept(job)["a"].status == "failed"


def test_a_step_that_never_began_is_kept_as_skipped() -> None:
    row = parent(steps=[result("a").to_json(), {**StepResult("pending", id="c").to_json()}])
    told = kept(forked(row, NOTHING, Fork("b", descendants=False), None))
    assert {name: step.status for name, step in told.items()} == {"a": "completed", "c": "skipped", "d": "skipped"}
    assert (told["d"].error, told["d"].ended_at is not None) == (NEVER_RUN, True)


@pytest.mark.parametrize(
    ("row", "step", "code"),
    [
        (parent(ended_at=None), "a", "job_running"),
        (parent(None), "a", "no_plan"),
        (parent(kind="plan"), "a", "nothing_run"),
        (parent(), "z", "unknown_step"),
    ],
)
def test_what_can_not_be_forked(row: dict[str, Any], step: str, code: str) -> None:
    assert refused(row, Fork(step))[0] == code


@given(st.integers(1, 9).flatmap(lambda size: st.tuples(
    *(st.sets(st.integers(0, place - 1) if place else st.nothing()) for place in range(size)))), st.data())  # fmt: skip
def test_a_kept_step_never_depends_on_one_that_runs_again(edges: tuple[set[int], ...], data: st.DataObject) -> None:
    plan = plan_of(**{f"s{place}": " ".join(f"s{other}" for other in others) for place, others in enumerate(edges)})
    step = data.draw(st.sampled_from(sorted(plan.by_id)))
    again = {step, *networkx.descendants(plan.graph, step)}
    job = forked(parent(plan), NOTHING, Fork(step), None)
    assert set(kept(job)) == set(plan.by_id) - again
    assert not any(set(plan.by_id[name].dependencies) & again for name in kept(job))
    assert all(name == step or set(plan.by_id[name].dependencies) & again for name in again)
