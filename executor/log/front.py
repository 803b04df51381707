"""The one way into a job's history: events are numbered, masked, and pieces of an answer merged, whoever keeps them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import structlog

from agent.events import INTERNAL_CHANNELS
from registry import metrics
from registry.clock import Clock
from registry.messages import Event
from registry.redaction import StreamRedactor, error_fields, redact_data

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """What the job's row says once the job has ended; `summary` is the job in its public shape."""

    status: str
    summary: Mapping[str, Any]
    cost_usd: Decimal | None = None


class JobLog(ABC):
    """The events of one job, numbered from 1 without a gap.

    `append` is the one way in, and nothing gets past it with a secret. Answer deltas are merged for `merge_seconds`,
    the first of a burst goes out at once; everything else first writes what is still to be merged, so that the order
    stands; only the end of an answer that may be the beginning of a secret is kept until its next piece.
    """

    merge_seconds = 0.05

    def __init__(
        self, job_id: str, clock: Clock, seq: int = 0, *, on_event: Callable[[Event], None] | None = None
    ) -> None:
        self.job_id, self.clock, self.seq, self.on_event = job_id, clock, seq, on_event
        self.closed = self.sealed = False
        self._held: list[str] = []
        self._held_step: str | None = None
        self._answers: dict[str | None, StreamRedactor] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._lead: tuple[str, Mapping[str, Any]] | None = None

    @abstractmethod
    def _keep(self, event: Event) -> None:
        """Takes an event over, in order."""

    async def barrier(self) -> None:
        """Returns when all that was appended so far is kept for good. Raises OwnershipLostError."""
        self.flush()

    def store(self) -> None:
        """Begins to keep what was appended so far, at once, and waits for nobody: events are kept in order, so that
        whoever waits for a later one waits for it."""
        self.flush()

    @abstractmethod
    async def history(self) -> tuple[Event, ...]:
        """All that was appended so far, internal channels included. Raises OwnershipLostError."""

    def _piece_came(self, text: str, step_id: str | None) -> None:  # noqa: B027 - most logs need none
        """A piece of an answer, before it is merged; for those who want it at once."""

    def _delta_payload(self, text: str, step_id: str | None) -> dict[str, Any]:
        return {"status": "delta", "content": text}

    def _answer_void(self, step_id: str | None) -> None:  # noqa: B027 - most logs need none
        """What was said of an answer no longer counts."""

    def append(self, channel: str, payload: Mapping[str, Any], step_id: str | None = None) -> None:
        """Adds an event, or holds an answer delta back for `merge_seconds` to merge it with the next ones."""
        if self.closed or (self.sealed and not _of_a_cut(channel, payload)):
            return
        if channel == "answer":
            if payload.get("status") == "delta":
                self._piece(str(payload["content"]), step_id)
                return
            self._end_answer(step_id, void=payload.get("status") == "reset")
        elif channel == "done":
            self._end_answers()
        self.flush()
        if channel == "answer" and payload.get("status") != "done":
            self._answer_void(step_id)
        self._write(channel, redact_data(payload), step_id)

    def lead(self, channel: str, payload: Mapping[str, Any]) -> None:
        """An event that is written right before the next one; where none comes, it is no news."""
        self._lead = channel, payload

    def flush(self) -> None:
        """Writes what is held back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            text, self._held = "".join(self._held), []
            self._write("answer", self._delta_payload(text, self._held_step), self._held_step)

    def seal(self) -> None:
        """The job goes on elsewhere, from what was appended until now: what its end here makes of it is no news. Only
        what calls have cost that are cut off is still taken, and that others were not made."""
        self.flush()
        self.sealed = True
        metrics.left(self.job_id)

    def close(self) -> None:
        """Nothing comes any more."""
        self._end_answers()
        self.flush()
        self.closed = True

    def ends(self, ending: Ending) -> None:
        """Nothing comes any more: the job has ended so."""
        self.close()

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
        self._piece_came(text, step_id)
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
            self._timer = asyncio.get_running_loop().call_later(self.merge_seconds, self._write_held_now)

    def _write(self, channel: str, payload: Mapping[str, Any], step_id: str | None) -> None:
        if self._lead is not None:
            lead, self._lead = self._lead, None
            self._write(*lead, None)
        self.seq += 1
        event = Event(self.job_id, self.seq, self.clock.time(), channel, step_id, payload)
        metrics.observe(event)
        self._keep(event)
        if self.on_event is not None and is_public(channel):
            try:
                self.on_event(event)
            except Exception as error:  # noqa: BLE001 - an observer that fails must not cost the work it observes
                log.error("observer_failed", channel=channel, seq=event.seq, **error_fields(error))


def _of_a_cut(channel: str, payload: Mapping[str, Any]) -> bool:
    return channel == "turn" or (channel == "budget" and payload.get("reason") == "released")


def is_public(channel: str) -> bool:
    """Whether readers get the events of a channel."""
    return channel not in INTERNAL_CHANNELS
