"""A job as it stands, made of its row and its events; an ended one is what its last owner wrote of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from agent.waits import ASKED
from executor.answer import joined, plain_statement
from executor.job_types import Job
from executor.results import StepResult, carried
from executor.tally import Tally, add_to
from planner.plan import Plan
from registry.fallback import Fallback
from registry.messages import Usage
from registry.redaction import redact_data

from .database import Database, Row
from .statements import statement

Fields: TypeAlias = "Mapping[str, Any] | Row"
"""A row, by the names of its columns."""
CANCELLED = "The job was cancelled."


@dataclass(slots=True)
class Folded:
    """What the events of a job say so far."""

    mode: str
    plan: Plan | None = None
    steps: dict[str, StepResult] = field(default_factory=dict)
    answer: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    by_step: dict[str, Usage] = field(default_factory=dict)
    rounds: int = 0
    iterations: int = 0
    fallbacks: list[Fallback] = field(default_factory=list)
    approvals: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, channel: str, step_id: str | None, payload: Mapping[str, Any]) -> None:
        """The next event."""
        match channel:
            case "plan":
                self._new_plan(Plan.from_json(payload))
            case "phase" if payload.get("phase") == "executing" and self.plan is not None:
                self.rounds += any(name not in self.plan.kept for name in self.plan.by_id)
            case "route" if "mode" in payload:
                self.mode = payload["mode"]
            case "step":
                self.iterations += 1
            case "step_progress" if step_id is not None:
                self._progress(step_id, payload)
            case "turn":
                self._turn(step_id, payload)
            case "answer" if step_id is None:
                self._say(payload)
            case "approval":
                self._approval(step_id, payload)
            case "fallback":
                self.fallbacks.append(Fallback.from_json(payload))

    def _new_plan(self, plan: Plan) -> None:
        self.plan, self.steps = plan, carried(plan, self.steps)

    def _progress(self, step_id: str, payload: Mapping[str, Any]) -> None:
        before = self.steps.get(step_id)
        if payload["status"] == "running" and (before is None or before.status in ("pending", "running")):
            self.by_step.pop(step_id, None)
        if payload.get("ended_at") is not None and not payload.get("kept"):
            self.iterations += payload.get("iterations", 0)
        self.steps[step_id] = StepResult.from_progress(step_id, payload)

    def _turn(self, step_id: str | None, payload: Mapping[str, Any]) -> None:
        usage = Usage.recorded(payload.get("usage"))
        self.tally.add(payload["role"], payload["model"], usage)
        if step_id is not None:
            add_to(self.by_step, step_id, usage)

    def _say(self, payload: Mapping[str, Any]) -> None:
        status = payload.get("status")
        if status == "delta":
            self.answer.append(payload["content"])
        elif status != "done":
            self.answer.clear()

    def _approval(self, step_id: str | None, payload: Mapping[str, Any]) -> None:
        if payload["status"] in ASKED:
            self.approvals[payload["call_id"]] = {**payload, "step_id": step_id}
        else:
            self.approvals.pop(payload["call_id"], None)

    def results(self) -> dict[str, StepResult]:
        """The steps' results; what a step that has not ended has cost so far is the sum of its calls."""
        return {
            name: step if step.ended_at is not None else replace(step, usage=self.by_step.get(name, Usage.zero()))
            for name, step in self.steps.items()
        }


def fold(row: Fields, events: Iterable[Fields]) -> Folded:
    """What a job's events say; `row` is the job's."""
    given = row["request"].get("plan")
    folded = Folded(row["mode"] if given is None else "dag")
    if given is not None:
        folded.take("plan", None, given)
    for result in row["request"].get("kept") or ():  # of the job that it was made from
        folded.steps[result["id"]] = StepResult.from_json(result)
    for event in events:
        folded.take(event["channel"], event["step_id"], event["payload"])
    return folded


