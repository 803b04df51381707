"""The first and the last word of a job's log: what was asked, and the account of how it ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime

from registry import telemetry
from registry.clock import FixedDay
from registry.redaction import redact

from .job_state import Ending, JobState
from .job_types import Job
from .log.front import Ending as LogEnding
from .log.front import JobLog
from .replay.described import described_models, described_options
from .schedule_types import UNCERTAIN

NOT_WRITTEN = "the budget did not allow to write up the answer: it is what the work came to"


def tell_started(job: JobState) -> None:
    """The log's first event, and the plan where one was given."""
    job.log.append(
        "job_started",
        {
            "goal": job.goal,
            "mode": job.mode,
            "models": {name: job.models.get(name).model_id for name in job.models.names()},
            "tools": list(job.tools.names()),
            "history": [message.to_json() for message in job.request.history],
            "max_replan_rounds": job.options.max_replan_rounds,
            "marker": job.services.marker,
            "date": (job.clock.day if isinstance(job.clock, FixedDay) else _day(job.started_at)).isoformat(),
            "budget": None if job.request.budget is None else str(job.request.budget),
            "answer_mode": job.request.answer_mode,
            "plan_only": job.request.plan_only,
            "domain": job.domain,
            "hooks": job.hooks is not None and len(job.hooks) > 0,
            "registry": described_models(job.models),
            "options": described_options(job.options),
            "routing": job.routing.to_json(),
        },
    )
    _tell_given(job)


def _day(time: float) -> date:
    return datetime.fromtimestamp(time, UTC).date()


def tell_goes_on(job: JobState) -> None:
    """The first word of another worker: who took over, with the next event; and what the one before had done and not
    told."""
    past = job.past
    assert past is not None
    job.log.lead("note", {"kind": "restored", "content": "", "at": job.clock.time(), "spent": past.spent})
    if not past.position.executed:
        _tell_given(job)
    if past.said.untold is not None:
        job.log.append("inject", {"type": "inject", "content": past.said.untold})
    if past.voided:
        job.log.append("answer", {"status": "reset"})


def _tell_given(job: JobState) -> None:
    """The plan that was given, and the results that were; of those, what the log does not have."""
    if job.request.plan is None:
        return
    told = {} if job.past is None else job.past.before
    if job.past is None or job.past.plan is None:
        job.log.append("plan", job.request.plan.to_json())
    for name, result in job.request.kept.items():
        if name not in told:
            job.log.append("step_progress", {**result.progress(), "kept": True}, name)


def tell_ended(job: JobState, ending: Ending, span: telemetry.AnySpan) -> Job:
    """Makes the ended Job, from here on `job.ended`, and closes the log with it: `done` is the last event."""
    if job.ledger.cut_by_budget and ending.error_code == "truncated":
        cause = f"the budget allowed too short a reply: {ending.error}"
        ending = replace(ending, status="budget_exceeded", error=cause, error_code="budget_exceeded")
    if job.ledger.answer_refused and ending.status == "completed":
        ending = replace(ending, status="budget_exceeded", error=NOT_WRITTEN, error_code="budget_exceeded")
    if job.effects.open and ending.status == "completed":  # in whatever round: nobody has said that it took effect
        ending = replace(ending, status="partial", error=job.effects.in_words(), error_code=UNCERTAIN)
    if (late := job.inbox.drain()) and ending.status != "completed":
        ending = replace(ending, error=f"{ending.error or ending.status}; came too late: {'; '.join(late)}")
    ending = replace(ending, error=ending.error and redact(ending.error))
    job.ledger.close()
    ended = job.ended = Job(
        job.log.job_id,
        ending.status,
        job.goal,
        job.mode,
        ending.answer,
        job.plan,
        job.steps,
        job.ledger.tally.usage,
        job.clock.monotonic() - job.clock0,
        ending.error,
        ending.error_code,
        job.rounds,
        job.iterations,
        job.started_at if job.request.created_at is None else job.request.created_at,
        job.started_at,
        job.clock.time(),
        dict(job.ledger.tally.by_role),
        dict(job.ledger.tally.by_model),
        job.request.metadata,
        parent=job.request.parent,
        artifacts=job.artifacts.names(),
        fallbacks=tuple(job.fallbacks),
    )
    telemetry.workflow_ended(span, ended)
    close_log(job.log, ended)
    return ended


def close_log(log: JobLog, ended: Job) -> None:
    """The log's last event, and the job's end with it."""
    shown = ended.to_json()
    usage = shown["usage"]
    log.append(
        "done",
        {
            "answer": ended.answer,
            "iterations": ended.iterations,
            "usage": usage,
            "elapsed": round(ended.elapsed, 3),
            "cost": usage["cost_usd"],
            "status": ended.status,
            "error": ended.error,
            "error_code": ended.error_code,
        },
    )
    log.ends(LogEnding(ended.status, shown, ended.cost))
