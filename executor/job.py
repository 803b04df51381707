"""One way to run a job: route, plan, execute, analyze, replan, write up. The ports differ, the pipeline does not.

The rounds of a plan stand in `plan_rounds.py`, the work of a single agent in `single_agent.py`, what both share in
`job_state.py`, the account of how it ended in `job_account.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import structlog

from agent.context import FATAL
from planner.router import Route, route
from registry import telemetry
from registry.context import calling
from registry.errors import BudgetExceededError, DagwrightError, LLMError, UsageError
from registry.redaction import error_fields

from .budget_end import trace_of
from .job_account import tell_ended, tell_goes_on, tell_started
from .job_state import Ending, JobState
from .job_types import Job, JobStatus
from .plan_rounds import run_plan_only, run_rounds
from .rounds import CHANGED, STOPPED
from .single_agent import run_single_agent

CANCELLED: tuple[JobStatus, str, str] = ("cancelled", "cancelled", "The job was cancelled.")

log = structlog.get_logger(__name__)


class JobRunner:
    """Runs one job. `send`, `stop`, `cancel`, `cancel_step` and `decide` may be called while it runs, from the same
    thread. `handed_over` is set by a worker before it cancels the run: the job goes on elsewhere, no end is told."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self.cancelling = self.handed_over = False
        self._task: asyncio.Task[Any] | None = None
        self._span: telemetry.AnySpan = telemetry.NO_SPAN

    # From outside

    def send(self, text: str) -> None:
        """A message of the user's: planned for in plan mode, an interrupt for a single agent."""
        state = self.state
        state.inbox.put(text)
        if state.executor is not None and len(state.inbox):
            state.executor.stop(CHANGED)

    def stop(self) -> None:
        """Ends with grace: what runs finishes, the answer is made of what there is."""
        state = self.state
        state.stopping = True
        if state.executor is not None:
            state.executor.stop(STOPPED)
        if state.agent is not None:
            state.waits.reject_all("the job was stopped")
            state.agent.finish()

    def cancel(self) -> None:
        """Ends at once: running steps are cancelled and awaited."""
        if not self.cancelling and self.state.ended is None:
            self.cancelling = True
            if self._task is not None:
                self._task.cancel()

    def decide(self, call_id: str, approve: bool, reason: str = "", decided_by: str = "user") -> None:
        """Decides a waiting call. Raises UsageError where none of this id waits."""
        self.state.waits.decide(call_id, approve, reason, decided_by)

    @property
    def status(self) -> JobStatus:
        """Where the job stands: running, needs_decision when nothing goes on without a human's word, or its end."""
        state = self.state
        if state.ended is not None:
            return state.ended.status
        steps = {} if state.executor is None else state.executor.results
        waiting = {call.step_id for call in state.waits.pending}
        if waiting and not any(step.status == "running" for name, step in steps.items() if name not in waiting):
            return "needs_decision"
        return "running"

    def cancel_step(self, step_id: str) -> None:
        """Cancels one step of the running plan. Raises UsageError when no plan runs."""
        state = self.state
        if state.executor is not None:
            state.executor.cancel_step(step_id)
        elif state.cancels is not None:
            state.cancels.add(step_id)
        else:
            raise UsageError("no plan is running: there is no step to cancel")

    # The pipeline

    async def run(self) -> Job:
        """Runs to the end. Whatever happens, the last event is `done` and says what happened.

        Raises only CancelledError, when it is cancelled from outside, and UsageError for a misuse of the library.
        """
        with calling(job_id=self.state.log.job_id), telemetry.workflow(self.state.mode) as self._span:
            self._task = task = asyncio.current_task()
            (tell_started if self.state.past is None else tell_goes_on)(self.state)
            try:
                if self.cancelling:
                    raise asyncio.CancelledError
                ending = await self._within_budget()
            except asyncio.CancelledError:
                if self.handed_over:
                    raise
                job = self._ended_early(*CANCELLED)
                if self.cancelling and (task is None or task.uncancel() == 0):
                    return job
                raise
            except DagwrightError as error:
                job = self._ended_early("failed", error.code, str(error))
                if isinstance(error, UsageError):
                    raise
                return job
            except Exception as error:  # noqa: BLE001 - somebody's bug: the job's account says so, the log where it is
                log.error("job_error", job_id=self.state.log.job_id, **error_fields(error))
                return self._ended_early("failed", "internal", f"{type(error).__name__}: {error}")
            except BaseException as error:  # the process ends
                self._ended_early("failed", "internal", f"{type(error).__name__}: {error}")
                raise
            return self._ended(ending)

    async def _within_budget(self) -> Ending:
        if self.state.past is not None:
            await self.state.barrier()  # what was said while nobody ran the job is known before any of it goes on
        try:
            return await self.state.time.work(self._worked)
        except BudgetExceededError as error:
            return await self._out_of_budget(str(error))

    async def _worked(self) -> Ending:
        if self.state.request.plan_only:
            return await run_plan_only(self.state)
        if self.state.mode == "auto":
            await self._route()
        if self.state.mode == "react":
            return await run_single_agent(self.state)
        return await run_rounds(self.state)

    async def _route(self) -> None:
        state = self.state
        chosen = Route("dag", None)
        if state.options.router:
            try:
                chosen = await route(state.models, state.goal, state.request.history, on_fallback=state.fell_back)
            except LLMError as error:
                if error.code in FATAL:
                    raise
                log.warning("routing_failed", error=str(error), code=error.code)
        state.mode, state.domain = chosen.mode, chosen.domain_hint
        state.log.append("route", {"mode": state.mode, "domain_hint": state.domain})

    async def _out_of_budget(self, cause: str) -> Ending:
        """The end of a job whose budget is used up: an answer written from what is kept for it, else what there is."""
        state = self.state
        plain = state.with_what_there_is("budget_exceeded", "budget_exceeded", cause)
        work = ""
        if state.mode == "react":
            events = await state.log.history()
            work = trace_of(events, state.services.marker)
            if found := trace_of(events):
                plain = replace(plain, answer=f"{plain.answer}\n\n{found}")
        elif any(step.output.strip() for step in state.steps.values()):
            work = state.work(state.models.for_role("smart"))
        if state.stopping or not work:
            return plain
        return replace(plain, answer=await state.writer.write_last(state.goal, work, plain.answer))

    def _ended(self, ending: Ending) -> Job:
        return tell_ended(self.state, ending, self._span)

    def _ended_early(self, status: JobStatus, code: str, error: str) -> Job:
        return self._ended(self.state.with_what_there_is(status, code, error))
