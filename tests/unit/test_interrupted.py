"""The account of a job whose worker died, from any point of its history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from executor.job_types import Job
from executor.recovery import JobPast
from executor.recovery.interrupted import interrupted
from planner import Plan, PlanStep
from registry.messages import Event

ROW = {
    "id": "job_1", "goal": "g", "mode": "dag", "metadata": {}, "parent": None, "status": "running",
    "created_at": datetime(2026, 11, 30, tzinfo=UTC), "started_at": datetime(2026, 11, 30, tzinfo=UTC),
}  # fmt: skip


def event(channel: str, payload: Any, step_id: str | None = None) -> Event:
    return Event("job_1", 1, 0.0, channel, step_id, payload)


def progress(name: str, status: str, result: str = "") -> Event:
    payload = {"step_id": name, "status": status, "result": result, "duration": None}
    return event("step_progress", payload | ({"ended_at": "2026-11-30T00:00:01Z"} if result else {}), name)


def plan(*names: str, kept: tuple[str, ...] = ()) -> Event:
    steps = tuple(PlanStep(id=name, task=f"do {name}") for name in names)
    return event("plan", Plan(goal="g", steps=steps).to_json() | {"kept": list(kept)})


def account(*events: Event, **row: Any) -> Job:
    return interrupted({**ROW, **row}, JobPast.read(events), 5.0, "Its worker died.")


def test_steps_that_had_not_begun_are_in_it_too() -> None:
    job = account(plan("a", "b", "c"), progress("a", "completed", "A"), progress("b", "running"))
    assert {name: step.status for name, step in job.steps.items()} == {"a": "completed", "b": "failed", "c": "skipped"}
    assert (job.status, job.error_code, job.answer) == ("failed", "interrupted", "A")
    assert job.error == "Its worker died. Completed until then: a."
    assert job.usage.partial  # b's model was asked, or may have been
    assert not account(status="needs_decision").usage.partial
    assert "before it began" in (job.steps["c"].error or "")


def test_a_new_rounds_step_does_not_pass_for_the_one_of_the_same_name_before() -> None:
    events = [
        plan("a", "b"),
        progress("a", "completed", "A"),
        progress("b", "completed", "B"),
        plan("a", "b", kept=("b",)),
    ]
    job = account(*events)
    assert {name: step.status for name, step in job.steps.items()} == {"a": "skipped", "b": "completed"}
