"""What of a job's events stands in its log already, when the job goes on: it is not told again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.fallback import Fallback

from .job_past import PIPELINE, JobPast


class Retold:
    """Knows each event that comes again once. Without a past nothing does."""

    def __init__(self, past: JobPast | None = None) -> None:
        self._told = set() if past is None else set(past.position.told)
        self._fallbacks = [] if past is None else list(past.account.retold)
        self._steps: dict[str, str] = {}
        self._waits: frozenset[str] = frozenset()
        if past is not None:
            self._steps = {name: step.result.status for name, step in past.begun.items()}
            self._waits = frozenset(name for name, step in past.begun.items() if step.waits)

    def again(self, channel: str, payload: Mapping[str, Any], step_id: str | None) -> bool:
        """Whether the event, which comes now, came before this worker did."""
        if channel == "step_progress" and step_id is not None:
            return self._step_again(step_id, payload["status"])
        if step_id is not None:
            return False
        if channel == "fallback":
            return self._fallback_again(Fallback.from_json(payload))
        mark = _mark_of(channel, payload)
        if mark in self._told:
            self._told.discard(mark)
            return True
        if mark in PIPELINE:
            self.next_stage()
        return False

    def next_stage(self) -> None:
        """What the stage before had told does not come any more."""
        self._told.clear()
        self._fallbacks = [change for change in self._fallbacks if change.where == "agent"]

    def _fallback_again(self, change: Fallback) -> bool:
        known = change in self._fallbacks
        if known:
            self._fallbacks.remove(change)
        return known

    def _step_again(self, step: str, status: str) -> bool:
        """A step that goes on runs at first, also where it will wait again: of that nobody needs to hear."""
        told = self._steps.get(step)
        if told is None:
            return False
        if status == "running" and told == "waiting" and step in self._waits:
            return True
        del self._steps[step]
        return status == told


def _mark_of(channel: str, payload: Mapping[str, Any]) -> str:
    match channel:
        case "phase":
            return str(payload["phase"])
        case "answer":
            return channel if payload["status"] == "start" else ""
    return channel
