"""Tool calls as providers hand them out, whole or in pieces."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from registry.messages import ToolCall

from .wire import dumps, loads_object, wire_name

RawCall: TypeAlias = tuple[Any, Any, Any]
"""Id, name and arguments (text, object or None) as the provider gave them."""


def read_calls(raw: Iterable[RawCall], names: Mapping[str, str], taken: Iterable[str] = ()) -> tuple[ToolCall, ...]:
    """Calls with real tool names and decoded arguments.

    The provider's ids are kept; an id that is missing, doubled, or among `taken` is replaced by one of our own.
    """
    used = set(taken)
    calls = []
    for given, name, arguments in raw:
        call_id = given if isinstance(given, str) and given.strip() and given not in used else _own_id()
        used.add(call_id)
        calls.append(_call(call_id, real_name(str(name or ""), names), arguments))
    return tuple(calls)


def _own_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _call(call_id: str, name: str, arguments: Any) -> ToolCall:
    if isinstance(arguments, Mapping):
        return ToolCall(call_id, name, dict(arguments), dumps(arguments).decode())
    text = "" if arguments is None else str(arguments)
    if text.strip() in ("", "null"):  # how models call a tool that takes nothing
        return ToolCall(call_id, name, {}, "{}")
    value = loads_object(text)
    if value is None:
        return ToolCall(call_id, name, {}, text, decoded=False)
    return ToolCall(call_id, name, value, text)


def real_name(name: str, names: Mapping[str, str]) -> str:
    """The tool that a reply means: special tokens and a namespace stuck to the name are taken off."""
    if name in names:
        return names[name]
    bare = name.partition("<|")[0].strip()
    for known in (bare, wire_name(bare), bare.rpartition(".")[2], bare.rpartition(":")[2]):
        if known in names:
            return names[known]
    return bare or name


@dataclass(slots=True)
class _Slot:
    index: Any
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    def complete(self) -> bool:
        return loads_object("".join(self.pieces)) is not None


class CallAssembler:
    """Puts streamed calls together, also from servers that reuse an index, leave ids out or send them late."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []

    def __bool__(self) -> bool:
        return bool(self._slots)

    def add(self, piece: Mapping[str, Any]) -> None:
        """Takes one element of a chunk's `tool_calls`."""
        function = piece.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments")
        text = dumps(arguments).decode() if isinstance(arguments, Mapping) else str(arguments or "")
        slot = self._slot(piece.get("index"), str(piece.get("id") or ""), name, text)
        slot.pieces.append(text)

    def _slot(self, index: Any, call_id: str, name: str, text: str) -> _Slot:
        slot = self._continued(index, call_id)
        if slot is not None and self._another(slot, call_id, name, text):
            slot = None
        if slot is None:
            slot = _Slot(index, call_id, name)
            self._slots.append(slot)
            return slot
        slot.id = slot.id or call_id
        if not slot.name:
            slot.name = name
        elif name and name != slot.name and not call_id and not any(slot.pieces):
            slot.name += name  # a name in pieces
        return slot

    def _continued(self, index: Any, call_id: str) -> _Slot | None:
        """The slot that a piece goes on with, if it is no new call."""
        for slot in reversed(self._slots):
            if call_id and slot.id == call_id:
                return slot
        if index is None:
            last = self._slots[-1] if self._slots else None
            return None if last is not None and call_id and last.id else last
        for slot in reversed(self._slots):
            if slot.index == index:
                return None if call_id and slot.id else slot  # the same index with another id is another call
        return None

    @staticmethod
    def _another(slot: _Slot, call_id: str, name: str, text: str) -> bool:
        """Whether a piece that would go on with a slot begins another call: a name again after whole arguments."""
        if not name or not slot.name:
            return False
        if slot.id and call_id == slot.id and not text:
            return False
        return slot.complete()

    def calls(self) -> list[RawCall]:
        """What has been put together."""
        return [(slot.id, slot.name, "".join(slot.pieces)) for slot in self._slots]
