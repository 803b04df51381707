"""The account of a job that can't go on after its worker died: what its log says was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from registry.messages import Event

from .answer import joined, plain_statement
from .job_types import Job
from .recovery import JobPast
from .results import StepResult
from .schedule_types import ENDED
from .step_past import OWN_ROLES

CODE = "interrupted"
ENDED_UNEXPECTEDLY = "The worker that ran the job ended unexpectedly; the job was not run again."


def interrupted(
    row: Mapping[str, Any],
    events: Iterable[Event],
    now: float,
    artifacts: tuple[str, ...] = (),
    cause: str = ENDED_UNEXPECTEDLY,
) -> Job:
    """The failed job of a row of `dw_jobs`, from its events. `cause` says why it does not go on. A call that was begun
    and of which no end is known is named: nobody can say whether it took effect. What it cost is not known to the end,
    unless it waited for a human: a model may have been at work."""
    past = JobPast.read(events)
    account, where = past.account, past.position
    steps = {name: _ended(step) for name, step in past.steps.items()}
    error = _error(past, cause)
    usage = account.usage if row["status"] == "needs_decision" else replace(account.usage, partial=True)
    return Job(
        row["id"],
        "failed",
        row["goal"],
        row["mode"] if past.mode == "auto" else past.mode,
        joined(past.plan, steps) or plain_statement(steps, error),
        past.plan,
        steps,
        usage,
        max(0.0, now - row["started_at"].timestamp()),
        error,
        CODE,
        account.rounds + (where.stage == "execute"),
        sum(turn.payload["role"] in OWN_ROLES and turn.payload["result"] is not None for turn in account.turns),
        row["created_at"].timestamp(),
        row["started_at"].timestamp(),
        now,
        account.by_role,
        account.by_model,
        row["metadata"],
        row["parent"],
        artifacts,
        account.fallbacks,
    )


def _error(past: JobPast, cause: str) -> str:
    done = [name for name, step in past.steps.items() if step.status == "completed"]
    lines = [cause]
    if done:
        lines.append(f"Completed until then: {', '.join(done)}.")
    if past.account.open_calls:
        calls = ", ".join(f"{tool} ({key})" for key, tool in past.account.open_calls.items())
        lines.append(f"Begun, and it is not known whether they took effect: {calls}.")
    return " ".join(lines)


def _ended(step: StepResult) -> StepResult:
    if step.status in ENDED:
        return step
    if step.status == "pending":
        return replace(step, status="skipped", error=f"{CODE}: its worker ended before it began", error_code=CODE)
    return replace(step, status="failed", error=f"{CODE}: its worker ended unexpectedly", error_code=CODE)
