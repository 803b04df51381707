"""The stand-ins of a replay: models that give the log's replies, tools that are never run, a time that stands."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from agent.waits import Decision, PendingCall
from executor.dag import DAGExecutor
from executor.job_time import JobTime
from executor.log.memory import MemoryLog
from executor.reservations import FINAL_ROLE, Reservations
from executor.results import StepOutcome
from executor.routed import Routed
from executor.step_prompt import StepBrief
from executor.step_route import StepRoute
from executor.step_runner import AgentRunner, Emit
from executor.waits import JobWaits
from registry import errors
from registry.budget import Room
from registry.clock import Clock
from registry.context import caller
from registry.errors import BadRequestError, BudgetExceededError, LLMError, UsageError
from registry.gate import Admission
from registry.llm import LLM
from registry.llm_types import ChatRequest, Prepared
from registry.messages import Event, LLMResult, StreamChunk, Usage
from registry.metering import Meter
from registry.models import ModelRegistry
from registry.retry import Tries
from registry.routing import Hint, RouteRequest
from registry.tools import Tool, ToolRegistry

from .departures import DepartedError
from .script import Reply
from .stage import Stage

if TYPE_CHECKING:
    from agent.react import ReActAgent
    from planner.plan import PlanStep

T = TypeVar("T")

_MECHANISM = re.compile(r"\b(tools?|functions?|tool_choice|tool use|thinking)\b|response_format|json", re.IGNORECASE)
"""A refusal of the way it was asked, which the caller answers by another one; others are answered by the same call
without what was refused."""


class StandingClock:
    """The time at which the job started; a wait is over at once."""

    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        """Seconds since the epoch, UTC."""
        return self.now

    def monotonic(self) -> float:
        """Always the same."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Lets others run once."""
        await asyncio.sleep(0)


# Models


class _OpenGate:
    """Keeps nobody: whoever was let in is in the log."""

    @asynccontextmanager
    async def enter(self, llm: LLM, prepared: Prepared, tries: Tries | None = None) -> AsyncIterator[Admission]:
        yield self

    def hold(self, error: LLMError, wait: float) -> float:
        return 0.0

    def used(self, usage: Usage | None) -> None:
        pass


class RecordedLLM(LLM):
    """A model whose replies stand in the log: it has no provider and sends nothing."""

    dialect: ClassVar[str] = "recorded"

    def __init__(self, name: str, model_id: str, told: Mapping[str, Any], stage: Stage, clock: Clock) -> None:
        super().__init__(
            model_id,
            abilities=dict.fromkeys(told["abilities"], True),
            context_size=told["context_size"],
            max_output_tokens=told["max_output_tokens"],
            gate=_OpenGate(),
            clock=clock,
            name=name,
        )
        self._stage = stage

    def prepare(self, request: ChatRequest) -> Prepared:
        """Nothing to send."""
        return Prepared(request, b"")

    async def send(self, prepared: Prepared) -> Reply:
        """The recorded reply; a recorded error is raised."""
        reply = await self._stage.reply(self.name)
        if reply.abandoned:
            await asyncio.get_running_loop().create_future()  # whoever gave it up gives it up again
        if reply.error is not None:
            raise self._refused(reply)
        return reply

    def parse(self, reply: Any, prepared: Prepared) -> LLMResult:
        """The result as it was."""
        result: LLMResult = reply.result
        return result

    async def open_stream(self, prepared: Prepared) -> AsyncGenerator[StreamChunk, None]:
        """The recorded text in one piece. One that was given up on its way had begun."""
        reply = await self._stage.reply(self.name)
        if reply.abandoned:
            yield StreamChunk("…")
            await asyncio.get_running_loop().create_future()
        if reply.error is not None:
            raise self._refused(reply)
        result = self.parse(reply, prepared)
        yield StreamChunk(result.message.content, result.message.reasoning or "")
        yield StreamChunk(result=result)

    def _refused(self, reply: Reply) -> LLMError:
        assert reply.error is not None
        if reply.error[0] == BudgetExceededError.code and caller().role == FINAL_ROLE:
            self._stage.answer_refused = True
        return error_of(*reply.error)

    def _next_try(self, error: LLMError, request: ChatRequest, tries: Tries) -> float:
        """Whether there is another try stands in the log."""
        following = self._stage.next_reply()
        if following is not None and following.model == self.name:
            if following.attempt == tries.attempt + 1:
                tries.attempt += 1
                return 0.0
            learned = isinstance(error, BadRequestError) and not _MECHANISM.search(str(error))
            if learned and following.attempt == tries.attempt:
                return 0.0
        raise error


def error_of(code: str, message: str) -> LLMError:
    """The error of a code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LLMError)]
    for kind in kinds:
        if kind.code == code:
            return kind(message)
    return LLMError(message)


def recorded_models(opening: Mapping[str, Any], stage: Stage, clock: Clock) -> ModelRegistry:
    """The job's registry, of models that give what the log has."""
    models, told = ModelRegistry(), opening["registry"]
    for name, model_id in opening["models"].items():
        llm = RecordedLLM(name, model_id, told[name], stage, clock)
        models.register(name, llm, told[name]["roles"], told[name]["fallbacks"])
    return models


# Tools


def inert_tools(names: Iterable[str], known: ToolRegistry, stage: Stage) -> ToolRegistry:
    """The job's tools, none of which does anything. Of those that this machine has, what they declare holds."""
    return ToolRegistry(_inert(name, known.get(name) if name in known else None, stage) for name in names)


