"""A turn's tool calls: each is checked, passes the hooks, runs, and gets exactly one result, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.clock import Clock
from registry.context import caller
from registry.errors import DagwrightError
from registry.messages import ToolCall
from registry.text import clean, cut_middle, load_prompt
from registry.tool_run import run_tool
from registry.tools import Tool, ToolRegistry

from .events import Emitter
from .extract import parse_tool_arguments
from .guards import Entry, LoopGuard, call_key, result_key
from .hooks import HookContext, HookRegistry
from .services import Services
from .state import ToolCallRecord, Turn

MAX_OBSERVATION_CHARS = 20_000
ERROR_CHARS = 500
"""How much of a failed call's observation stands again in the event's `error`."""
UNKNOWN_TOOL = "(unknown tool)"
"""Calls of tools that do not exist count as one and the same, whatever their names and arguments."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one call came to: its record, and what the loop guard remembers of it. `artifact` is for the store."""

    call: ToolCall
    record: ToolCallRecord
    entry: Entry
    refused: bool = False
    artifact: Any = None


class _Rejected(Exception):
    """The call is not run; the text is its observation, `key` what the loop guard counts it as."""

    def __init__(self, text: str, key: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.key, self.refused = key, refused


class ToolRunner:
    """Runs the calls of one agent's turns."""

    def __init__(
        self,
        tools: ToolRegistry,
        hooks: HookRegistry,
        emit: Emitter,
        clock: Clock,
        metadata: Mapping[str, Any],
        services: Services,
    ) -> None:
        self.tools, self.hooks, self.emit, self.clock, self.metadata = tools, hooks, emit, clock, metadata
        self.services = services

    async def run(self, turn: Turn, guard: LoopGuard, iteration: int, finish_reason: str) -> tuple[Ran, ...]:
        """All calls of a turn at the same time; results in call order. Cancelling this cancels and awaits them."""
        if len(turn.calls) == 1:
            return (await self._one(turn.calls[0], turn, guard, iteration, finish_reason, 1),)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._one(call, turn, guard, iteration, finish_reason, place))
                for place, call in enumerate(turn.calls, 1)
            ]
        return tuple(task.result() for task in tasks)

    async def _one(
        self, call: ToolCall, turn: Turn, guard: LoopGuard, iteration: int, finish_reason: str, place: int
    ) -> Ran:
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
            tool, arguments = await self._permitted(tool, arguments, key)
        except _Rejected as rejected:
            text = cut_middle(clean(str(rejected)), MAX_OBSERVATION_CHARS)
            refused = rejected.refused or guard.refuses(rejected.key)
            result = (
                guard.last_result(rejected.key) if refused else result_key(text if rejected.key != UNKNOWN_TOOL else "")
            )
            self._tell_rejected(call, arguments, text, iteration)
            record = ToolCallRecord(call.id, call.name, arguments, text, True, 0.0, iteration, ran=False)
            return Ran(call, record, (rejected.key, result), refused)
        return await self._run(tool, call, arguments, key, iteration, started, place)

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

    async def _permitted(self, tool: Tool, arguments: dict[str, Any], key: str) -> tuple[Tool, dict[str, Any]]:
        """The arguments after the guards; rewritten ones are validated again."""
        if not len(self.hooks):
            return tool, arguments
        verdict = await self.hooks.before(self._ctx(tool, arguments))
        if verdict.blocked is not None:
            raise _Rejected(f"The call was blocked: {verdict.blocked}", key)
        if verdict.ctx.tool_args is arguments:
            return tool, arguments
        try:
            return tool, tool.check(verdict.ctx.tool_args)
        except ValueError as error:
            raise _Rejected(f"A hook rewrote the arguments, and they no longer fit: {error}", key) from None

    async def _run(
        self,
        tool: Tool,
        call: ToolCall,
        arguments: dict[str, Any],
        key: str,
        iteration: int,
        started: float,
        place: int,
    ) -> Ran:
        effect = self._effect_key(iteration, place)
        self.emit("call", status="start", call_id=call.id, key=effect, tool_name=tool.name, tool_args=arguments)
        self.emit(
            "step", type="iteration", status="start", iteration=iteration, tool_name=tool.name, tool_args=arguments
        )
        outcome = await run_tool(tool, arguments)
        text, is_error = outcome.text, outcome.is_error
        if len(self.hooks):
            verdict = await self.hooks.after(self._ctx(tool, arguments, text, is_error))
            text = verdict.ctx.tool_result if verdict.ctx.tool_result is not None else text
        text = cut_middle(clean(text), max(tool.max_result_chars, MAX_OBSERVATION_CHARS))
        elapsed = self.clock.monotonic() - started
        self.emit("call", status="end", call_id=call.id, key=effect, observation=text, is_error=is_error)
        self._tell_done(tool.name, iteration, text, is_error, elapsed)
        record = ToolCallRecord(call.id, tool.name, arguments, text, is_error, elapsed, iteration)
        return Ran(call, record, (key, result_key(text)), artifact=outcome.artifact)

    def _tell_rejected(self, call: ToolCall, arguments: Mapping[str, Any], text: str, iteration: int) -> None:
        args = dict(arguments)
        self.emit("step", type="iteration", status="start", iteration=iteration, tool_name=call.name, tool_args=args)
        self._tell_done(call.name, iteration, text, True, 0.0)

    def _tell_done(self, name: str, iteration: int, text: str, is_error: bool, elapsed: float) -> None:
        self.emit(
            "step",
            type="iteration",
            status="done",
            iteration=iteration,
            tool_name=name,
            observation=text,
            error=cut_middle(text, ERROR_CHARS) if is_error else None,
            iter_elapsed=elapsed,
        )

    def _ctx(
        self, tool: Tool, arguments: Mapping[str, Any], result: str | None = None, is_error: bool = False
    ) -> HookContext:
        who = caller()
        metadata = {**self.metadata, "job_id": who.job_id, "step_id": who.step_id}
        return HookContext(
            tool.name, arguments, metadata.get("agent_id"), metadata.get("user_id"), metadata, result, is_error
        )

    @staticmethod
    def _effect_key(iteration: int, place: int) -> str:
        """One stable key per call: the same call has it again when an interrupted step goes on."""
        who = caller()
        return f"{who.job_id}/{who.step_id or ''}/{who.attempt}/{iteration}/{place}"


def texts(ran: Sequence[Ran]) -> list[tuple[ToolCall, str, bool]]:
    """What goes back to the model, in call order."""
    return [(one.call, one.record.observation, one.record.is_error) for one in ran]
