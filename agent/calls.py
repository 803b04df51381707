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
from registry.errors import DagwrightError
from registry.llm import LLM
from registry.messages import ToolCall, Usage
from registry.metering import Meter
from registry.redaction import redact
from registry.result_text import NO_OUTPUT, Artifact
from registry.text import clean, cut_middle, load_prompt
from registry.tool_context import ToolContext
from registry.tool_run import ToolOutcome, run_tool
from registry.tools import Tool, ToolRegistry

from .events import Emitter
from .extract import parse_tool_arguments
from .guards import Entry, LoopGuard, call_key, result_key
from .hooks import HookRegistry
from .permission import NotPermittedError, Permission
from .services import Services
from .state import ToolCallRecord, Turn
from .trust import delimited, new_marker, origin_of

log = structlog.get_logger(__name__)

MAX_OBSERVATION_CHARS = 20_000
ERROR_CHARS = 500
"""How much of a failed call's observation stands again in the event's `error`."""
UNKNOWN_TOOL = "(unknown tool)"
"""Calls of tools that do not exist count as one and the same, whatever their names and arguments."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one call came to: its record, the text that the model is told, and what the loop guard remembers of it.
    `usage` is what models cost that the tool called; `taint` says where its text comes from, unless it is trusted."""

    call: ToolCall
    record: ToolCallRecord
    told: str
    entry: Entry
    refused: bool = False
    usage: Usage | None = None
    taint: tuple[str, ...] = ()


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


