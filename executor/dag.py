"""Runs a plan: a thin shell that carries out the schedule's commands as tasks and reports back what happens.

All rules stand in `schedule.py`. Here: one task per running step inside a TaskGroup, an inbox that they report to, the
log's barrier before every command, and the clock of each step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from agent.trust import joined_taint
from registry.clock import SYSTEM_CLOCK, Clock
from registry.context import caller, calling
from registry.errors import UsageError
from registry.messages import Event, Usage
from registry.tools import ToolRegistry

from .options import RunOptions
from .plan_shape import shape_of
from .recovery.step_past import StepPast
from .results import PlanResult, StepOutcome, StepResult
from .routed import Routed
from .schedule import reduce
from .schedule_types import (
    ENDED,
    Abort,
    CancelStep,
    Command,
    PlanStarted,
    ResumeStep,
    SkipStep,
    StartStep,
    State,
    StepCancelled,
    StepCompleted,
    StepFailed,
    StepReady,
    StepWaiting,
    Stop,
    StopStep,
)
from .schedule_types import Event as ScheduleEvent
from .step_attempts import attempts
from .step_prompt import StepBrief, dependencies_of
from .step_route import JobFacts, PlanRoutes
from .step_runner import AgentRunner, Emit, StepRunner
from .step_task import StepTask

if TYPE_CHECKING:
    from agent.react import ReActAgent
    from agent.services import Services
    from planner.plan import Plan, PlanStep

FOLLOW_UP = "user changed requirements"
"""The reason of a stop because the user said something new."""
_ENDS = (StepCompleted, StepFailed, StepCancelled)


class Recorder(Protocol):
    """The log's side of a run."""

    async def append(self, events: Sequence[Event]) -> None:
        """Stores events, in order, before the commands that they justify are carried out. An exception ends the run:
        its steps are cancelled and it is raised by `execute`."""


