"""What the parts of a job share: what it was asked, what it works with, and how far it has come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from agent.activity import Activity
from agent.context import ContextGuard
from agent.hooks import HookRegistry
from agent.interrupts import InterruptQueue
from agent.react import ReActAgent
from agent.services import Services
from agent.trust import new_marker
from agent.waits import Decision
from registry.artifacts import ArtifactStore, MemoryArtifacts
from registry.budget import Room
from registry.call_cache import CallCache
from registry.clock import SYSTEM_CLOCK, Clock
from registry.fallback import Fallback
from registry.llm import LLM
from registry.messages import Event
from registry.models import ModelRegistry
from registry.routing import Pinned, RoutingPolicy
from registry.tools import ToolRegistry

from .answer import joined, plain_statement, work_of
from .dag import DAGExecutor
from .job_options import JobOptions
from .job_time import JobTime
from .job_types import Job, JobRequest, JobStatus
from .ledger import Behind, Ledger
from .log.front import JobLog
from .recovery import JobPast
from .recovery.retold import Retold
from .recovery.uncertain import Effects
from .results import StepResult
from .step_route import JobFacts
from .waits import Approve, JobWaits
from .write_up import Writer

FOLLOW_UP = "[User follow-up]: "
DOMAIN_RULE = (
    "This is a {domain} question: name the source of every fact, and say where a qualified person must be asked. Name "
    "sources that were read in this work; write [unverified] right after one that you only know from memory."
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the work came out, before it is put into a Job."""

    status: JobStatus
    answer: str
    error: str | None = None
    error_code: str | None = None


