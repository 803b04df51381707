"""Calls that were under way when a worker died: nobody knows whether they took effect, until a human says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from agent.events import Emit
from agent.waits import Decision, PendingCall


@runtime_checkable
class Settles(Protocol):
    """Who can ask."""

    async def settle(self, call: PendingCall) -> Decision | None:
        """Whether a call took effect; None: nobody could say."""


async def unsettled_of(waits: object, calls: Iterable[PendingCall], tell: Emit) -> list[PendingCall]:
    """Of these calls those that did not take effect, or of which nobody could say. Each answer is told."""
    unsettled = []
    for call in calls:
        decision = await waits.settle(call) if isinstance(waits, Settles) else None
        if decision is not None:
            tell("call", status="settled", key=call.call_id, took_effect=decision.approve, by=decision.decided_by)
        if decision is None or not decision.approve:
            unsettled.append(call)
    return unsettled


def not_known(calls: Iterable[PendingCall], denied: Iterable[str] = ()) -> str:
    """What to say of them; `denied` are the keys of those that a human said it of before."""
    names = ", ".join(dict.fromkeys([*(f"{call.tool_name} ({call.call_id})" for call in calls), *denied]))
    return f"the worker died while these calls were under way, and nobody said that they took effect: {names}"
