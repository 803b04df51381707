"""How long a job and its steps had run when its worker died: waits for a human, and times without a worker, left
out."""

from __future__ import annotations

from agent.waits import ASKED
from registry.messages import Event


class PastTime:
    """Measures by the times of the events. A process that died without a word is known to have lived until its last
    event; the next one's `restored` note says when it took over."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.steps: dict[str, float] = {}
        self._last: float | None = None
        self._running: set[str] = set()
        self._waiting: set[str] = set()
        self._asked: set[str] = set()

    def hear(self, event: Event) -> None:
        """The job's next event."""
        if event.channel == "note" and event.payload["kind"] == "restored":
            self._last = event.payload["at"]
        self._pass(event.ts)
        if event.channel == "step_progress" and event.step_id is not None:
            self._step(event.step_id, event.payload["status"])
        elif event.channel == "approval" and event.step_id is None:
            change = self._asked.add if event.payload["status"] in ASKED else self._asked.discard
            change(event.payload["call_id"])

    def _pass(self, now: float) -> None:
        passed = 0.0 if self._last is None else max(0.0, now - self._last)
        self._last = now
        if not (self._asked or (self._waiting and not self._running)):
            self.spent += passed
        for step in self._running:
            self.steps[step] = self.steps.get(step, 0.0) + passed

    def _step(self, step: str, status: str) -> None:
        if status == "running" and step not in self._waiting:
            self.steps[step] = 0.0  # a later round may have a step of the same name
        self._running.discard(step)
        self._waiting.discard(step)
        if status == "running":
            self._running.add(step)
        elif status == "waiting":
            self._waiting.add(step)
