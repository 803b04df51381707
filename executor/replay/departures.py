"""Where a replay leaves the log, as data and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from registry.errors import DagwrightError
from registry.text import cut_middle

from .script import Item

SHOWN_CHARS = 500
"""Characters of a value that a departure shows."""


class DepartedError(DagwrightError):
    """The replay has left the log."""

    code = "departed"


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a replay leaves the log. `kind`: `reply` or `call`, asked for and not in the log; `told`, something else
    is told than the log has; `missing`, what the log has does not come; `end`, another end. `seq` is the log's event
    that was due, None at its end. `message` says it in words."""

    kind: Literal["reply", "call", "told", "missing", "end"]
    message: str
    seq: int | None = None
    step_id: str | None = None
    round: int | None = None
    attempt: int | None = None
    role: str | None = None
    call: str | None = None
    expected: Any = None
    found: Any = None

    def to_json(self) -> dict[str, Any]:
        """The departure as plain JSON data; what does not apply is left out."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in told.items() if value is not None}


def words(item: Item) -> str:
    """An entry of the script in a few words."""
    told: Mapping[str, Any] = item.payload or {}
    if item.reply is not None:
        return f"a reply to the {item.reply.place[3]}"
    if item.kind == "abort":
        return "the end of the work"
    if item.channel == "step_progress":
        return f"step {item.step_id} {told.get('status')}"
    if item.channel == "phase":
        return f"phase {told.get('phase')}"
    if item.channel == "done":
        return f"the end as {told.get('status')}"
    return f"{item.channel}"


def shown(item: Item) -> Any:
    return {"channel": item.channel, **{name: short(value) for name, value in (item.payload or {}).items()}}


def short(value: Any) -> Any:
    return cut_middle(value, SHOWN_CHARS) if isinstance(value, str) else value
