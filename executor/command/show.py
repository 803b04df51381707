"""Views of a running job for other readers than a terminal: plain lines, and JSON lines for programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from registry.messages import Event

from .out import json_text, note, say
from .view import PROMPT, JobView

if TYPE_CHECKING:
    from .keyboard import Keyboard


class PlainView:
    """Progress as lines on stderr, each with the seconds since the start. The answer is printed by the command.

    `on_gone` is called when nobody reads what the view is for.
    """

    def __init__(self) -> None:
        self.view, self.start = JobView(), time.monotonic()
        self.on_gone: Callable[[], None] = lambda: None

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def answered(self, answer: str) -> bool:
        """Whether this answer is on stdout already."""
        return False

    def on_event(self, event: Event) -> None:
        """Prints what is worth a line."""
        line = self.view.apply(event)
        if line:
            self.tell(line)

    def tell(self, line: str) -> None:
        """Prints a line of progress."""
        note(f"[{time.monotonic() - self.start:6.1f} s] {line}")

    def ask(self, question: tuple[str, ...]) -> None:
        """Shows a question that y or n answers; without lines there is none any more."""
        for line in question:
            note(line)
        if question:
            note(PROMPT)

    def tick(self) -> None:
        """Time has passed, or something was typed."""

    def watch(self, keyboard: Keyboard | None) -> None:
        """The keyboard whose input this view shows, if it does."""


class EventView(PlainView):
    """Every public event as a JSON line on stdout."""

    def on_event(self, event: Event) -> None:
        """Prints the event."""
        self.view.apply(event)
        step = {} if event.step_id is None else {"step_id": event.step_id}
        head = {"job_id": event.job_id, "seq": event.seq, "ts": event.ts, "channel": event.channel}
        if not say(json_text({**head, **step, "payload": dict(event.payload)}, indent=None)):
            self.on_gone()
