"""The log in memory: for `run`, for the library, and as the twin of the stored one in tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import structlog

from registry.clock import SYSTEM_CLOCK, Clock
from registry.messages import Event

from .front import JobLog, is_public

log = structlog.get_logger(__name__)


class MemoryLog(JobLog):
    """Keeps a job's events in memory. Readers hold a position, not a queue: a slow one costs nothing."""

    def __init__(
        self,
        job_id: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        on_event: Callable[[Event], None] | None = None,
        events: Iterable[Event] = (),
    ) -> None:
        """`events`: the history of a job that goes on."""
        self._events: list[Event] = list(events)
        super().__init__(job_id, clock, len(self._events), on_event=on_event)
        self._wake = asyncio.Event()

    @property
    def events(self) -> tuple[Event, ...]:
        """The whole history so far, internal channels included."""
        return tuple(self._events)

    async def barrier(self) -> None:
        """Memory keeps nothing better by waiting."""

    async def history(self) -> tuple[Event, ...]:
        """The whole history so far."""
        return self.events

    def close(self) -> None:
        """Nothing comes any more; readers end after the last event."""
        super().close()
        self._wake.set()

    async def read(self, after: int = 0, *, internal: bool = False) -> AsyncIterator[Event]:
        """The events with a `seq` above `after`, then new ones as they come, until the log is closed."""
        after = max(0, after)
        while True:
            while after < len(self._events):
                event = self._events[after]
                after = event.seq
                if internal or is_public(event.channel):
                    yield event
            if self.closed:
                return
            await self._wake.wait()

    def _keep(self, event: Event) -> None:
        self._events.append(event)
        waiting, self._wake = self._wake, asyncio.Event()
        waiting.set()
