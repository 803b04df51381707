"""Whatever a tool returns or raises, as text that a model can read and any encoder takes."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from registry.text import clean, cut_end

NO_OUTPUT = "(no output)"

MAX_PLAIN_EXPONENT = 100
"""Decimals with a larger exponent are shown with it."""

MAX_DEPTH = 40
MAX_NODES = 100_000
"""Values of a result that are shown: shared references can make a small object endless as text."""

MAX_INT_BITS = 10_000
"""Python refuses to print integers of more than 4,300 digits (about 14,300 bits)."""


def result_text(value: Any) -> str:
    """A tool's return value as text: strings and bytes as they are, the rest as JSON; never empty, always encodable."""
    if isinstance(value, str) and not isinstance(value, Enum):
        text = value
    elif isinstance(value, bytes | bytearray | memoryview):
        text = _decoded(value)
    elif value is None:
        text = ""
    elif isinstance(value, float):
        text = str(value)
    else:
        plain = _Plainer().plain(value)
        text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, allow_nan=False)
    text = clean(text)
    return text if text.strip() else NO_OUTPUT


def error_text(error: BaseException) -> str:
    """An exception as text: its type and message, notes and grouped exceptions; the type alone where it has none."""
    lines = [_error_line(error), *(str(note) for note in getattr(error, "__notes__", ()))]
    if isinstance(error, BaseExceptionGroup):
        lines += [f"- {_error_line(inner)}" for inner in error.exceptions[:20]]
    return clean("\n".join(lines))


def _error_line(error: BaseException) -> str:
    message = _shown(error, str).strip()
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def _shown(value: Any, show: Callable[[Any], str]) -> str:
    """`str` or `repr` of an object that may be broken."""
    try:
        return str(show(value))
    except Exception as error:  # noqa: BLE001 - a foreign __str__ may raise anything; its object is still a result
        return f"({type(value).__name__} that can't be shown: {type(error).__name__})"


def _decoded(value: bytes | bytearray | memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")


class _Plainer:
    """Copies a value into JSON data: cycles, depth and size are bounded, NaN is null, odd objects are their text."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._nodes = 0

    def plain(self, value: Any, depth: int = 0) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            return "…"
        if isinstance(value, Enum):
            return self.plain(value.value, depth + 1)
        if value is None or isinstance(value, bool | str | int | float):
            return _scalar(value)
        return self._structure(value, depth) if (inner := _inner(value)) is value else self._once(value, inner, depth)

    def _structure(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            return self._once(value, value, depth)
        if isinstance(value, bytes | bytearray | memoryview):
            return clean(_decoded(value))
        return clean(_shown(value, str))

    def _once(self, owner: Any, inner: Any, depth: int) -> Any:
        """The copy of a container, unless we are inside it already."""
        if id(owner) in self._open:
            return "(circular)"
        self._open.add(id(owner))
        try:
            if isinstance(inner, Mapping):
                return {_key(key): self.plain(entry, depth + 1) for key, entry in self._some(inner.items())}
            if isinstance(inner, list | tuple | set | frozenset):
                return [self.plain(entry, depth + 1) for entry in self._some(inner)]
            return self.plain(inner, depth + 1)
        finally:
            self._open.discard(id(owner))

    def _some(self, entries: Any) -> Any:
        for entry in entries:
            if self._nodes > MAX_NODES:
                return
            yield entry


def _key(key: Any) -> str:
    return clean(key if isinstance(key, str) else _shown(key, str))


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        bits = value.bit_length()
        return int(value) if bits <= MAX_INT_BITS else f"(an integer of {bits} bits)"
    return value


def _inner(value: Any) -> Any:
    """What stands for a value of a known kind in JSON; the value itself where nothing does."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() and abs(value.adjusted()) < MAX_PLAIN_EXPONENT else str(value)
    return _fields(value)


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value) if field.repr}
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)):
        return dict(zip(names, value, strict=False))
    if (pydantic := sys.modules.get("pydantic")) and isinstance(value, pydantic.BaseModel):
        return dict(value)
    if (subprocess := sys.modules.get("subprocess")) and isinstance(value, subprocess.CompletedProcess):
        return {"exit_status": value.returncode, "stdout": value.stdout, "stderr": value.stderr}
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class Artifact:
    """A tool's result for the reader's eyes: HTML, Markdown, an image, a file. The model sees one line about it."""

    name: str
    mime: str
    content: str | bytes

    @property
    def data(self) -> bytes:
        """The content as bytes, text as UTF-8."""
        return self.content if isinstance(self.content, bytes) else clean(self.content).encode()

    @property
    def line(self) -> str:
        """What the model sees."""
        name = cut_end(" ".join(clean(self.name).split()).replace("[", "(").replace("]", ")") or "unnamed", 200)
        mime = cut_end(" ".join(clean(self.mime).split()), 100)
        preview = f"[Artifact generated: {name}] The content is rendered as a preview in the UI."
        return f"{preview} ({mime}, {len(self.data):,} bytes)"

    def to_line_json(self) -> dict[str, Any]:
        """What readers are told of it; the content is fetched by its name."""
        return {"name": self.name, "mime": self.mime, "size": len(self.data)}

    def to_json(self) -> dict[str, Any]:
        """The artifact as plain JSON data, its bytes in base64; `from_json` reads it back."""
        return {"name": self.name, "mime": self.mime, "content": base64.b64encode(self.data).decode("ascii")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Artifact:
        """Reads what `to_json` wrote; the content comes back as bytes."""
        return cls(data["name"], data["mime"], base64.b64decode(data["content"]))
