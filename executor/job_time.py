"""A job's own time: it stands while the job waits for a human, and it may be limited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from registry.clock import Clock
from registry.errors import BudgetExceededError

T = TypeVar("T")

ANSWER_SECONDS = 30.0
"""Seconds kept for the final answer at the end of a limited time …"""
ANSWER_SHARE = 5
"""… at most one in this many parts of it."""


class JobTime:
    """Measures a job's time, and ends its work when it is over.

    Of `seconds` (None: no limit) a reserve is kept for the answer: work is cancelled when the rest is used up; what is
    run by `answer` has the reserve too. `stops` and `goes` may be nested; both may be called at any time. `spent`: what
    a job that goes on had run before.
    """

    def __init__(self, seconds: float | None, clock: Clock, spent: float = 0.0) -> None:
        self.seconds, self._clock = seconds, clock
        self.kept = 0.0 if seconds is None else min(ANSWER_SECONDS, seconds / ANSWER_SHARE)
        self._ran, self._since = spent, clock.monotonic()
        self._stands = 0
        self._limit: asyncio.Timeout | None = None
        self._left: float | None = None  # of the running limit, while the clock stands
        self._steps: dict[str, bool] = {}
        self.answering = False

    @property
    def spent(self) -> float:
        """Seconds the job has run, waits for a human left out."""
        return self._ran if self._stands else self._ran + self._clock.monotonic() - self._since

    @property
    def left(self) -> float | None:
        """Seconds that are left, the reserve included; None: no limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.spent)

    def stops(self) -> None:
        """The job waits for a human from here on."""
        if not self._stands:
            self._ran = self.spent
            limit = self._limit
            if limit is not None and limit.when() is not None and not limit.expired():
                self._left = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                limit.reschedule(None)
        self._stands += 1

    def goes(self) -> None:
        """One wait for a human is over."""
        self._stands -= 1
        if not self._stands:
            self._since = self._clock.monotonic()
            self._resume()

    @asynccontextmanager
    async def parked(self) -> AsyncIterator[None]:
        """Within the block the job waits for a human."""
        self.stops()
        try:
            yield
        finally:
            self.goes()

    def step(self, step_id: str, status: str) -> None:
        """A step's status: the clock stands while some step waits for a human and none runs."""
        before = self._all_wait()
        if status in ("running", "waiting"):
            self._steps[step_id] = status == "waiting"
        else:
            self._steps.pop(step_id, None)
        after = self._all_wait()
        if after and not before:
            self.stops()
        elif before and not after:
            self.goes()

    async def work(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does the job's work. Raises BudgetExceededError when the time for it is used up; it is then cancelled."""
        return await self._within(self.kept, work)

    async def answer(self, work: Callable[[], Awaitable[T]]) -> T:
        """Writes the answer when the work has ended: as `work`, within all the time that is left."""
        self.answering = True
        return await self._within(0.0, work)

    def open_reserve(self) -> None:
        """The work that runs is at its answer: from here on it has the reserve too."""
        if not self.answering:
            self.answering = True
            self._put_off(self.kept)

    def close_reserve(self) -> None:
        """The answer is void: the reserve is kept again."""
        if self.answering:
            self.answering = False
            self._put_off(-self.kept)

    def _put_off(self, seconds: float) -> None:
        if self._left is not None:
            self._left += seconds
        elif self._limit is not None and (when := self._limit.when()) is not None and not self._limit.expired():
            self._limit.reschedule(when + seconds)

    def to_json(self) -> dict[str, Any]:
        """Spent, reserved, left and kept seconds; empty without a limit."""
        left = self.left
        if left is None:
            return {}
        spent = round(self.spent, 3)
        return {"seconds": {"spent": spent, "reserved": 0, "left": round(left, 3), "kept": round(self.kept, 3)}}

    async def _within(self, kept: float, work: Callable[[], Awaitable[T]]) -> T:
        if self.seconds is None:
            return await work()
        try:
            async with asyncio.timeout(max(0.0, (self.left or 0.0) - kept)) as self._limit:
                return await work()
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
            raise BudgetExceededError(f"the job's budget of {self.seconds:g} seconds is used up") from None
        finally:
            self._limit = self._left = None

    def _resume(self) -> None:
        if self._limit is not None and self._left is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left)
        self._left = None

    def _all_wait(self) -> bool:
        return bool(self._steps) and all(self._steps.values())
