"""How an agent tells what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from registry.clock import SYSTEM_CLOCK, Clock
from registry.context import caller
from registry.messages import Event

OnEvent = Callable[[Event], None]
Emit = Callable[..., None]
"""`emit(channel, **payload)`."""

INTERNAL_CHANNELS = frozenset(
    {
        "job_started", "turn", "call", "note", "compacted", "verdict", "route", "fallback", "plan_diff", "budget",
    }
)  # fmt: skip
"""Channels that recovery, audit and cost need and readers don't get."""


class Emitter:
    """Numbers events and hands them to one synchronous observer; without an observer it does nothing.

    A job's log numbers them anew: `seq` here counts this agent's own.
    """

    __slots__ = ("clock", "on_event", "seq")

    def __init__(self, on_event: OnEvent | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.on_event, self.clock, self.seq = on_event, clock, 0

    def __call__(self, channel: str, **payload: Any) -> None:
        if self.on_event is None:
            return
        self.seq += 1
        who = caller()
        self.on_event(Event(who.job_id, self.seq, self.clock.time(), channel, who.step_id, payload))
