"""Identical calls of pure tools are answered once per job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .tool_run import ToolOutcome


@dataclass(slots=True)
class _Flight:
    """A call that runs now, for whoever asks the same meanwhile."""

    landed: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: ToolOutcome | None = None


class CallCache:
    """The answers of one job's pure calls, by key. Of calls with the same key one runs and the others wait for it.

    An error answers those who wait for it and is not kept: the next one to ask tries again. When the one who runs the
    call is cancelled, the next of those who wait runs it.
    """

    def __init__(self) -> None:
        self._answers: dict[str, ToolOutcome] = {}
        self._flights: dict[str, _Flight] = {}

    async def answer(self, key: str, call: Callable[[], Awaitable[ToolOutcome]]) -> tuple[ToolOutcome, bool]:
        """The call's outcome, and whether it was known: then nothing was run."""
        while (flight := self._flights.get(key)) is not None:
            await flight.landed.wait()
            if flight.outcome is not None:
                return flight.outcome, True
        if key in self._answers:
            return self._answers[key], True
        flight = self._flights[key] = _Flight()
        try:
            flight.outcome = await call()
            if not flight.outcome.is_error:
                self._answers[key] = flight.outcome
            return flight.outcome, False
        finally:
            del self._flights[key]
            flight.landed.set()
