"""The account of a job that can't go on after its worker died: what its log says was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent.past import OWN_ROLES
from executor.answer import joined, plain_statement
from executor.job_types import Job
from executor.results import StepResult
from executor.schedule_types import ENDED
from executor.tally import Tally
from registry.messages import Usage

from .job_past import JobPast

CODE = "interrupted"


def interrupted(
    row: Mapping[str, Any],
    past: JobPast,
    now: float,
    cause: str,
    artifacts: tuple[str, ...] = (),
    code: str = CODE,
) -> Job:
    """The failed job of a row of `dw_jobs`, as its log has it. `cause` and `code` say why it does not go on. A call
    that was begun and of which no end is known is named: nobody can say whether it took effect. What it cost is not
    known to the end, unless it waited for a human: a model may have been at work."""
    account, where = past.account, past.position
    steps = {name: _ended(step) for name, step in past.steps.items()}
    error = _error(past, cause)
    tally = Tally()
    for turn in account.turns:
        tally.add(turn.payload["role"], turn.payload["model"], Usage.recorded(turn.payload["usage"]))
    usage = tally.usage if row["status"] == "needs_decision" else replace(tally.usage, partial=True)
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
        code,
        account.rounds + (where.stage == "execute"),
        sum(turn.payload["role"] in OWN_ROLES and turn.payload["result"] is not None for turn in account.turns),
        row["created_at"].timestamp(),
        row["started_at"].timestamp(),
        now,
        tally.by_role,
        tally.by_model,
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
