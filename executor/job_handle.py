"""Starting a job and talking to it: what the library's users call."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from agent.hooks import Hook, HookRegistry
from agent.waits import PendingCall
from planner.plan import Plan
from registry.artifacts import ArtifactStore
from registry.budget import Budget
from registry.clock import SYSTEM_CLOCK, Clock
from registry.messages import Event, Message
from registry.models import as_registry
from registry.tools import ToolRegistry

from .hooks_config import build_hooks
from .job import JobRunner
from .job_options import JobOptions
from .job_state import JobState
from .job_types import AnswerMode, Job, JobRequest, JobStatus, Mode
from .letters import note_of
from .log.memory import MemoryLog
from .waits import Approve


class JobHandle:
    """A running job: what can be said to it and asked of it. It owns the job's task."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self._task = asyncio.create_task(runner.run(), name=f"job {runner.state.log.job_id}")

    @property
    def id(self) -> str:
        """The job's id."""
        return self._runner.state.log.job_id

    @property
    def log(self) -> MemoryLog:
        """The job's history, internal channels included."""
        log = self._runner.state.log
        assert isinstance(log, MemoryLog)
        return log

    def send(self, text: str) -> None:
        """A follow-up message."""
        self._runner.send(text)
        self._note("message", {"text": text})

    def stop(self) -> None:
        """Ends with grace: running steps finish, pending ones are skipped."""
        self._runner.stop()
        self._note("stop", {})

    def cancel(self) -> None:
        """Ends at once: running steps are cancelled and awaited; `result` gives the cancelled job."""
        if not self._task.done() and not self._runner.cancelling:
            self._runner.cancelling = True
            asyncio.get_running_loop().call_soon(self._task.cancel)  # a task must have begun to be able to say `done`

    def cancel_step(self, step_id: str) -> None:
        """Cancels one running or pending step."""
        self._runner.cancel_step(step_id)
        self._note("cancel_step", {"step_id": step_id})

    def _note(self, kind: str, said: Mapping[str, Any]) -> None:
        """What was said stands in the log, where a replay finds it."""
        self.log.append("note", note_of(None, kind, said))

    @property
    def status(self) -> JobStatus:
        """Where the job stands; needs_decision: nothing goes on until a waiting call is decided."""
        return self._runner.status

    @property
    def waiting(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a decision."""
        return self._runner.state.waits.pending

    def decide(self, call_id: str, approve: bool, reason: str = "") -> None:
        """Decides a waiting call. Raises UsageError where none of this id waits."""
        self._runner.state.waits.decide(call_id, approve, reason)

    @property
    def artifacts(self) -> ArtifactStore:
        """What tools made for the reader."""
        return self._runner.state.artifacts

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """The public events with a `seq` above `after`, to the end of the job."""
        return self.log.read(after)

    async def result(self) -> Job:
        """The ended job. Cancelling the wait cancels the job too, and waits until it has ended."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait({self._task})
            raise


def start_job(
    goal: str | Plan,
    models: Any,
    *,
    tools: ToolRegistry | Iterable[Any] = (),
    mode: Mode = "auto",
    history: Sequence[Message] = (),
    budget: Any = None,
    on_event: Callable[[Event], None] | None = None,
    answer_mode: AnswerMode = "synthesis",
    hooks: HookRegistry | Iterable[Hook] | None = None,
    options: JobOptions | None = None,
    metadata: Mapping[str, Any] | None = None,
    approve: Approve | None = None,
    artifacts: Callable[[str], ArtifactStore] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> JobHandle:
    """Starts a job in the running event loop; the handle talks to it. For the parameters see `run_job`; a call that
    needs a human's approval waits for the handle's `decide`, and for `approve` where it is given."""
    given = (goal, models, tools, mode, history, budget, on_event, answer_mode, hooks, options, metadata)
    return JobHandle(_runner(*given, approve, True, artifacts, clock))


async def run_job(
    goal: str | Plan,
    models: Any,
    *,
    tools: ToolRegistry | Iterable[Any] = (),
    mode: Mode = "auto",
    history: Sequence[Message] = (),
    budget: Any = None,
    on_event: Callable[[Event], None] | None = None,
    answer_mode: AnswerMode = "synthesis",
    hooks: HookRegistry | Iterable[Hook] | None = None,
    options: JobOptions | None = None,
    metadata: Mapping[str, Any] | None = None,
    approve: Approve | None = None,
    artifacts: Callable[[str], ArtifactStore] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Job:
    """Runs a goal, or a plan as it is, to its end and says truly how it ended: see `Job.status`.

    `models` is a ModelRegistry or one LLM. `mode`: `dag` plans, `react` lets one agent work, `auto` lets a router
    decide. `history` is an earlier conversation. `on_event` sees each public event as it happens. `hooks` run around
    every tool call (without them, those that `options` declare: see `executor.hooks_config`). `approve` is asked
    about calls that need a human's approval (without it they are rejected at once); `artifacts` makes the place, by the
    job's id, where tools' artifacts are kept (without it: memory). Raises UsageError for wrong arguments and
    CancelledError when cancelled; whatever else happens stands in the Job. `budget` is what the job
    may cost at most: a Budget, a mapping with usd, tokens and seconds, a number (USD) or a text like "0.50usd"; a job
    that reaches it ends as budget_exceeded with what it has. Raises BudgetUnpricedError, before anything is called, for
    a budget in money where a model has no price.
    """
    given = (goal, models, tools, mode, history, budget, on_event, answer_mode, hooks, options, metadata)
    return await _runner(*given, approve, False, artifacts, clock).run()


def _hooks_of(hooks: HookRegistry | Iterable[Hook] | None, options: JobOptions | None) -> HookRegistry | None:
    """The hooks that were given, else those that the options declare, fresh: a guard that is declared is never left
    out because nobody passed it on."""
    if hooks is None:
        return build_hooks(options.hooks) if options is not None and options.hooks else None
    return hooks if isinstance(hooks, HookRegistry) else HookRegistry(hooks)


def _runner(
    goal: str | Plan,
    models: Any,
    tools: Any,
    mode: Mode,
    history: Sequence[Message],
    budget: Any,
    on_event: Callable[[Event], None] | None,
    answer_mode: AnswerMode,
    hooks: Any,
    options: JobOptions | None,
    metadata: Mapping[str, Any] | None,
    approve: Approve | None,
    open_to_decisions: bool,
    artifacts: Callable[[str], ArtifactStore] | None,
    clock: Clock,
) -> JobRunner:
    limit = None if budget is None else Budget.of(budget)
    plan = goal if isinstance(goal, Plan) else None
    text = goal.goal or "Carry out the plan." if isinstance(goal, Plan) else goal
    job_id = f"job_{uuid.uuid4().hex[:24]}"
    request = JobRequest(text, plan, mode, tuple(history), answer_mode, metadata or {}, limit)
    state = JobState(
        request,
        as_registry(models),
        tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools),
        log=MemoryLog(job_id, clock=clock, on_event=on_event),
        hooks=_hooks_of(hooks, options),
        options=options,
        approve=approve,
        open_to_decisions=open_to_decisions,
        artifacts=None if artifacts is None else artifacts(job_id),
        clock=clock,
    )
    return JobRunner(state)
