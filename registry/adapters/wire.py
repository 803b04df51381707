"""Bytes for the wire: JSON, tool names, arguments, and the memoised blocks of tools."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from registry.llm_types import ToolSpec
from registry.messages import ToolCall, canonical_json, nests_too_deep
from registry.text import clean

NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
"""Tool names that OpenAI and Anthropic take."""
_ODD = re.compile(r"[^a-zA-Z0-9_-]+")

ToolBlock: TypeAlias = tuple[bytes, dict[str, str]]
"""The JSON array of the tools, and their names as sent, mapped to the real ones."""


def dumps(value: Any) -> bytes:
    """JSON in UTF-8; half surrogates become replacement characters, what JSON does not know becomes text."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:  # NaN and infinity, circles
        text = canonical_json(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return clean(text).encode()


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def loads_object(text: Any) -> dict[str, Any] | None:
    """The object that a text is in strict JSON, or None; one that is nested too deeply is none."""
    try:
        value = json.loads(text, parse_constant=_constant)
    except (ValueError, TypeError, RecursionError):
        return None
    return value if isinstance(value, dict) and not nests_too_deep(value) else None


def arguments_text(call: ToolCall) -> str:
    """A call's arguments as the text of a JSON object, for the history: the provider's own text where it is one."""
    if not call.decoded:
        return "{}"
    arguments = dict(call.arguments)
    if call.raw is not None:
        value = loads_object(call.raw)
        if value == arguments:
            return call.raw
        if not arguments and value is None:
            return "{}"
    return dumps(arguments).decode()


def wire_name(name: str, salt: str = "") -> str:
    """A tool's name as providers take it: itself where valid, else cleaned, with a mark that keeps it unique."""
    if NAME.match(name) and not salt:
        return name
    mark = hashlib.sha256((salt + name).encode("utf-8", "replace")).hexdigest()[:6]
    return f"{_ODD.sub('_', name).strip('_')[:57] or 'tool'}_{mark}"


def tool_names(tools: tuple[ToolSpec, ...]) -> dict[str, str]:
    """The names as sent, mapped to the real ones, in the tools' order."""
    names: dict[str, str] = {}
    real = {tool.name for tool in tools}
    for tool in tools:
        sent, salt = wire_name(tool.name), ""
        while sent != tool.name and (sent in names or sent in real):
            salt += "+"
            sent = wire_name(tool.name, salt)
        names[sent] = tool.name
    return names


class ToolBlocks:
    """The tools' bytes, made once per set of specs (told apart by identity)."""

    LIMIT = 64

    def __init__(self, encode: Callable[[str, ToolSpec], Mapping[str, Any]]) -> None:
        self._encode = encode
        self._known: dict[tuple[int, ...], tuple[tuple[ToolSpec, ...], ToolBlock]] = {}

    def get(self, tools: tuple[ToolSpec, ...]) -> ToolBlock:
        """The block for these tools."""
        key = tuple(map(id, tools))
        entry = self._known.get(key)
        if entry is not None:
            return entry[1]
        names = tool_names(tools)
        by_name = {tool.name: tool for tool in tools}
        block = (dumps([self._encode(sent, by_name[real]) for sent, real in names.items()]), names)
        if len(self._known) >= self.LIMIT:
            del self._known[next(iter(self._known))]
        self._known[key] = (tools, block)  # holding the specs keeps their ids from being given to others
        return block


def count(value: Any) -> int:
    """A number of tokens as a server gives it; 0 where it is missing or nonsense."""
    return max(0, value) if isinstance(value, int) else 0
