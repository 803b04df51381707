"""Starting a job and talking to it: what the library's users call."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from agent.hooks import Hook, HookRegistry
from planner.plan import Plan
from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import NotBuiltError
from registry.messages import Event, Message
from registry.models import as_registry
from registry.tools import ToolRegistry

from .job import JobRunner
from .job_options import JobOptions
from .job_types import AnswerMode, Job, JobRequest, Mode
from .log.memory import MemoryLog


class JobHandle:
    """A running job: what can be said to it and asked of it. It owns the job's task."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self._task = asyncio.create_task(runner.run(), name=f"job {runner.log.job_id}")

    @property
    def id(self) -> str:
        """The job's id."""
        return self._runner.log.job_id

    @property
    def log(self) -> MemoryLog:
        """The job's history, internal channels included."""
        return self._runner.log

    def send(self, text: str) -> None:
        """A follow-up message."""
        self._runner.send(text)

    def stop(self) -> None:
        """Ends with grace: running steps finish, pending ones are skipped."""
        self._runner.stop()

    def cancel(self) -> None:
        """Ends at once: running steps are cancelled and awaited; `result` gives the cancelled job."""
        if not self._task.done() and not self._runner.cancelling:
            self._runner.cancelling = True
            asyncio.get_running_loop().call_soon(self._task.cancel)  # a task must have begun to be able to say `done`

    def cancel_step(self, step_id: str) -> None:
        """Cancels one running or pending step."""
        self._runner.cancel_step(step_id)

    def decide(self, call_id: str, approve: bool, reason: str = "") -> None:
        """Decides a waiting call."""
        raise NotBuiltError("no call can wait for an approval yet: the approval hook is not built")

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """The public events with a `seq` above `after`, to the end of the job."""
        return self._runner.log.read(after)

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
    clock: Clock = SYSTEM_CLOCK,
) -> JobHandle:
    """Starts a job in the running event loop; the handle talks to it. For the parameters see `run_job`."""
    runner = _runner(goal, models, tools, mode, history, budget, on_event, answer_mode, hooks, options, metadata, clock)
    return JobHandle(runner)


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
    clock: Clock = SYSTEM_CLOCK,
) -> Job:
    """Runs a goal, or a plan as it is, to its end and says truly how it ended: see `Job.status`.

    `models` is a ModelRegistry or one LLM. `mode`: `dag` plans, `react` lets one agent work, `auto` lets a router
    decide. `history` is an earlier conversation. `on_event` sees each public event as it happens. Raises UsageError
    for wrong arguments and CancelledError when cancelled; whatever else happens stands in the Job. `budget` is not
    built yet and refused.
    """
    runner = _runner(goal, models, tools, mode, history, budget, on_event, answer_mode, hooks, options, metadata, clock)
    return await runner.run()


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
    clock: Clock,
) -> JobRunner:
    if budget is not None:
        raise NotBuiltError(
            "budgets are not built yet: a job can't be held to one, so it is refused rather than started without it"
        )
    plan = goal if isinstance(goal, Plan) else None
    text = goal.goal or "Carry out the plan." if isinstance(goal, Plan) else goal
    request = JobRequest(text, plan, mode, tuple(history), answer_mode, metadata or {})
    return JobRunner(
        request,
        as_registry(models),
        tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools),
        log=MemoryLog(f"job_{uuid.uuid4().hex[:24]}", clock=clock, on_event=on_event),
        hooks=hooks if isinstance(hooks, HookRegistry) or hooks is None else HookRegistry(hooks),
        options=options,
        clock=clock,
    )
