"""Calls that were under way when a worker died: nobody knows whether they took effect, until a human says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from agent.events import Emit
from agent.waits import Decision, PendingCall


class Effects:
    """Folds `call` events: `open` are calls whose effect nobody knows, `denied` those that were said to have had none;
    each a tool's name by the call's key."""

    def __init__(self) -> None:
        self.open: dict[str, str] = {}
        self.denied: dict[str, str] = {}

    def copy(self) -> Effects:
        """The same, to go on with."""
        twin = Effects()
        twin.open, twin.denied = dict(self.open), dict(self.denied)
        return twin

    def hear(self, told: Mapping[str, Any]) -> None:
        """The payload of the next `call` event."""
        key, status = str(told.get("key")), told.get("status")
        if status == "uncertain":
            self.open[key] = str(told.get("tool_name"))
        elif status == "settled":
            name = self.open.pop(key, "a call")
            if not told.get("took_effect"):
                self.denied[key] = name

    def in_words(self) -> str:
        """What to say of them; empty where there are none."""
        if not (self.open or self.denied):
            return ""
        names = ", ".join(f"{name} ({key})" for key, name in (self.open | self.denied).items())
        return f"a worker died while these calls were under way, and nobody said that they took effect: {names}"


@runtime_checkable
class Settles(Protocol):
    """Who can ask."""

    async def settle(self, call: PendingCall) -> Decision | None:
        """Whether a call took effect; None: nobody could say."""


async def ask_about(waits: object, calls: Iterable[PendingCall], tell: Emit) -> None:
    """Asks whether each of these calls took effect. What is said of it is told."""
    for call in calls:
        decision = await waits.settle(call) if isinstance(waits, Settles) else None
        if decision is not None:
            tell("call", status="settled", key=call.call_id, took_effect=decision.approve, by=decision.decided_by)
