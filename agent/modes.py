"""Native and JSON: two ways to let a model call tools, behind one interface. The loop itself exists once, elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from registry.llm import LLM
from registry.messages import LLMResult, Message, ToolCall
from registry.text import load_prompt
from registry.tools import Tool, ToolRegistry

from .extract import extract_json, read_turn
from .state import Turn

UNPARSED = "(could not parse LLM output as JSON)"
"""The reasoning that marks a reply which could not be read."""

MAX_STRING, MAX_ITEMS = 2_000, 32
"""Bounds for strings and arrays of a constrained action: without them a small model can loop inside one."""
MAX_REASONING = 300


class Mode(Protocol):
    """How tools are offered, how a reply is read, and how results go back."""

    name: str
    drains_early: bool
    """Whether interrupts are taken in right after each assistant message."""

    def system_prompt(self, date: str, tools: ToolRegistry, extra: str) -> str:
        """The system message's text."""

    def request(self, llm: LLM, tools: ToolRegistry, *, final_only: bool, spent: str | None) -> dict[str, Any]:
        """What goes into `chat` beside the messages. `spent` is a tool that was just called twice alike for nothing."""

    def read(self, result: LLMResult, tools: ToolRegistry, ordinal: int) -> Turn:
        """A reply as a turn; `ordinal` makes ids of our own unique."""

    def observations(self, turn: Turn, texts: Sequence[tuple[ToolCall, str, bool]]) -> tuple[Message, ...]:
        """The messages that bring results back, in call order: (call, text, is_error)."""


class NativeMode:
    """Tools go through the provider's own tool API."""

    name = "native"
    drains_early = False

    def system_prompt(self, date: str, tools: ToolRegistry, extra: str) -> str:
        """Short: the tools travel beside it."""
        return load_prompt("agent", "native").substitute(date=date, extra=_extra(extra))

    def request(self, llm: LLM, tools: ToolRegistry, *, final_only: bool, spent: str | None) -> dict[str, Any]:
        """The tools; on the last turn they stay where the provider can be told not to use them."""
        if not len(tools):
            return {}
        if not final_only:
            return {"tools": tools}
        return {"tools": tools, "tool_choice": "none"} if llm.abilities["tool_choice"] else {}

    def read(self, result: LLMResult, tools: ToolRegistry, ordinal: int) -> Turn:
        """Structured calls; else calls that leaked into the text; else the text is final."""
        message, cut = result.message, result.finish_reason == "length"
        reasoning = message.reasoning or ""
        if message.tool_calls:
            return Turn(message, message.tool_calls, reasoning=reasoning, cut=cut)
        if result.finish_reason == "pause":
            return Turn(message, reasoning=reasoning, pause=True)
        if cut:
            return Turn(message, final=message.content, reasoning=reasoning, cut=True)
        try:
            read = read_turn(message.content, list(tools), result.finish_reason)
        except ValueError as error:
            return Turn(message, reasoning=reasoning, problem=str(error))
        if read.calls:
            calls = _own_calls(read.calls, ordinal)
            return Turn(replace(message, content="", tool_calls=calls), calls, reasoning=reasoning or read.reasoning)
        return Turn(message, final=read.final, reasoning=reasoning or read.reasoning)

    def observations(self, turn: Turn, texts: Sequence[tuple[ToolCall, str, bool]]) -> tuple[Message, ...]:
        """One tool message per call, with the call's own id."""
        return tuple(Message.tool(call.id, text, is_error) for call, text, is_error in texts)


