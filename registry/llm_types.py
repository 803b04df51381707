"""A call of a model as values: what is asked, what is sent, what came of it. And what a model can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .context import Caller
from .errors import LLMError, UsageError
from .messages import LLMResult, Message, Usage

ABILITIES = ("tool_call", "tool_choice", "json_mode", "json_schema", "streaming", "vision", "thinking")


class Abilities(dict[str, bool]):
    """What a model can do: tool_call, tool_choice, json_mode, json_schema, streaming, vision, thinking.

    Missing ones are False; an unknown name is a UsageError.
    """

    def __init__(self, **abilities: bool) -> None:
        if unknown := sorted(set(abilities) - set(ABILITIES)):
            raise UsageError(f"unknown abilities {', '.join(unknown)}: there are {', '.join(ABILITIES)}")
        super().__init__({name: bool(abilities.get(name, False)) for name in ABILITIES})


class _Inherit:
    def __repr__(self) -> str:
        return "INHERIT"


INHERIT: Final = _Inherit()
"""`reasoning_effort=INHERIT`: what the model was configured with. None: reasoning off, where the provider can."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told of a tool: name, description and the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call, neutral of any provider. `tool_choice`: None, auto, none, required, or {"name": tool}."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    response_format: Mapping[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | _Inherit | None = INHERIT
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call ready to be sent: the body's bytes, the output tokens it asks for at most (None: no limit is sent),
    and the tools' names as sent, mapped to the real ones. `extra` is the adapter's own, `reservation` the scope's."""

    request: ChatRequest
    body: bytes
    output_bound: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    extra: Any = None
    reservation: Any = None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What one try of a call came to. Exactly one of `result` and `error` is set; `usage` None means unknown.

    `started_at` (seconds since the epoch) is when it was sent, `elapsed` the seconds from then. `cached`: it was not
    sent, a reply of before was taken; `reply_key` is its place in the cache of replies, where there is one.
    """

    caller: Caller
    model_name: str
    model_id: str
    request: ChatRequest
    result: LLMResult | None
    error: LLMError | None
    usage: Usage | None
    attempt: int
    started_at: float
    elapsed: float
    prepared: Prepared
    cached: bool = False
    reply_key: str | None = None


def tool_specs(tools: Any) -> tuple[ToolSpec, ...]:
    """Tools in any accepted form as what a model is told of them."""
    specs = []
    for tool in tools or ():
        if isinstance(tool, ToolSpec):
            specs.append(tool)
        elif isinstance(tool, Mapping):
            inner = tool.get("function", tool)
            specs.append(
                ToolSpec(
                    inner["name"],
                    inner.get("description", ""),
                    inner.get("parameters") or {"type": "object", "properties": {}},
                )
            )
        else:
            specs.append(tool.spec)
    return tuple(specs)


def tool_choice_of(choice: Any) -> str | Mapping[str, Any] | None:
    """A tool choice in any accepted form, neutral of any provider. Raises UsageError for another one."""
    if choice is None or choice in ("auto", "none", "required"):
        return choice  # type: ignore[no-any-return]
    if isinstance(choice, Mapping):
        name = choice.get("name") or choice.get("function", {}).get("name")
        if name:
            return {"name": name}
    raise UsageError(f'tool_choice {choice!r} is none of None, "auto", "none", "required", {{"name": TOOL}}')