def _inert(name: str, tool: Tool | None, stage: Stage) -> Tool:
    async def run(**arguments: Any) -> None:
        await stage.called(name, caller().call_id)

    if tool is None:
        return Tool(name, "a tool of the job's", {"type": "object"}, run)
    return replace(tool, run=run, function=None, context="", verify=None)


# Plans


class RecordedAgents(AgentRunner):
    """Runs steps by their records, and lets each of them end when it is its turn in the log."""

    def __init__(self, agents: AgentRunner, stage: Stage) -> None:
        super().__init__(agents.models, agents.tools, agents.hooks, agents.options, agents.clock, agents.services)
        self._stage = stage
        self._made: Counter[str] = Counter()

    def resolve_agent(
        self,
        step: PlanStep,
        emit: Emit | None = None,
        meter: Meter | None = None,
        taint: tuple[str, ...] = (),
        model: str | None = None,
    ) -> ReActAgent:
        """The step's next agent. Of calls whose effect nobody knew its record does not tell again: it is told here."""
        self._made[step.id] += 1
        who = caller()
        for told in self._stage.script.uncertain.get((step.id, who.round, self._made[step.id]), ()):
            if emit is not None:
                emit(Event(who.job_id, 0, self.clock.time(), "call", step.id, told))
        return super().resolve_agent(step, emit, meter, taint, model)

    def route(self, request: RouteRequest, known: Sequence[Routed] = (), attempt: int = 1) -> StepRoute:
        """The step's models as the log has them: no policy is asked. A step that it does not have goes by its hint."""
        told = self._stage.script.routes.get((request.step_id, caller().round), ())
        return StepRoute(Hint(), self.models, request, told, attempt)

    async def run_step(self, brief: StepBrief, emit: Emit | None, meter: Meter) -> StepOutcome:
        """One attempt, which ends when the log says so."""
        step = brief.step.id
        try:
            try:
                outcome = await super().run_step(brief, emit, meter)
            except Exception:
                await self._stage.may_end(step)
                raise
            await self._stage.may_end(step)
            return outcome
        except asyncio.CancelledError:
            await self._stage.may_end(step, cut_off=True)
            raise


class Conductor(DAGExecutor):
    """Runs a plan as the log says."""

    @classmethod
    def on(cls, stage: Stage) -> Callable[..., DAGExecutor]:
        """A maker of executors that follow the stage."""

        def make(*args: Any, **kwargs: Any) -> Conductor:
            made = cls(*args, **kwargs)
            made.runner = RecordedAgents(made._agents, stage)
            stage.plans = made
            return made

        return make

    def expire(self, step_id: str, seconds: float) -> None:
        """The step's time is over."""
        if self._execution is not None and step_id in self._execution.tasks:
            self._execution.tasks[step_id].expire(seconds)

    async def pause(self, step_id: str, over: asyncio.Event) -> None:
        """The step waits for a human, until it is over."""
        with suppress(UsageError):  # it has ended
            async with self.parked(step_id):
                await over.wait()


class RecordedWaits(JobWaits):
    """Decisions of humans, as they stand in the log."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(lambda told, step_id: None, lambda step_id: nullcontext())
        self._stage = stage
        self.restore(event for event in stage.script.events if event.channel == "approval")

    async def park(self, call: PendingCall) -> Decision:
        """The decision that was made."""
        told = self._told.get((call.call_id, False))
        if told is None or told.decision is None:
            await self._stage.nothing(caller(), "call", "no decision on it is in the log", call.tool_name, call.call_id)
            raise DepartedError
        return told.decision

    async def settle(self, call: PendingCall) -> Decision | None:
        """What was said of its effect."""
        told = self._told.get((call.call_id, True))
        if told is not None and told.decision is None:
            await self._stage.stands(caller())
        return await super().settle(call)


# Time, budget, log


class RecordedTime(JobTime):
    """A time that nothing limits until the log says that it was over."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(None, clock)
        self._words = ""

    def expire(self, words: str) -> None:
        """The job's time is over."""
        self._words = words
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _within(self, kept: float, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(None) as self._limit:
                return await work()
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
            raise BudgetExceededError(self._words) from None
        finally:
            self._limit = None


class RecordedBudget(Reservations):
    """A budget that refuses what the log says it refused."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._open = set()
        self._answer_refused = False

    @property
    def answer_refused(self) -> bool:
        """Whether the budget had no call for the answer."""
        return self._answer_refused or self._stage.answer_refused

    @answer_refused.setter
    def answer_refused(self, refused: bool) -> None:
        self._answer_refused = refused

    async def reserve(self, llm: LLM, prepared: Prepared) -> Prepared:
        """Lets every call through: what was refused, the models know."""
        return prepared

    def room(self) -> Room:
        """Nobody asks what is left: the choices that were made stand in the log."""
        return Room()

    def answer_bytes(self, llm: LLM) -> int | None:
        """None; where the job did not even ask for an answer, less than any request has."""
        return -1 if self._stage.answer_is_refused() else None

    def to_json(self) -> dict[str, Any]:
        """Nothing is counted."""
        return {}


class RecordedLog(MemoryLog):
    """A log that a stage hears. Its history is the recorded one, which holds what agents did."""

    def __init__(self, job_id: str, stage: Stage, clock: Clock) -> None:
        super().__init__(job_id, clock=clock)
        self._stage = stage

    async def history(self) -> tuple[Event, ...]:
        """The recorded history."""
        return self._stage.script.events

    def _keep(self, event: Event) -> None:
        super()._keep(event)
        self._stage.heard(event)
