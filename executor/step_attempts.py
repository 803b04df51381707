"""The attempts at one step: each is told how the one before failed and what was already done in it."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace

import structlog

from agent.events import Emitter
from agent.trust import joined_taint
from registry.context import calling
from registry.errors import DagwrightError
from registry.redaction import redact
from registry.routing import Trial

from .results import StepOutcome
from .routed import Routed
from .schedule import FINAL
from .schedule_types import UNCERTAIN
from .step_prompt import StepBrief
from .step_runner import Emit, StepRunner
from .step_task import StepTask

NEVER_AGAIN = frozenset({*FINAL, UNCERTAIN})
"""Codes of failures after which a new attempt can't do better, or must not be made."""

log = structlog.get_logger(__name__)


async def attempts(
    runner: StepRunner, brief: StepBrief, retries: int, emit: Emit | None, work: StepTask
) -> StepOutcome:
    """The outcome of the first attempt that succeeds, of one after which no other can do better, or of the last. A step
    that goes on does so in the attempt that was under way. Where the routing goes on to another model after a failure
    that is no retry: those are the last model's."""
    start = work.trail.goes_on
    if start is not None:
        brief = replace(brief, failure=start.failure, taint=joined_taint(brief.taint, start.taint))
    while True:
        if start is None:
            work.trail.attempts += 1
        start = None
        await work.runs()
        with calling(step_id=brief.step.id, role="step", attempt=work.trail.attempts):
            outcome = await _attempt(runner, brief, emit, work)
        work.taint = joined_taint(work.taint, outcome.taint)
        if outcome.error_code is None or outcome.error_code in NEVER_AGAIN:
            return outcome
        if not _goes_on(work, outcome, emit):
            if work.trail.retries >= retries:
                return outcome
            work.trail.retries += 1
        work.trail.output = outcome.output or work.trail.output
        brief = replace(brief, failure=(outcome.error_code, outcome.error), taint=work.taint)


def _goes_on(work: StepTask, outcome: StepOutcome, emit: Emit | None) -> bool:
    """Whether another model does the step anew after this failure."""
    route, trail = work.trail.route, work.trail
    if route is None:
        return False

    def tell(routed: Routed) -> None:
        Emitter(emit, work.clock)("route", **routed.to_json())

    tried = Trial(route.now.model, outcome.output, outcome.error_code)
    return route.escalate(tried, trail.model, trail.attempts + 1, tell) is not None


async def _attempt(runner: StepRunner, brief: StepBrief, emit: Emit | None, work: StepTask) -> StepOutcome:
    """One attempt. A step contains whatever goes wrong inside it."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        outcome = await runner.run_step(brief, emit, work.meter)
    except Exception as raised:  # noqa: BLE001 - one of the two places that contain everything
        error = raised
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:  # of calls that ran side by side
            error = error.exceptions[0]
        if isinstance(raised, ExceptionGroup) and task is not None and task.cancelling() == before + 1:
            task.uncancel()  # before Python 3.13 a task group forgets to: the time limit would be taken for a cancel
        if isinstance(error, DagwrightError):
            return StepOutcome("", error.code, f"{error.code}: {error}")
        # somebody's bug: the log says where it is, but no values, which may be secrets
        where = "".join(traceback.format_tb(error.__traceback__))
        log.warning("step_error", step_id=brief.step.id, error=type(error).__name__, where=where)
        return StepOutcome("", "error", f"error: {redact(str(error)) or type(error).__name__}")
    if outcome.usage is not None:
        work.meter.add(outcome.usage)
    if outcome.error_code is None and not outcome.output.strip():
        return replace(outcome, error_code="empty_output", error="empty_output: the step ended without a result")
    return outcome
