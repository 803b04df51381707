"""A running step: its clock, its slot, what it has cost so far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from agent.trust import joined_taint
from registry.clock import Clock
from registry.messages import Usage
from registry.metering import Meter

from .recovery.step_past import StepPast
from .results import StepOutcome
from .schedule_types import UNCERTAIN, Event, StepReady, StepWaiting
from .step_trail import StepTrail


class StepTask:
    """The work of one step from its first slot to its end, over all attempts. Owned by one execution.

    The time limit counts while the step runs, not while it waits for a human. With a `past` the step goes on: what it
    cost and how long it ran counts.
    """

    def __init__(
        self,
        step_id: str,
        timeout: float | None,
        tell: Callable[[Event], None],
        clock: Clock,
        past: StepPast | None = None,
    ) -> None:
        self.step_id, self.timeout, self.tell, self.clock = step_id, timeout, tell, clock
        self.task: asyncio.Task[StepOutcome] | None = None
        self.meter = Meter()
        self.trail = StepTrail(past)
        self.taint: tuple[str, ...] = ()
        self._limit: asyncio.Timeout | None = None
        self._left: float | None = None
        self._ran = 0.0 if past is None else past.elapsed
        if past is not None and past.usage != Usage.zero():
            self.meter.add(past.usage)
        self._since: float | None = clock.monotonic()
        self._waits = 0
        self._slot: asyncio.Event | None = None  # while the step has none

    @property
    def elapsed(self) -> float:
        """Seconds it has run."""
        return self._ran if self._since is None else self._ran + self.clock.monotonic() - self._since

    async def run(self, work: Callable[[], Awaitable[StepOutcome]]) -> StepOutcome:
        """Does the work within the time limit."""
        try:
            left = None if self.timeout is None else max(0.0, self.timeout - self._ran)
            async with asyncio.timeout(left) as self._limit:
                return await work()
        except TimeoutError:
            assert self._limit is not None
            if not self._limit.expired():
                raise
            return StepOutcome(self.trail.output, "timeout", f"timeout: not done after {self.timeout:g} s")
        finally:  # the output of an agent that was not the last one may stand
            self.taint = joined_taint(self.taint, self.trail.taint)

    def expire(self, seconds: float) -> None:
        """Ends the work as if its time limit, of so many seconds, were over."""
        self.timeout = seconds
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    def ended(self, outcome: StepOutcome) -> StepOutcome:
        """The outcome as whoever plans anew is to read it: with the calls whose effect nobody knows."""
        unclear = self.trail.effects.in_words()
        if outcome.error_code in (None, UNCERTAIN) or not unclear:
            return outcome
        return replace(outcome, error=f"{outcome.error}; {unclear}")

    def cut_off(self) -> StepOutcome:
        """What a step came to that was cancelled. One with a call whose effect nobody knows has failed: whoever plans
        anew must know of it."""
        if unclear := self.trail.effects.in_words():
            return StepOutcome(self.trail.output, UNCERTAIN, f"{UNCERTAIN}: {unclear}")
        return StepOutcome(self.trail.output, "cancelled", "Cancelled")

    def cancel(self) -> None:
        """Cancels the work; its end is reported when it is over."""
        if self.task is not None:
            self.task.cancel()

    @asynccontextmanager
    async def parked(self) -> AsyncIterator[None]:
        """Within the block the step waits for a human. With several waits at once it waits until the last is over;
        calls whose own wait is over go on meanwhile."""
        self._waits += 1
        if self._slot is None:
            self._give_up_slot()
        try:
            yield
        except asyncio.CancelledError:  # the step is at its end: it needs no slot any more
            self._waits -= 1
            raise
        except Exception:
            await self._back()
            raise
        await self._back()

    async def _back(self) -> None:
        self._waits -= 1
        if self._waits == 0 and self._slot is not None:
            self.tell(StepReady(self.step_id))
            await self._slot.wait()

    async def runs(self) -> None:
        """A new attempt begins. Where a wait of the one before broke off, it has no slot yet, and waits for one."""
        if self._waits == 0 and self._slot is not None:
            self.tell(StepReady(self.step_id))
            await self._slot.wait()

    def resume(self) -> None:
        """The step has its slot again. Where another of its calls began to wait meanwhile, it gives it up at once."""
        assert self._slot is not None
        self._slot.set()
        self._slot = None
        self._start_clock()
        if self._waits:
            self._give_up_slot()

    def _give_up_slot(self) -> None:
        self._slot = asyncio.Event()
        self.stop_clock()
        if self._limit is not None and self._limit.when() is not None and not self._limit.expired():
            self._left = (self._limit.when() or 0.0) - asyncio.get_running_loop().time()
            self._limit.reschedule(None)
        self.tell(StepWaiting(self.step_id))

    def stop_clock(self) -> None:
        """The step does not run for now, or any more."""
        self._ran, self._since = self.elapsed, None

    def _start_clock(self) -> None:
        self._since = self.clock.monotonic()
        if self._limit is not None and self._left is not None:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left)
            self._left = None
