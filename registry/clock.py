"""Time as a port, so that tests need not wait."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, date, datetime
from typing import Protocol


class Clock(Protocol):
    """What the engine asks of time."""

    def time(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""

    async def sleep(self, seconds: float) -> None:
        """Waits."""


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        """Seconds since the epoch, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)


class FixedDay:
    """A clock by which the date in prompts stays that of one day: what is asked later is asked in the same words."""

    def __init__(self, day: date, clock: Clock) -> None:
        self.day, self._clock = day, clock

    def time(self) -> float:
        """Seconds since the epoch, UTC."""
        return self._clock.time()

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await self._clock.sleep(seconds)


def today(clock: Clock) -> date:
    """The date that prompts tell, in UTC."""
    return clock.day if isinstance(clock, FixedDay) else datetime.fromtimestamp(clock.time(), UTC).date()


SYSTEM_CLOCK = SystemClock()
