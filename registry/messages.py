"""The words everyone speaks: messages, tool calls, usage, results, events. All frozen; nothing here does I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "pause"]

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as a model asked for it.

    `arguments` are decoded. Where the provider's text is no JSON object, `arguments` is empty, `raw` keeps the text
    and `decoded` is False: the agent then repairs or refuses it against the tool's schema.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    raw: str | None = field(default=None, compare=False)
    decoded: bool = field(default=True, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The call as plain JSON data; `from_json` reads it back."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments, "raw": self.raw, "decoded": self.decoded}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ToolCall:
        """Reads what `to_json` wrote."""
        return cls(data["id"], data["name"], data["arguments"], data.get("raw"), data.get("decoded", True))


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    `reasoning` is the model's thinking as text, for readers. `provider` holds what a provider wants back unchanged
    (thinking blocks with signatures, encrypted reasoning), keyed by adapter dialect: {"anthropic": [...]}.
    `wire` memoises the serialised form per dialect, so that a message is serialised once however often it is sent.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    reasoning: str | None = None
    pinned: bool = False
    provider: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    wire: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"message role {self.role!r} is unknown: one of {', '.join(ROLES)}")
        if not isinstance(self.tool_calls, tuple):
            object.__setattr__(self, "tool_calls", tuple(self.tool_calls))

    @classmethod
    def system(cls, text: str) -> Message:
        """A system message."""
        return cls("system", text)

    @classmethod
    def user(cls, text: str, pinned: bool = False) -> Message:
        """A user message; a pinned one survives compaction."""
        return cls("user", text, pinned=pinned)

    @classmethod
    def assistant(cls, text: str = "", tool_calls: Sequence[ToolCall] = ()) -> Message:
        """A model's turn."""
        return cls("assistant", text, tuple(tool_calls))

    @classmethod
    def tool(cls, call_id: str, text: str, is_error: bool = False) -> Message:
        """The result of the tool call with this id."""
        return cls("tool", text, tool_call_id=call_id, is_error=is_error)

    def to_json(self) -> dict[str, Any]:
        """The message as plain JSON data; `from_json` reads it back."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            data["tool_calls"] = [call.to_json() for call in self.tool_calls]
        for name in ("tool_call_id", "is_error", "reasoning", "pinned", "provider"):
            if value := getattr(self, name):
                data[name] = value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Message:
        """Reads what `to_json` wrote."""
        calls = tuple(ToolCall.from_json(call) for call in data.get("tool_calls", ()))
        return cls(
            data["role"],
            data.get("content", ""),
            calls,
            data.get("tool_call_id"),
            data.get("is_error", False),
            data.get("reasoning"),
            data.get("pinned", False),
            data.get("provider"),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and money of one call, or of several added up.

    `input_tokens` includes `cached_tokens` and `cache_write_tokens`, and `output_tokens` includes `reasoning_tokens`,
    for every provider. `cost` is in USD; None means unknown, which is not zero: adding an unknown cost keeps the known
    part and sets `partial`. `partial` also says that the tokens of some call are unknown. `unpriced_calls` counts the
    calls without a known cost.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    calls: int = 1
    cost: Decimal | None = None
    partial: bool = False
    unpriced_calls: int | None = None

    def __post_init__(self) -> None:
        if self.unpriced_calls is None:
            object.__setattr__(self, "unpriced_calls", self.calls if self.cost is None else 0)

    @classmethod
    def zero(cls) -> Usage:
        """Nothing spent: the start of a sum."""
        return cls(calls=0, cost=Decimal(0))

    @classmethod
    def unknown(cls) -> Usage:
        """One call of which nothing is known, for sums: it makes them partial."""
        return cls(partial=True)

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        unknown = (self.cost is None and self.calls > 0) or (other.cost is None and other.calls > 0)
        parts = [usage for usage in (self, other) if usage.calls or usage.cost] or [self, other]
        known = [usage.cost for usage in parts if usage.cost is not None]  # nothing spent does not make unknown 0
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.calls + other.calls,
            sum(known, Decimal(0)) if known else None,
            self.partial or other.partial or unknown,
            (self.unpriced_calls or 0) + (other.unpriced_calls or 0),
        )

    def __radd__(self, other: object) -> Usage:
        if other == 0:  # sum() starts with 0
            return self
        return NotImplemented

    def to_json(self) -> dict[str, Any]:
        """The usage in the shape of the public JSON: money as a decimal string, None where unknown."""
        return {
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "output_tokens": self.output_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "calls": self.calls,
            "cost_usd": money(self.cost),
            "partial": self.partial,
            "unpriced_calls": self.unpriced_calls,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Usage:
        """Reads what `to_json` wrote."""
        cost = data.get("cost_usd")
        return cls(
            data["input_tokens"],
            data["output_tokens"],
            data.get("cached_tokens", 0),
            data.get("cache_write_tokens", 0),
            data.get("reasoning_tokens", 0),
            data.get("calls", 1),
            None if cost is None else Decimal(cost),
            data.get("partial", False),
            data.get("unpriced_calls"),
        )

    @classmethod
    def recorded(cls, data: Mapping[str, Any] | None) -> Usage:
        """What one call cost, as it was written down; None: nobody knows."""
        return cls.unknown() if data is None else cls.from_json(data)


def money(amount: Decimal | None) -> str | None:
    """USD as a plain decimal string without an exponent or trailing zeros; None stays None."""
    if amount is None:
        return None
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class LLMResult:
    """One finished turn of a model. `usage` None means that the provider did not say: unknown, not zero."""

    message: Message
    usage: Usage | None
    finish_reason: FinishReason
    model: str

    def to_json(self) -> dict[str, Any]:
        """The turn as plain JSON data; `from_json` reads it back."""
        return {
            "message": self.message.to_json(),
            "usage": None if self.usage is None else self.usage.to_json(),
            "finish_reason": self.finish_reason,
            "model": self.model,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LLMResult:
        """Reads what `to_json` wrote."""
        usage = data["usage"]
        message = Message.from_json(data["message"])
        return cls(message, None if usage is None else Usage.from_json(usage), data["finish_reason"], data["model"])


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """A piece of a streamed turn; the last one carries the `result`.

    `reset` says that what came before is void: the try broke off and another one begins.
    """

    text: str = ""
    reasoning: str = ""
    result: LLMResult | None = None
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a job's history. `seq` starts at 1 per job; `ts` is seconds since the epoch, UTC."""

    job_id: str
    seq: int
    ts: float
    channel: str
    step_id: str | None
    payload: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The event as the wire has it: seq, ts, channel, step_id where there is one, and the payload's own keys."""
        head: dict[str, Any] = {"seq": self.seq, "ts": self.ts, "channel": self.channel}
        if self.step_id is not None:
            head["step_id"] = self.step_id
        return {**head, **self.payload}