class _Rejected(Exception):
    """The call is not run; the text is its observation, `key` what the loop guard counts it as."""

    def __init__(self, text: str, key: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.key, self.refused = key, refused


class ToolRunner:
    """Runs the calls of one agent's turns. `llm` is what tools get that ask for a model, by role."""

    def __init__(
        self,
        tools: ToolRegistry,
        hooks: HookRegistry,
        emit: Emitter,
        clock: Clock,
        metadata: Mapping[str, Any],
        services: Services,
        llm: Callable[[str | None], LLM],
    ) -> None:
        self.tools, self.hooks, self.emit, self.clock = tools, hooks, emit, clock
        self._permission = Permission(hooks, services.waits, metadata)
        self.services, self.llm = services, services.llm or llm
        self.marker = services.marker or new_marker()

    async def run(
        self, turn: Turn, guard: LoopGuard, iteration: int, finish_reason: str, taint: tuple[str, ...] = ()
    ) -> tuple[Ran, ...]:
        """All calls of a turn at the same time; results in call order. `taint`: what the agent has read that is not to
        be trusted. Cancelling this cancels and awaits them."""
        places = [_Place(iteration, number, taint) for number in range(1, len(turn.calls) + 1)]
        if len(turn.calls) == 1:
            return (await self._one(turn.calls[0], turn, guard, finish_reason, places[0]),)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._one(call, turn, guard, finish_reason, place))
                for call, place in zip(turn.calls, places, strict=True)
            ]
        return tuple(task.result() for task in tasks)

    async def _one(self, call: ToolCall, turn: Turn, guard: LoopGuard, finish_reason: str, place: _Place) -> Ran:
        with self.services.activity.call():
            return await self._done(call, turn, guard, finish_reason, place)

    async def _done(self, call: ToolCall, turn: Turn, guard: LoopGuard, finish_reason: str, place: _Place) -> Ran:
        started = self.clock.monotonic()
        arguments: Mapping[str, Any] = call.arguments
        try:
            if turn.cut:
                raise _Rejected(load_prompt("agent", "cut_call").substitute(), call_key(call.name, "cut"))
            tool = self._tool(call)
            arguments = self._arguments(tool, call, finish_reason)
            key = call_key(tool.name, arguments)
            if guard.refuses(key):
                text = load_prompt("agent", "refused").substitute(count=guard.threshold)
                raise _Rejected(text, key, refused=True)
            arguments, notes = await self._permission.of(tool, arguments, place.key, place.taint)
        except NotPermittedError as refusal:
            return self._rejected(_Rejected(str(refusal), key), call, arguments, guard, place)
        except _Rejected as rejected:
            return self._rejected(rejected, call, arguments, guard, place)
        await self.services.activity.may_begin()
        with self.services.activity.run():
            return await self._run(tool, call, arguments, key, place, started, notes)

    def _rejected(
        self, rejected: _Rejected, call: ToolCall, arguments: Mapping[str, Any], guard: LoopGuard, place: _Place
    ) -> Ran:
        """A call that is not run: what is wrong with it is its observation."""
        text = cut_middle(redact(clean(str(rejected))), MAX_OBSERVATION_CHARS)
        refused = rejected.refused or guard.refuses(rejected.key)
        result = (
            guard.last_result(rejected.key) if refused else result_key(text if rejected.key != UNKNOWN_TOOL else "")
        )
        self._tell_rejected(call, arguments, text, place.iteration)
        record = ToolCallRecord(call.id, call.name, arguments, text, True, 0.0, place.iteration, ran=False)
        return Ran(call, record, text, (rejected.key, result), refused)

    def _tool(self, call: ToolCall) -> Tool:
        if call.name in self.tools:
            return self.tools.get(call.name)
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

    async def _run(
        self,
        tool: Tool,
        call: ToolCall,
        arguments: dict[str, Any],
        key: str,
        place: _Place,
        started: float,
        notes: tuple[str, ...],
    ) -> Ran:
        effect, iteration, meter = place.key, place.iteration, Meter()
        self.emit("call", status="start", call_id=call.id, key=effect, tool_name=tool.name, tool_args=arguments)
        self.emit(
            "step", type="iteration", status="start", iteration=iteration, tool_name=tool.name, tool_args=arguments
        )
        with telemetry.tool(tool, call.id, arguments) as span:
            outcome, known = await self._outcome(tool, arguments, effect, meter)
            telemetry.tool_ended(span, outcome.text, is_error=outcome.is_error)
        text, is_error, artifact = outcome.text, outcome.is_error, outcome.artifact
        if len(self.hooks):
            duration = self.clock.monotonic() - started
            ctx = self._permission.context(tool, arguments)
            seen = replace(ctx, tool_result=text, is_error=is_error, duration=duration, notes=notes)
            observed = await self.hooks.after(seen)
            text = observed.ctx.tool_result if observed.ctx.tool_result is not None else text
        limit = max(tool.max_result_chars, MAX_OBSERVATION_CHARS)
        text = cut_middle(redact(clean(text)), limit)
        elapsed = self.clock.monotonic() - started
        spent = meter.usage if meter.usage.calls else None
        self.emit(
            "call",
            status="end",
            call_id=call.id,
            key=effect,
            tool_name=tool.name,
            observation=text,
            is_error=is_error,
            **({"known": True} if known else {}),
            **({"usage": spent.to_json()} if spent is not None else {}),
        )
        self._tell_done(tool.name, iteration, text, is_error, elapsed, artifact)
        if not (tool.read_only or known):
            await self.services.barrier()  # what was done must be known before anything is made of it
        record = ToolCallRecord(call.id, tool.name, arguments, text, is_error, elapsed, iteration)
        own = artifact is not None and tool.trusted and text == artifact.line  # a stranger names its files, too
        told = text if own or text == NO_OUTPUT else delimited(text, origin_of(tool), self.marker, limit)
        taint = () if tool.trusted else (origin_of(tool),)
        return Ran(call, record, told, (key, result_key(text)), usage=spent, taint=taint)

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

    def _tell_rejected(self, call: ToolCall, arguments: Mapping[str, Any], text: str, iteration: int) -> None:
        args = dict(arguments)
        self.emit("step", type="iteration", status="start", iteration=iteration, tool_name=call.name, tool_args=args)
        self._tell_done(call.name, iteration, text, True, 0.0)

    def _tell_done(
        self, name: str, iteration: int, text: str, is_error: bool, elapsed: float, artifact: Artifact | None = None
    ) -> None:
        kept = {} if artifact is None else {"artifact": artifact.to_line_json()}
        self.emit(
            "step",
            type="iteration",
            status="done",
            iteration=iteration,
            tool_name=name,
            observation=text,
            error=cut_middle(text, ERROR_CHARS) if is_error else None,
            iter_elapsed=elapsed,
            **kept,
        )


def texts(ran: Sequence[Ran]) -> list[tuple[ToolCall, str, bool]]:
    """What goes back to the model, in call order."""
    return [(one.call, one.told, one.record.is_error) for one in ran]
