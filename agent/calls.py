"""A turn's tool calls: each is checked, passes hooks and humans, runs, and has exactly one result, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from registry import telemetry
from registry.clock import Clock
from registry.context import caller, calling
from registry.errors import DagwrightError, UsageError
from registry.llm import LLM
from registry.messages import ToolCall, Usage
from registry.metering import Meter
from registry.redaction import redact
from registry.result_text import NO_OUTPUT, Artifact
from registry.text import clean, cut_middle, load_prompt
from registry.tool_context import ToolContext
from registry.tool_run import ToolOutcome, run_tool
from registry.tools import NO_PARAMETERS, Tool, ToolRegistry

from .effects import CallEnd, masked, masked_call, masked_text, recorded_end
from .events import Emit, Emitter
from .extract import parse_tool_arguments
from .guards import Entry, LoopGuard, call_key, result_key
from .hooks import HookRegistry
from .past import CallPast, uncertain_call
from .permission import NotPermittedError, Permission
from .replay import Replay, told_once
from .services import Services
from .state import ToolCallRecord, Turn
from .trust import delimited, new_marker, origin_of
from .waits import PendingCall

log = structlog.get_logger(__name__)

MAX_OBSERVATION_CHARS = 20_000
ERROR_CHARS = 500
"""How much of a failed call's observation stands again in the event's `error`."""
UNKNOWN_TOOL = "(unknown tool)"
"""Calls of tools that do not exist count as one and the same, whatever their names and arguments."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one call came to: its record, the text that the model is told, and what the loop guard remembers of it.
    `usage` is what models cost that the tool called; `taint` says where its text comes from, unless it is trusted;
    `uncertain`: nobody knows whether it took effect."""

    call: ToolCall
    record: ToolCallRecord
    told: str
    entry: Entry
    refused: bool = False
    usage: Usage | None = None
    taint: tuple[str, ...] = ()
    uncertain: PendingCall | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a call stands: the loop's turn, its place in it, what the agent has read until then."""

    iteration: int
    number: int
    taint: tuple[str, ...]

    @property
    def key(self) -> str:
        """One stable key per call: the same call has it again when an interrupted step goes on."""
        who = caller()
        attempt = f"{who.attempt}" if who.round == 1 else f"{who.round}.{who.attempt}"
        return f"{who.job_id}/{who.step_id or ''}/{attempt}/{self.iteration}/{self.number}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call as it goes through here: what the model asked for, in which turn and at which place; what is recorded of
    it, and how it is told."""

    call: ToolCall
    turn: Turn
    finish_reason: str
    guard: LoopGuard
    place: _Place
    key: str
    known: CallPast | None
    tell: Emit


class _Rejected(Exception):
    """The call is not run; the text is its observation, `counts_as` what the loop guard counts it as."""

    def __init__(self, text: str, counts_as: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.counts_as, self.refused = counts_as, refused


class ToolRunner:
    """Runs the calls of one agent's turns. `llm` is what tools get that ask for a model, by role; `past` knows what is
    recorded of calls that another process made."""

    def __init__(
        self,
        tools: ToolRegistry,
        hooks: HookRegistry,
        emit: Emitter,
        clock: Clock,
        metadata: Mapping[str, Any],
        services: Services,
        llm: Callable[[str | None], LLM],
        past: Replay,
    ) -> None:
        self.tools, self.hooks, self.emit, self.clock = tools, hooks, emit, clock
        self._permission = Permission(hooks, services.waits, metadata)
        self.services, self.llm, self.past = services, services.llm or llm, past
        self.marker = services.marker or new_marker()

    async def run(
        self, turn: Turn, guard: LoopGuard, iteration: int, finish_reason: str, taint: tuple[str, ...] = ()
    ) -> tuple[Ran, ...]:
        """All calls of a turn at the same time; results in call order. `taint`: what the agent has read that is not to
        be trusted. Cancelling this cancels and awaits them."""
        places = [_Place(iteration, number, taint) for number in range(1, len(turn.calls) + 1)]
        asked = [
            self._asked(call, turn, guard, finish_reason, place) for call, place in zip(turn.calls, places, strict=True)
        ]
        if len(asked) == 1:
            return (await self._one(asked[0]),)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(one)) for one in asked]
        return tuple(task.result() for task in tasks)

    def _asked(self, call: ToolCall, turn: Turn, guard: LoopGuard, finish_reason: str, place: _Place) -> _Asked:
        key = place.key
        known = self.past.call(key)
        return _Asked(call, turn, finish_reason, guard, place, key, known, told_once(self.emit, known))

    async def _one(self, asked: _Asked) -> Ran:
        with self.services.activity.call():
            return await self._done(asked)

    async def _done(self, asked: _Asked) -> Ran:
        started, call = self.clock.monotonic(), asked.call
        arguments: Mapping[str, Any] = call.arguments
        notes: tuple[str, ...] = ()
        try:
            if asked.known is not None and asked.known.begun is not None:  # it passed all that follows
                tool, arguments, counts_as = self._begun(asked, asked.known.begun)
            else:
                tool, arguments = self._checked(asked)
                counts_as = call_key(tool.name, arguments)
                arguments, notes = await self._permitted(asked, tool, arguments, counts_as)
        except _Rejected as rejected:
            return self._rejected(rejected, asked, arguments)
        if asked.known is None or asked.known.over is None:
            await self.services.activity.may_begin()
        with self.services.activity.run():
            return await self._run(asked, tool, dict(arguments), counts_as, started, notes)

    # Before it begins

    def _begun(self, asked: _Asked, begun: Mapping[str, Any]) -> tuple[Tool, Mapping[str, Any], str]:
        """A call that began in another process: its tool, what it ran with, and what the guard counts it as."""
        name = begun["tool_name"]
        tool = self.tools.get(name) if name in self.tools else _gone(name)
        try:
            return tool, begun["tool_args"], call_key(tool.name, self._arguments(tool, asked.call, asked.finish_reason))
        except _Rejected as changed:  # its declaration has changed meanwhile
            return tool, begun["tool_args"], changed.counts_as

    def _checked(self, asked: _Asked) -> tuple[Tool, dict[str, Any]]:
        """The tool, and valid arguments. Raises _Rejected for a call that is not even put before the guards."""
        call, name = asked.call, asked.call.name
        if asked.turn.cut:
            raise _Rejected(load_prompt("agent", "cut_call").substitute(), call_key(name, "cut"))
        self._refuse_masked(asked)
        tool = self._tool(call)
        return tool, self._arguments(tool, call, asked.finish_reason)

    def _refuse_masked(self, asked: _Asked) -> None:
        """A call that is only known from what was recorded is not run where that hides a part of its arguments."""
        call, known = asked.call, asked.known
        if asked.place.iteration > self.past.turns or (known is not None and known.over is not None):
            return
        waited = None if known is None else known.request(caller().step_id)
        if masked_call(call) or (waited is not None and masked(waited.tool_args)):
            if waited is not None:
                self.services.waits.withdrawn(waited)
            raise _Rejected(masked_text(call.name), call_key(call.name, "masked"))

    async def _permitted(
        self, asked: _Asked, tool: Tool, arguments: dict[str, Any], counts_as: str
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The arguments to run with, and what the guards noted. Raises _Rejected for a call that must not run."""
        known, place = asked.known, asked.place
        if known is not None and known.over is not None:
            raise _Rejected("", counts_as)  # so it was then: what was told of it stands
        if asked.guard.refuses(counts_as):
            text = load_prompt("agent", "refused").substitute(count=asked.guard.threshold)
            raise _Rejected(text, counts_as, refused=True)
        waited = None if known is None else known.request(caller().step_id)
        try:
            return await self._permission.of(tool, arguments, asked.key, place.taint, waited)
        except NotPermittedError as refusal:
            raise _Rejected(str(refusal), counts_as) from None

    def _rejected(self, rejected: _Rejected, asked: _Asked, arguments: Mapping[str, Any]) -> Ran:
        """A call that is not run: what is wrong with it is its observation."""
        call, guard, iteration, tell = asked.call, asked.guard, asked.place.iteration, asked.tell
        text = cut_middle(redact(clean(str(rejected))), MAX_OBSERVATION_CHARS)
        counts_as = rejected.counts_as
        refused = rejected.refused or guard.refuses(counts_as)
        if asked.known is not None and (told := asked.known.over) is not None:
            text, counts_as, refused = told["observation"], told["counts_as"], told["refused"]
        tell(
            "call",
            status="rejected",
            call_id=call.id,
            key=asked.key,
            tool_name=call.name,
            observation=text,
            counts_as=counts_as,
            refused=refused,
        )
        _tell_begun(tell, call.name, iteration, dict(arguments))
        _tell_done(tell, call.name, iteration, CallEnd(text, True))
        result = guard.last_result(counts_as) if refused else result_key(text if counts_as != UNKNOWN_TOOL else "")
        record = ToolCallRecord(call.id, call.name, arguments, text, True, 0.0, iteration, ran=False)
        return Ran(call, record, text, (counts_as, result), refused)

    def _tool(self, call: ToolCall) -> Tool:
        try:
            return self.tools.get(call.name)
        except DagwrightError as error:
            raise _Rejected(str(error), UNKNOWN_TOOL) from None

    def _arguments(self, tool: Tool, call: ToolCall, finish_reason: str) -> dict[str, Any]:
        """Decoded, coerced and valid arguments; what is wrong with them is told with what was expected."""
        try:
            raw = call.arguments if call.decoded else parse_tool_arguments(call.raw, tool.parameters, finish_reason)
            return tool.check(raw)
        except ValueError as error:  # ToolArgumentsError is one
            raise _Rejected(str(error), call_key(tool.name, call.raw if not call.decoded else call.arguments)) from None

    # From its beginning to its end

    async def _run(
        self,
        asked: _Asked,
        tool: Tool,
        arguments: dict[str, Any],
        counts_as: str,
        started: float,
        notes: tuple[str, ...],
    ) -> Ran:
        call, place, key, tell = asked.call, asked.place, asked.key, asked.tell
        tell("call", status="start", call_id=call.id, key=key, tool_name=tool.name, tool_args=arguments)
        _tell_begun(tell, tool.name, place.iteration, arguments)
        end = await recorded_end(tool, asked.known, tell)
        if end is None:
            end = await self._worked(asked, tool, arguments, started, notes)
        status = "uncertain" if end.uncertain else "end"
        tell("call", status=status, call_id=call.id, key=key, tool_name=tool.name, **end.to_json())
        _tell_done(tell, tool.name, place.iteration, end)
        if not (tool.read_only or end.known or (asked.known is not None and asked.known.over is not None)):
            self.services.store()  # at once; what follows from it, a reply or another call, is only used behind it
        return self._ran(asked, tool, arguments, counts_as, end)

    def _ran(self, asked: _Asked, tool: Tool, arguments: dict[str, Any], counts_as: str, end: CallEnd) -> Ran:
        """What the loop is given of a call that has ended."""
        call, text = asked.call, end.text
        record = ToolCallRecord(call.id, tool.name, arguments, text, end.is_error, end.elapsed, asked.place.iteration)
        own = end.own or text == NO_OUTPUT
        told = text if own else delimited(text, origin_of(tool), self.marker, _limit(tool))
        taint = () if tool.trusted or end.own else (origin_of(tool),)
        uncertain = None
        if end.uncertain and (asked.known is None or asked.known.took_effect is None):
            uncertain = uncertain_call(asked.key, tool.name, arguments, caller().step_id)
        entry = (counts_as, result_key(text))
        return Ran(call, record, told, entry, usage=end.usage, taint=taint, uncertain=uncertain)

    async def _worked(
        self, asked: _Asked, tool: Tool, arguments: dict[str, Any], started: float, notes: tuple[str, ...]
    ) -> CallEnd:
        """Runs the tool and lets the observers see what it gave."""
        meter = Meter()
        if asked.known is not None and asked.known.spent.calls:  # it is run again
            meter.add(asked.known.spent)
        with telemetry.tool(tool, asked.call.id, arguments) as span:
            outcome, known = await self._outcome(tool, arguments, asked.key, meter)
            telemetry.tool_ended(span, outcome.text, is_error=outcome.is_error)
        text, artifact = outcome.text, outcome.artifact
        if len(self.hooks):
            duration = self.clock.monotonic() - started
            ctx = self._permission.context(tool, arguments)
            seen = replace(ctx, tool_result=text, is_error=outcome.is_error, duration=duration, notes=notes)
            observed = await self.hooks.after(seen)
            text = observed.ctx.tool_result if observed.ctx.tool_result is not None else text
        text = cut_middle(redact(clean(text)), _limit(tool))
        return CallEnd(
            text,
            outcome.is_error,
            self.clock.monotonic() - started,
            artifact is not None and tool.trusted and text == artifact.line,  # a stranger names its files, too
            known,
            meter.usage if meter.usage.calls else None,
            None if artifact is None else artifact.to_line_json(),
        )

    async def _outcome(
        self, tool: Tool, arguments: dict[str, Any], effect: str, meter: Meter
    ) -> tuple[ToolOutcome, bool]:
        """What the tool gave, and whether that was known: a job's identical calls of a pure tool run once."""
        who = caller()
        context = ToolContext(tool.name, effect, who.job_id, who.step_id, lambda role: meter.metered(self.llm(role)))

        async def ran() -> ToolOutcome:
            if not tool.read_only:
                await self.services.barrier()  # that it began must be known, whatever becomes of this process
            with calling(role="tool", call_id=effect):
                outcome = await run_tool(tool, arguments, context=context)
            return outcome if outcome.artifact is None else await self._kept(outcome.artifact)

        if tool.pure and self.services.cache is not None:
            return await self.services.cache.answer(call_key(tool.name, arguments), ran)
        return await ran(), False

    async def _kept(self, artifact: Artifact) -> ToolOutcome:
        """The artifact under the name it is kept by, and the line that the model sees of it."""
        if self.services.artifacts is None:
            return ToolOutcome(artifact.line, False, artifact)
        try:
            kept = await self.services.artifacts.put(artifact)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a store, the call was made
            log.warning("artifact_lost", name=artifact.name, error=redact(f"{type(error).__name__}: {error}"))
            why = getattr(error, "strerror", None) or error
            return ToolOutcome(f"{artifact.line} But it could not be kept: {why}", False)
        return ToolOutcome(kept.line, False, kept)