class DAGExecutor:
    """Runs plans, one at a time: each step by a fresh agent, started the moment its last dependency completes.

    `models`: a ModelRegistry or one LLM. `max_concurrency` (5) and `step_timeout` (600 seconds) override those of
    `options`. `on_event` sees each event synchronously, after `recorder` has stored it. `runner` does the work of a
    step; by default agents do, to whom `services` are lent. `facts` of the job are what models are chosen by, too.
    """

    def __init__(
        self,
        models: Any,
        tools: ToolRegistry | Iterable[Any] = (),
        *,
        hooks: Any = None,
        max_concurrency: int | None = None,
        step_timeout: float | None = None,
        on_event: Emit | None = None,
        options: RunOptions | None = None,
        recorder: Recorder | None = None,
        runner: StepRunner | None = None,
        clock: Clock = SYSTEM_CLOCK,
        services: Services | None = None,
        facts: JobFacts | None = None,
    ) -> None:
        options = options or RunOptions()
        if max_concurrency is not None:
            options = replace(options, max_concurrency=max_concurrency)
        if step_timeout is not None:
            options = replace(options, step_timeout=step_timeout)
        self.options, self.on_event, self.recorder, self.clock = options, on_event, recorder, clock
        self._agents = AgentRunner(models, tools, hooks, options, clock, services)
        self.taint = () if services is None else services.taint
        self.facts = facts or JobFacts()
        self.runner: StepRunner = runner or self._agents
        self._execution: _Execution | None = None
        self.results: Mapping[str, StepResult] = {}
        self._stop: Stop | None = None
        self._used = False

    async def execute(
        self,
        plan: Plan,
        *,
        kept: Mapping[str, StepResult] = MappingProxyType({}),
        begun: Mapping[str, StepPast] | None = None,
        cancelled: Iterable[str] = (),
        routed: Mapping[str, Sequence[Routed]] = MappingProxyType({}),
    ) -> PlanResult:
        """Runs the plan to its end. `kept`: results that exist already, by step; those steps are not run. `begun`, even
        if empty: this execution began before, in a process that died; these steps go on from where they were, those
        that ended in it are among the kept ones, `cancelled` are steps to cancel, `routed` models of further steps.

        Cancelling it cancels the running steps, awaits them and propagates. Raises UsageError while another plan runs,
        PlanError or UsageError for a plan that can't be run, and what `recorder` and `on_event` raise.
        """
        if self._execution is not None:
            raise UsageError("this executor runs a plan already: one at a time")
        self._execution, self._used = _Execution(self, plan, kept, begun, routed), True
        self.results = self._execution.results
        for name in set(cancelled) & set(self._execution.steps):
            self._execution.cancel(name)
        try:
            with calling(round=plan.round):
                return await self._execution.run(self._stop)
        finally:
            self._execution = self._stop = None

    def stop(self, reason: str = "stopped") -> None:
        """Stops with grace: running steps finish, pending ones are skipped as "Skipped — reason", steps that wait for
        a human are cancelled. Before the executor's first plan it holds for that plan; after a plan it is too late."""
        stop = Stop(reason if reason.startswith("Skipped") else f"Skipped — {reason}")
        if self._execution is not None:
            self._execution.tell(stop)
        elif not self._used:
            self._stop = stop

    def cancel_step(self, step_id: str) -> bool:
        """Cancels one step; what depends on it is skipped. False where there is nothing left to cancel."""
        if self._execution is None:
            return False
        return self._execution.cancel(step_id)

    @asynccontextmanager
    async def parked(self, step_id: str | None = None) -> AsyncIterator[None]:
        """Within the block the step (default: the one that is calling) waits for a human: its slot is free for others
        and its clock stands. Leaving the block waits for a slot, unless another call of the step still waits."""
        task = None if self._execution is None else self._execution.tasks.get(step_id or caller().step_id or "")
        if task is None:
            raise UsageError(f"no step {step_id or caller().step_id!r} is running here")
        async with task.parked():
            yield

    def _resolve_agent(self, step: PlanStep) -> ReActAgent:
        return self._agents.resolve_agent(step)  # called by nobody here: a name that others rely on


