"""Time as a port, so that tests need not wait."""

from __future__ import annotations

import asyncio
import time
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


SYSTEM_CLOCK = SystemClock()
