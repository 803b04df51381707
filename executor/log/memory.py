"""The log in memory: for `run`, for the library, and as the twin of the stored one in tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import structlog

from agent.events import INTERNAL_CHANNELS
from registry import metrics
from registry.clock import SYSTEM_CLOCK, Clock
from registry.messages import Event
from registry.redaction import StreamRedactor, error_fields, redact_data

log = structlog.get_logger(__name__)

MERGE_SECONDS = 0.05
"""Answer pieces that come within this time are merged into one event; the first of a burst goes out at once."""


class MemoryLog:
    """The events of one job, numbered from 1 without a gap.

    `append` is the one way in, and nothing gets past it with a secret. Answer deltas are merged; everything else first
    writes what is still to be merged, so that the order stands; only the end of an answer that may be the beginning of
    a secret is kept until its next piece. Readers hold a position, not a queue: a slow one costs nothing.
    """

    def __init__(
        self, job_id: str, *, clock: Clock = SYSTEM_CLOCK, on_event: Callable[[Event], None] | None = None
    ) -> None:
        self.job_id, self.clock, self.on_event = job_id, clock, on_event
        self.closed = False
        self._events: list[Event] = []
        self._held: list[str] = []
        self._held_step: str | None = None
        self._answers: dict[str | None, StreamRedactor] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()

    @property
    def events(self) -> tuple[Event, ...]:
        """The whole history so far, internal channels included."""
        return tuple(self._events)

    def append(self, channel: str, payload: Mapping[str, Any], step_id: str | None = None) -> None:
        """Adds an event, or holds an answer delta back for at most 50 ms to merge it with the next ones."""
        if self.closed:
            return
        if channel == "answer":
            if payload.get("status") == "delta":
                self._piece(str(payload["content"]), step_id)
                return
            self._end_answer(step_id, void=payload.get("status") == "reset")
        elif channel == "done":
            self._end_answers()
        self.flush()
        self._write(channel, redact_data(payload), step_id)

    def flush(self) -> None:
        """Writes what is held back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            text, self._held = "".join(self._held), []
            self._write("answer", {"status": "delta", "content": text}, self._held_step)

    def close(self) -> None:
        """Nothing comes any more; readers end after the last event."""
        self._end_answers()
        self.flush()
        self.closed = True
        self._wake.set()

    async def read(self, after: int = 0, *, internal: bool = False) -> AsyncIterator[Event]:
        """The events with a `seq` above `after`, then new ones as they come, until the log is closed."""
        after = max(0, after)
        while True:
            while after < len(self._events):
                event = self._events[after]
                after = event.seq
                if internal or event.channel not in INTERNAL_CHANNELS:
                    yield event
            if self.closed:
                return
            await self._wake.wait()

    def _piece(self, text: str, step_id: str | None) -> None:
        answer = self._answers.get(step_id)
        if answer is None:
            answer = self._answers[step_id] = StreamRedactor()
        shown = answer.feed(text)
        if shown or not text:  # all of it may be kept back
            self._delta(shown, step_id)

    def _end_answers(self) -> None:
        for step_id in tuple(self._answers):
            self._end_answer(step_id)

    def _end_answer(self, step_id: str | None, *, void: bool = False) -> None:
        """No piece follows: what was kept of the answer is decided. Of a void one nobody needs it."""
        answer = self._answers.pop(step_id, None)
        rest = "" if answer is None or void else answer.end()
        if rest:
            self._delta(rest, step_id)

    def _delta(self, text: str, step_id: str | None) -> None:
        if self._held and step_id != self._held_step:
            self.flush()  # two writers at once: their texts are not mixed
        self._held.append(text)
        self._held_step = step_id
        if self._timer is None:
            self._write_held_now()

    def _write_held_now(self) -> None:
        """Writes what is held, and opens the next interval in which pieces are collected."""
        self._timer = None
        if self._held:
            self.flush()
            self._timer = asyncio.get_running_loop().call_later(MERGE_SECONDS, self._write_held_now)

    def _write(self, channel: str, payload: Mapping[str, Any], step_id: str | None) -> None:
        event = Event(self.job_id, len(self._events) + 1, self.clock.time(), channel, step_id, payload)
        self._events.append(event)
        metrics.observe(event)
        waiting, self._wake = self._wake, asyncio.Event()
        waiting.set()
        if self.on_event is not None and channel not in INTERNAL_CHANNELS:
            try:
                self.on_event(event)
            except Exception as error:  # noqa: BLE001 - an observer that fails must not cost the work it observes
                log.error("observer_failed", channel=channel, seq=event.seq, **error_fields(error))