def _tell_begun(tell: Emit, name: str, iteration: int, arguments: dict[str, Any]) -> None:
    tell("step", type="iteration", status="start", iteration=iteration, tool_name=name, tool_args=arguments)


def _tell_done(tell: Emit, name: str, iteration: int, end: CallEnd) -> None:
    kept = {} if end.artifact is None else {"artifact": end.artifact}
    tell(
        "step",
        type="iteration",
        status="done",
        iteration=iteration,
        tool_name=name,
        observation=end.text,
        error=cut_middle(end.text, ERROR_CHARS) if end.is_error else None,
        iter_elapsed=end.elapsed,
        **kept,
    )


def _limit(tool: Tool) -> int:
    """Characters that an observation may have."""
    return max(tool.max_result_chars, MAX_OBSERVATION_CHARS)


def _gone(name: str) -> Tool:
    """What stands for a tool that is not here any more, while its recorded calls are: nothing good is known of it."""

    def run(**_: Any) -> str:
        raise UsageError(f"the tool {name!r} is not here any more")

    return Tool(name, "not here any more", NO_PARAMETERS, run, untrusted=True)


def texts(ran: Sequence[Ran]) -> list[tuple[ToolCall, str, bool]]:
    """What goes back to the model, in call order."""
    return [(one.call, one.told, one.record.is_error) for one in ran]