class JSONMode:
    """Tools stand in the system prompt; the model answers with one JSON object per turn."""

    name = "json"
    drains_early = True

    def system_prompt(self, date: str, tools: ToolRegistry, extra: str) -> str:
        """The rules of the form, and every tool with its arguments."""
        lines = [_described(tool) for tool in tools] or ["(none: answer at once)"]
        return load_prompt("agent", "json").substitute(date=date, tools="\n".join(lines), extra=_extra(extra))

    def request(self, llm: LLM, tools: ToolRegistry, *, final_only: bool, spent: str | None) -> dict[str, Any]:
        """A constrained action where the server can, JSON mode where it can, else nothing.

        A constrained model that repeats itself can't even write the same call again: without that, a small one at
        temperature 0 would go on for ever.
        """
        if llm.abilities["json_schema"]:
            offered = () if final_only else tuple(tool for tool in tools if tool.name != spent)
            schema = {"name": "action", "schema": action_schema(offered), "strict": False}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        return {"response_format": {"type": "json_object"}} if llm.abilities["json_mode"] else {}

    def read(self, result: LLMResult, tools: ToolRegistry, ordinal: int) -> Turn:
        """One action; only the first of several calls is run, the model sees its result before it goes on."""
        message, cut = result.message, result.finish_reason == "length"
        reasoning = message.reasoning or ""
        text = message.content or "".join(call.raw or "" for call in message.tool_calls)
        if message.tool_calls and not message.content:  # a model that calls natively although no tools were sent
            text = "\n".join(_as_action(call) for call in message.tool_calls[:1])
        message = replace(message, content=text, tool_calls=())
        if result.finish_reason == "pause":
            return Turn(message, reasoning=reasoning, pause=True)
        if cut:
            partial = extract_json(text, allow_partial=True)
            answer = partial.get("answer") if isinstance(partial, dict) else None
            return Turn(message, final=answer if isinstance(answer, str) else "", reasoning=reasoning, cut=True)
        if not text.strip():
            return Turn(message, final="", reasoning=reasoning)
        try:
            read = read_turn(text, list(tools), result.finish_reason)
        except ValueError as error:
            return Turn(message, reasoning=reasoning, problem=str(error))
        reasoning = read.reasoning or reasoning
        if read.calls:
            return Turn(message, _own_calls(read.calls[:1], ordinal), reasoning=reasoning)
        if read.explicit:
            return Turn(message, final=read.final, reasoning=reasoning)
        return Turn(message, final=read.final, reasoning=reasoning or UNPARSED, unreadable=True)

    def observations(self, turn: Turn, texts: Sequence[tuple[ToolCall, str, bool]]) -> tuple[Message, ...]:
        """User messages, each headed by its tool."""
        return tuple(
            Message.user(f"{'Error' if is_error else 'Result'} of {call.name}:\n{text}")
            for call, text, is_error in texts
        )


NATIVE, JSON = NativeMode(), JSONMode()


def mode_for(llm: LLM, use_native_tools: bool) -> Mode:
    """Native only when it is wanted and the model can; else JSON."""
    return NATIVE if use_native_tools and llm.abilities["tool_call"] else JSON


def action_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """The JSON Schema of one action: the call of any of these tools with its own arguments, or a final answer.

    Every string and array is bounded, and the reasoning comes first so that it can inform the choice.
    """
    reasoning = {"type": "string", "maxLength": MAX_REASONING}
    definitions: dict[str, Any] = {}
    choices = []
    for tool in tools:
        arguments = bounded(tool.parameters)
        own = arguments.pop("$defs", {})
        if any(definitions.setdefault(name, schema) != schema for name, schema in own.items()):
            arguments = {"type": "object"}  # two tools define one name differently: their references can't share a root
        name = {"const": tool.name}
        choices.append(_object(reasoning=reasoning, type={"const": "tool_call"}, tool_name=name, tool_args=arguments))
    answer = {"type": "string", "minLength": 1, "maxLength": 2 * MAX_STRING}
    choices.append(_object(reasoning=reasoning, type={"const": "final_answer"}, answer=answer))
    if len(choices) == 1:
        return choices[0]
    return {"type": "object", "anyOf": choices, **({"$defs": definitions} if definitions else {})}


def bounded(schema: Any) -> Any:
    """A copy of a schema in which every string has a `maxLength` and every array a `maxItems`."""
    if isinstance(schema, Mapping):
        copy = {key: bounded(value) for key, value in schema.items() if key not in ("title", "default")}
        kind = schema.get("type")
        if kind == "string" and not schema.keys() & {"enum", "const", "format", "pattern"}:
            copy.setdefault("maxLength", MAX_STRING)
        elif kind == "array":
            copy.setdefault("maxItems", MAX_ITEMS)
        elif kind == "object" and "properties" in schema:
            copy.setdefault("additionalProperties", False)
        return copy
    return [bounded(item) for item in schema] if isinstance(schema, list) else schema


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _described(tool: Tool) -> str:
    properties = tool.parameters.get("properties", {})
    shape = json.dumps(properties, ensure_ascii=False, separators=(",", ":")) if properties else "{}"
    needed = ", ".join(tool.parameters.get("required", ()))
    return f"- {tool.name}: {tool.description}\n  tool_args: {shape}" + (f" (required: {needed})" if needed else "")


def _extra(extra: str) -> str:
    return f"\n{extra.strip()}" if extra.strip() else ""


def _own_calls(calls: Sequence[Any], ordinal: int) -> tuple[ToolCall, ...]:
    """Calls read from a text, with ids of our own: letters and digits that every provider accepts."""
    return tuple(ToolCall(f"text_{ordinal}_{place}", call.name, call.arguments) for place, call in enumerate(calls, 1))


def _as_action(call: ToolCall) -> str:
    action = {"type": "tool_call", "reasoning": "", "tool_name": call.name, "tool_args": dict(call.arguments)}
    return json.dumps(action, ensure_ascii=False, default=str)