MAX_SPELT_DEPTH = 10_000
"""Levels of nesting that `canonical_json` spells out at most; what lies deeper is spelt as null."""


def canonical_json(value: Any) -> str:
    """One spelling per value, to compare and hash by: sorted keys, no blanks, 1.0 as 1, no NaN (it becomes null).

    A model may nest its arguments as deeply as it likes: the spelling is then the same, only slower.
    """
    try:
        return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        return _spelt_by_stack(value)


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return _plain(value)


def _spelt_by_stack(value: Any) -> str:
    parts: list[str] = []
    waiting: list[tuple[bool, Any, int]] = [(False, value, 0)]  # (it is a text of ours, what, its depth)
    while waiting:
        ours, item, depth = waiting.pop()
        if ours:
            parts.append(item)
        elif isinstance(item, Mapping):
            pairs = sorted({str(key): inner for key, inner in item.items()}.items())
            waiting += _within("{", [(f"{_scalar(key)}:", inner) for key, inner in pairs], "}", depth)
        elif isinstance(item, list | tuple):
            waiting += _within("[", [("", inner) for inner in item], "]", depth)
        else:
            parts.append(_scalar(item))
    return "".join(parts)


def _within(start: str, items: Sequence[tuple[str, Any]], end: str, depth: int) -> list[tuple[bool, Any, int]]:
    """What a mapping or list puts on the stack, its last part first."""
    if depth >= MAX_SPELT_DEPTH:
        return [(True, "null", depth)]
    found: list[tuple[bool, Any, int]] = [(True, end, depth)]
    for place in range(len(items) - 1, -1, -1):
        label, inner = items[place]
        found += [(False, inner, depth + 1), (True, f"{',' if place else ''}{label}", depth)]
    found.append((True, start, depth))
    return found


def _scalar(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, str | bool | int):
        return value
    return str(value)


MAX_NESTING = 100
"""Levels of nesting that a call's arguments may have: no tool needs more, and deeper ones break whoever walks them."""


def nests_too_deep(value: Any) -> bool:
    """Whether JSON data has more than MAX_NESTING levels."""
    level = [value] if isinstance(value, Mapping | list | tuple) else []
    for _ in range(MAX_NESTING):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, Mapping) else outer)
            if isinstance(item, Mapping | list | tuple)
        ]
        if not level:
            return False
    return True