class JobState:
    """One job. `executor` and `agent` are those that run at the moment; `stopping`: nothing new begins; `ended`: how
    it ended, None before; `effects`: of calls that a dead worker had begun; `barrier` returns when the log is kept for
    good, and is the log's own where none is given. With a `past` it is a job that goes on; `cancels` are steps that its
    running plan is to cancel, until that plan goes on, None afterwards; `routes` are the choices of a single agent's
    models that were made before. `marker`: the code that delimits data, which nobody who writes any may know; `behind`:
    a budget that it shares with other jobs. Raises UsageError where a model's fallback is not registered, or where the
    routing policy can't route among the models."""

    def __init__(
        self,
        request: JobRequest,
        models: ModelRegistry,
        tools: ToolRegistry,
        *,
        log: JobLog,
        hooks: HookRegistry | None = None,
        options: JobOptions | None = None,
        approve: Approve | None = None,
        open_to_decisions: bool = False,
        artifacts: ArtifactStore | None = None,
        barrier: Callable[[], Awaitable[None]] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        past: JobPast | None = None,
        marker: str | None = None,
        behind: Behind | None = None,
    ) -> None:
        self.barrier = log.barrier if barrier is None else barrier
        self.request, self.tools, self.log = request, tools, log
        self.hooks, self.options, self.clock = hooks, options or JobOptions(), clock
        models = _checked(models, self.options)
        budget = request.budget
        self.past, self._retold = past, Retold(past)
        self.effects = Effects() if past is None else past.effects.copy()
        self.time = JobTime(None if budget is None else budget.seconds, clock, 0.0 if past is None else past.spent)
        self.activity = Activity()
        self.ledger = Ledger(log.append, budget, models, self.time, self.barrier, self.activity, behind)
        self.models = models.scoped(self.ledger)
        self.writer = Writer(self.models, self.ledger, self.time, self.emit)
        self.inbox = InterruptQueue()
        self.waits = JobWaits(
            self._tell_approval, self._parked, approve=approve, open_to_decisions=open_to_decisions, clock=clock
        )
        self.artifacts = artifacts or MemoryArtifacts()
        self.services = Services(
            self.models.resolve,
            self.waits,
            CallCache(),
            self.artifacts,
            past.marker if past is not None else marker or new_marker(),
            barrier=self.barrier,
            store=log.store,
            activity=self.activity,
            past={} if past is None else past.agents,
        )
        self.routes = () if past is None else past.routes
        self.new_executor: Callable[..., DAGExecutor] = DAGExecutor
        self.executor: DAGExecutor | None = None
        self.agent: ReActAgent | None = None
        self.ended: Job | None = None
        self.started_at = clock.time()
        self.clock0 = clock.monotonic()
        self._begin()
        if past is not None:
            self._go_on(past)

    def _begin(self) -> None:
        """Where a new job stands."""
        request = self.request
        self.mode: str = request.mode if request.plan is None else "dag"
        self.goal = request.goal
        self.plan = request.plan
        self.steps: Mapping[str, StepResult] = request.kept
        self.rounds, self.iterations = 0, 0
        self.stopping = False
        self.cancels: set[str] | None = None
        self.domain: str | None = request.domain
        self.fallbacks: list[Fallback] = []

    def _go_on(self, past: JobPast) -> None:
        """From where the job stood."""
        said, account = past.said, past.account
        self.mode, self.domain = past.mode, past.domain or self.domain
        self.goal += "".join(f"\n\n{FOLLOW_UP}{text}" for text in said.follow_ups)
        self.plan = past.plan or self.plan
        kept = {name: result for name, result in self.request.kept.items() if name not in past.before}
        self.steps = {**past.before, **kept}
        self.rounds, self.iterations = account.rounds, account.iterations
        self.fallbacks = list(account.fallbacks)
        self.started_at = past.started_at
        self.clock0 -= max(0.0, self.clock.time() - past.started_at)
        self.ledger.restore(account.turns, account.pending)
        self.ledger.cut_by_budget = account.cut_by_budget
        self.waits.restore(past.approvals)
        for call_id, decided in said.decisions.items():
            reason, by = decided.get("reason") or "", decided.get("decided_by") or "user"
            self.waits.known(call_id, Decision(decided["approve"], reason, by))
        for text in said.waiting:
            self.inbox.put(text)
        self.stopping = said.stopping
        self.cancels = set(said.cancels) if past.position.stage == "execute" else None
        if self.stopping and self.mode == "react":
            self.waits.reject_all("the job was stopped")
        if past.answer_state == "done" and not past.voided:
            self.writer.written = past.answer

    def hear(self) -> str:
        """Takes the waiting messages into the goal that planner, analyzer and synthesis see, and returns them."""
        texts = self.inbox.drain()
        said = "\n\n".join(texts)
        if texts:
            self._retold.next_stage()
            if self.mode == "react":  # whoever goes on with the job must know it from what its agent took in
                self.log.append("note", {"kind": "round", "content": "", "said": said})
            self.log.append("inject", {"type": "inject", "content": said})
            self.goal += "".join(f"\n\n{FOLLOW_UP}{text}" for text in texts)
        return said

    def spoken_to(self) -> bool:
        """Whether a message waits."""
        return bool(len(self.inbox))

    def rules(self) -> str | None:
        """What agents are told beside the built-in rules: the options' own text, and what the domain asks for."""
        rules = [self.options.run.agent.get("system_prompt"), self.domain and DOMAIN_RULE.format(domain=self.domain)]
        return "\n".join(rule for rule in rules if rule) or None

    def work(self, llm: LLM) -> str:
        """The steps' work as text, as much as the model's context holds."""
        return "" if self.plan is None else work_of(self.plan, self.steps, ContextGuard().budget(llm) * 2)

    def with_what_there_is(self, status: JobStatus, code: str, error: str) -> Ending:
        """An ending without another model call: the completed steps' results, else what failed."""
        found = joined(self.plan, self.steps)
        if status == "partial" and not found:
            status = "failed"
        return Ending(status, found or plain_statement(self.steps, error), error, code)

    # How it is routed

    @property
    def routing(self) -> RoutingPolicy:
        """The policy that chooses models, with what is pinned."""
        routing, pins = self.options.run.routing, self.request.pins
        return Pinned(pins, routing) if pins else routing

    @property
    def facts(self) -> JobFacts:
        """What models are chosen by beside the work itself."""
        kind = self.request.metadata.get("kind")
        return JobFacts(self.domain, kind if isinstance(kind, str) else None, self._room)

    def _room(self) -> Room | None:
        reservations = self.ledger.reservations
        return None if reservations is None else reservations.room()

    # What the log is told

    def emit(self, channel: str, **payload: Any) -> None:
        """Logs an event of the job's own."""
        self._tell(channel, payload)

    def pass_on(self, event: Event) -> None:
        """Logs an event of an agent or of a plan; a step's status tells the job's time, too."""
        if event.channel == "step_progress" and event.step_id is not None:
            self.time.step(event.step_id, event.payload["status"])
        self._tell(event.channel, event.payload, event.step_id)

    def fell_back(self, change: Fallback) -> bool:
        """Logs that another model took over; whether that was not known yet."""
        return self._tell("fallback", change.to_json())

    def _tell(self, channel: str, payload: Mapping[str, Any], step_id: str | None = None) -> bool:
        """Logs an event, unless it is one of before that comes again as the job goes on; whether it did."""
        if self._retold.again(channel, payload, step_id):
            return False
        if channel == "call":
            self.effects.hear(payload)
        elif channel == "fallback":
            self.fallbacks.append(Fallback.from_json(payload))
        self.log.append(channel, payload, step_id)
        return True

    def _tell_approval(self, payload: Mapping[str, Any], step_id: str | None) -> None:
        self.log.append("approval", payload, step_id)

    def _parked(self, step_id: str | None) -> AbstractAsyncContextManager[None]:
        """A step that waits gives up its slot and its clock stands, a single agent's job stands as a whole."""
        self.activity.asked.set()
        if self.executor is None or step_id is None:
            return self.time.parked()
        return self.executor.parked(step_id)


class Recorder:
    """The job's log as a plan's run writes to it: what happened is stored before the commands that it justifies are
    carried out, and what was stored is not told again."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._told: set[int] = set()

    async def append(self, events: Sequence[Event]) -> None:
        """Writes events, and returns when they are stored."""
        for event in events:
            self._told.add(event.seq)
            self._job.pass_on(event)
        await self._job.barrier()

    def observe(self, event: Event) -> None:
        """Writes an event that `append` was not given."""
        if event.seq in self._told:
            self._told.discard(event.seq)
        else:
            self._job.pass_on(event)


def _checked(models: ModelRegistry, options: JobOptions) -> ModelRegistry:
    """The models with the roles that the options give them. Raises UsageError."""
    models = models.with_roles(options.roles) if options.roles else models
    for name in models.names():
        models.fallbacks(name)  # one that is not registered is a mistake now, not in the middle of an outage
    if len(models):  # without any the job says so itself
        options.run.routing.check(models)
    return models