class _Execution:
    """One run of one plan. Its state is the schedule's; results stand beside it."""

    def __init__(
        self,
        executor: DAGExecutor,
        plan: Plan,
        kept: Mapping[str, StepResult],
        begun: Mapping[str, StepPast] | None,
        routed: Mapping[str, Sequence[Routed]],
    ) -> None:
        self.begun = {name: past for name, past in (begun or {}).items() if name not in kept}
        self.before = () if begun is None else tuple(name for name in kept if name not in plan.kept)
        self.options, self.runner, self.clock = executor.options, executor.runner, executor.clock
        self.recorder, self.on_event, self.taint = executor.recorder, executor.on_event, executor.taint
        self.goal, self.steps = plan.goal, {step.id: step for step in plan.steps}
        self.state = State.initial(shape_of(plan, kept), self.options.max_concurrency)
        self.kept = {name: replace(result, id=name) for name, result in kept.items()}
        outside = {name: result for name, result in self.kept.items() if name not in self.steps}
        self.results = outside | {name: self.kept.get(name) or StepResult(id=name) for name in self.steps}
        known, facts = self.results.values(), executor.facts
        self.routes = PlanRoutes(self.runner, self.goal, self.steps, facts, self.begun, routed, known)
        self.done: dict[str, tuple[StepTask, StepOutcome]] = {}
        self.tasks: dict[str, StepTask] = {}
        self.changed: list[tuple[str, str, Mapping[str, Any]]] = []
        self.untold: list[Event] = []
        self.inbox: deque[ScheduleEvent] = deque()
        self.awake = asyncio.Event()
        self.job_id, self.seq = caller().job_id, 0

    def tell(self, event: ScheduleEvent) -> None:
        """Puts an event in; it is taken up as soon as the loop comes round."""
        self.inbox.append(event)
        self.awake.set()

    def cancel(self, step_id: str) -> bool:
        if step_id not in self.steps:
            raise UsageError(f"the plan has no step {step_id!r}: there are {', '.join(self.steps)}")
        if self.state.status_of(step_id) in ENDED:
            return False
        self.tell(StopStep(step_id))
        return True

    async def run(self, stop: Stop | None) -> PlanResult:
        """`stop`: it was stopped before it began, or before it goes on."""
        statuses = {name: self.kept[name].status for name in self.steps if name in self.kept}
        codes = {name: self.kept[name].error_code or "" for name in self.before}
        begun = tuple(name for name in self.steps if name in self.begun)
        self.inbox.appendleft(PlanStarted(statuses, begun, codes, stop))
        self.awake.set()
        try:
            async with asyncio.TaskGroup() as self.group:
                while self.state.outcome is None:
                    await self.awake.wait()
                    self.awake.clear()
                    await self.turn()
        except asyncio.CancelledError:
            self.aborted()
            raise
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        assert self.state.outcome is not None
        spent = [result.usage for name, result in self.results.items() if name not in self.kept]
        usage = sum((usage for usage in spent if usage.calls or usage.partial), Usage.zero())
        return PlanResult(self.state.outcome, MappingProxyType(self.results), usage)

    async def turn(self) -> None:
        """Takes up all that was reported: first the schedule decides, then the log knows it, then it is done."""
        commands = self.decide()
        self.untold = self.events()
        if self.untold and self.recorder is not None:
            await self.recorder.append(self.untold)
        self.observe(self.untold)
        self.untold = []
        for command in commands:
            self.obey(command)

    def aborted(self) -> None:
        """The tasks are over; observers hear of it. Nothing is recorded: whoever cancelled knows, and may be gone."""
        place = self.state.shape.index  # the group cancels in no order: plan order makes the history the same each time
        reports = sorted(self.inbox, key=lambda event: place.get(getattr(event, "step", ""), -1))
        self.inbox = deque([Abort(), *reports])
        self.decide()
        for name in self.steps:
            if self.state.status_of(name) not in ENDED:  # was to start when the abort came between
                self.done[name] = self.task_of(name), StepOutcome("", "cancelled", "Cancelled")
                self.tell(StepCancelled(name))
        self.decide()
        self.observe([*self.untold, *self.events()])

    # What the schedule decides, and what that makes of the steps' results

    def decide(self) -> list[Command]:
        decided: list[Command] = []
        while self.inbox:
            event = self.inbox.popleft()
            self.state, commands = reduce(self.state, event)
            if isinstance(event, _ENDS):
                self.became(self.result(event.step))
            elif isinstance(event, StepWaiting) and self.state.status_of(event.step) == "waiting":
                self.became(replace(self.results[event.step], status="waiting"))
            elif isinstance(event, StepReady) and self.state.waits_for_slot(event.step):
                note = {"kind": "ready", "content": ""}  # it takes a slot in its turn
                self.changed.append(("note", event.step, note))
            for command in commands:
                self.foresee(command)
            decided += commands
        return decided

    def foresee(self, command: Command) -> None:
        """The result that a command is about to bring."""
        now = self.clock.time()
        match command:
            case StartStep(step):
                model, untold = self.routes.choose(step, self.state.unfinished)
                if untold is not None:  # before the step is told to run on it
                    self.changed.append(("route", step, untold.to_json()))
                before = self.begun[step].result if step in self.begun else StepResult(model=model, started_at=now)
                self.became(replace(before, status="running", id=step))
            case ResumeStep(step):
                self.became(replace(self.results[step], status="running"))
            case SkipStep(step, reason, root_cause):
                self.became(StepResult("skipped", error=reason, root_cause=root_cause, ended_at=now, id=step))
            case CancelStep(step) if self.state.status_of(step) == "cancelled":
                self.became(StepResult("cancelled", error="Cancelled", ended_at=now, id=step))

    def became(self, result: StepResult) -> None:
        self.results[result.id] = result
        self.routes.hear(result)
        self.changed.append(("step_progress", result.id, result.progress()))

    def obey(self, command: Command) -> None:
        match command:
            case StartStep(step):
                work = self.tasks[step] = self.task_of(step)
                task = self.group.create_task(
                    work.run(partial(self.attempts, self.steps[step], work)), name=f"step {step}"
                )
                work.task = task
                task.add_done_callback(partial(self.ended, work))
            case ResumeStep(step):
                self.tasks[step].resume()
            case CancelStep(step) if step in self.tasks:
                self.tasks[step].cancel()

    def task_of(self, step: str) -> StepTask:
        return StepTask(step, self.options.step_timeout, self.tell, self.clock, self.begun.get(step))

    # The work of one step

    async def attempts(self, step: PlanStep, work: StepTask) -> StepOutcome:
        """The step's attempts, from what it starts with: the results of its dependencies."""
        dependencies = dependencies_of(step, self.steps, self.results)
        emit = None if self.on_event is None else partial(self.forward, step.id)
        work.trail.route = self.routes.of(step.id)
        work.taint = joined_taint(self.taint, *(dependency.result.taint for dependency in dependencies))
        brief = StepBrief(
            step,
            self.goal,
            dependencies,
            context_chars=self.options.context_chars,
            multiplier=self.options.structured_context_multiplier,
            taint=work.taint,
            trail=work.trail,
        )
        return await attempts(self.runner, brief, self.options.step_retries, emit, work)

    def ended(self, work: StepTask, task: asyncio.Task[StepOutcome]) -> None:
        """A step's task is over: the result is noted, the schedule hears of it."""
        del self.tasks[work.step_id]
        work.stop_clock()
        if task.cancelled():
            outcome = work.cut_off()
        elif task.exception() is not None:  # nothing a step could contain: the group ends the run
            return
        else:
            outcome = work.ended(task.result())
        code = outcome.error_code
        event: ScheduleEvent = StepCompleted(work.step_id) if code is None else StepFailed(work.step_id, code)
        if task.cancelled() and code == "cancelled":
            event = StepCancelled(work.step_id)
        self.done[work.step_id] = work, outcome
        self.tell(event)

    def result(self, step: str) -> StepResult:
        """The final result of a step whose task is over and whose end the schedule knows."""
        work, outcome = self.done.pop(step)
        before, status = self.results[step], self.state.status_of(step)
        if status == "cancelled":  # whatever its work came to in the meantime
            outcome = replace(outcome, error_code="cancelled", error="Cancelled")
        return StepResult(
            status,
            outcome.output,
            outcome.error or None,
            attempts=work.trail.attempts,
            model=work.trail.model or before.model,
            usage=work.meter.usage,
            started_at=before.started_at,
            ended_at=self.clock.time(),
            elapsed=work.elapsed,
            error_code=outcome.error_code,
            iterations=outcome.iterations,
            tool_calls=outcome.tool_calls,
            id=step,
            taint=work.taint,
            fallbacks=tuple(work.trail.fallbacks),
            escalated_from=work.trail.escalated_from,
        )

    # What observers see

    def events(self) -> list[Event]:
        changed, self.changed = self.changed, []
        heard = self.recorder is not None or self.on_event is not None
        return [self.event(*told) for told in changed] if heard else []

    def event(self, channel: str, step_id: str | None, payload: Mapping[str, Any]) -> Event:
        self.seq += 1
        return Event(self.job_id, self.seq, self.clock.time(), channel, step_id, payload)

    def observe(self, events: Iterable[Event]) -> None:
        if self.on_event is not None:
            for event in events:
                self.on_event(event)

    def forward(self, step_id: str, event: Event) -> None:
        """An agent's event, in the run's own numbering."""
        self.seq += 1
        self.observe([replace(event, job_id=self.job_id, seq=self.seq, step_id=step_id)])
