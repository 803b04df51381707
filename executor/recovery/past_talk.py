"""What was said to a job, and what it has made of it until its worker died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.waits import ASKED
from registry.messages import Event

JOIN = "\n\n"
"""Between several messages that are taken in at once."""


@dataclass(frozen=True, slots=True)
class Said:
    """`follow_ups` are those that went into the goal, `further` the queries of a single agent's further rounds,
    `waiting` the messages that nobody has taken in. `untold`: what was taken in without a word of it in the log.
    `cancels`: steps to be cancelled. `decisions` are those without an `approval` event, by call."""

    follow_ups: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    untold: str | None = None
    stopping: bool = False
    cancels: frozenset[str] = frozenset()
    decisions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class TalkFold:
    """Folds letters and what followed from them."""

    def __init__(self) -> None:
        self.follow_ups: list[str] = []
        self.further: list[str] = []
        self.waiting: list[str] = []
        self.untold: str | None = None
        self.stopping = False
        self.cancels: set[str] = set()
        self.decisions: dict[str, Mapping[str, Any]] = {}
        self.asked: dict[str, str | None] = {}

    def letter(self, kind: str, said: Mapping[str, Any]) -> None:
        """Something was said. What could not be followed is nothing, as it was then."""
        match kind, said:
            case "message", {"text": str(text)} if text.strip():
                self.waiting.append(text)
            case "stop", _:
                self.stopping = True
            case "cancel_step", {"step_id": str(step)}:
                self.cancels.add(step)
            case "decide", {"call_id": str(call), "approve": bool()} if call in self.asked:
                self.decisions.setdefault(call, said)

    def goes_further(self, said: str) -> None:
        """A single agent's further round: the word of it comes next."""
        self.further.append(said)
        self._taken_in(said)
        self.untold = said

    def injected(self, content: str, *, by_agent: bool) -> bool:
        """Messages were taken in; whether the job did it. What an agent takes in stays within its conversation."""
        if self.untold is not None:
            self.untold = None
            return True
        if by_agent:
            self._drained(content)
            return False
        self._taken_in(content)
        return True

    def approval(self, event: Event) -> None:
        """A call waits for a human, or does so no longer."""
        call = event.payload["call_id"]
        if event.payload["status"] in ASKED:
            self.asked[call] = event.step_id
        else:
            self.asked.pop(call, None)
            self.decisions.pop(call, None)

    def waits(self, step: str) -> bool:
        """Whether a call of the step waits, and nobody has decided on it."""
        return any(of == step and call not in self.decisions for call, of in self.asked.items())

    def said(self) -> Said:
        """All of it."""
        return Said(
            tuple(self.follow_ups),
            tuple(self.further),
            tuple(self.waiting),
            self.untold,
            self.stopping,
            frozenset(self.cancels),
            dict(self.decisions),
        )

    def _taken_in(self, content: str) -> None:
        self.follow_ups += self._drained(content)

    def _drained(self, content: str) -> list[str]:
        """The messages that were taken in: the first of those that wait. A letter stands in the log before it is
        delivered, so that later ones may wait still; what was said otherwise stands only here."""
        for count in range(1, len(self.waiting) + 1):
            if JOIN.join(self.waiting[:count]) == content:
                taken, self.waiting = self.waiting[:count], self.waiting[count:]
                return taken
        self.waiting = [text for text in self.waiting if text not in content]
        return [content]