def job_of(row: Fields, folded: Folded) -> Job:
    """The job as it stands."""
    started = _seconds(row["started_at"])
    return Job(
        row["id"],
        row["status"],
        row["goal"],
        folded.mode,
        "".join(folded.answer),
        folded.plan,
        folded.results(),
        folded.tally.usage,
        0.0 if started is None else max(0.0, time.time() - started),
        rounds=folded.rounds,
        iterations=folded.iterations,
        created_at=_seconds(row["created_at"]),
        started_at=started,
        ended_at=_seconds(row["ended_at"]),
        by_role=folded.tally.by_role,
        by_model=folded.tally.by_model,
        metadata=row["metadata"],
        parent=row["parent"],
        fallbacks=tuple(folded.fallbacks),
    )


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


async def job_json(database: Database, row: Row) -> dict[str, Any]:
    """A job in its public shape, at any moment."""
    if row["summary"] is not None:
        return _with_row(row["summary"], row)
    folded = fold(row, await database.rows("fold.events", row["id"], row["seq"]) if row["seq"] else ())
    names = [found["name"] for found in await database.rows("jobs.artifacts", row["id"], row["tenant"])]
    shown = replace(job_of(row, folded), artifacts=tuple(names)).to_json()
    return {**_with_row(shown, row), "approvals": redact_data(list(folded.approvals.values()))}


def listed(row: Row) -> dict[str, Any]:
    """A job as it stands in lists: what its row knows, without plan, steps and answer of a running one."""
    shown = job_of(row, Folded(row["mode"])).to_json() | (row["summary"] or {})
    return _with_row(shown, row)


def _with_row(shown: Mapping[str, Any], row: Row) -> dict[str, Any]:
    base = job_of(row, Folded(row["mode"])).to_json()
    known = {name: base[name] for name in ("id", "status", "created_at", "parent")}
    own = {"kind": row["kind"], "batch": row["batch"], "cancel_requested": row["cancel"]}
    if row["batch"] is not None and row["cell"] is not None:  # of an experiment, which is stored as a batch
        own |= {"batch": None, "experiment": row["batch"]}
    elif row["batch"] is not None:
        own["custom_id"] = row["custom_id"]
    return {**shown, **known, **own}


async def end_cancelled(database: Database, job_id: str) -> Row | None:
    """Ends a job as cancelled if nobody owns it: its last event and its summary, in one transaction. The row of the
    ended job; None where somebody owns it, who then ends it, or where it has ended."""
    async with database.transaction() as connection:
        row = await connection.fetchrow(statement("jobs.lock_unowned"), job_id)
        if row is None:
            return None
        folded = fold(row, await connection.fetch(statement("fold.events"), job_id, row["seq"]))
        ended = cancelled(job_of(row, folded))
        return await connection.fetchrow(
            statement("fold.end_unowned"), job_id, ended.status, ended.to_json(), ended.cost, done_of(ended)
        )


async def cancelled_job(database: Database, row: Fields) -> Job:
    """The account of a job that is cancelled while it stands still, for its owner; the database is asked until it
    answers."""
    folded = fold(row, await database.patiently("fold.events", row["id"], row["seq"]))
    names = await database.patiently("log.artifact_names", row["id"])
    return replace(cancelled(job_of(row, folded)), artifacts=tuple(found["name"] for found in names))


def cancelled(job: Job) -> Job:
    """A job that stands still, as it is when it is ended from outside."""
    now = time.time()
    steps = {
        name: step
        if step.ended_at is not None
        else replace(step, status="cancelled", error="Cancelled", error_code="cancelled", ended_at=now)
        for name, step in job.steps.items()
    }
    return replace(
        job,
        status="cancelled",
        steps=steps,
        answer=job.answer or joined(job.plan, steps) or plain_statement(steps, CANCELLED),
        error=CANCELLED,
        error_code="cancelled",
        ended_at=now,
    )


def done_of(job: Job) -> dict[str, Any]:
    """The payload of a job's last event."""
    shown = job.to_json()
    names = ("answer", "iterations", "usage", "elapsed", "status", "error", "error_code")
    return {name: shown[name] for name in names} | {"cost": shown["usage"]["cost_usd"]}
