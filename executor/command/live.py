"""The live view: a picture on the terminal that changes in place, then the answer as it is written."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from registry.messages import Event

from .keyboard import Keyboard
from .out import note, on_terminal, safe, say
from .show import PlainView
from .table import Frame, picture, question_lines
from .view import remarks

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH = 0.1
"""Seconds between two pictures at least."""


def can_be_live() -> bool:
    """Whether both outputs are a terminal that can move its cursor."""
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return on_terminal(sys.stderr) and on_terminal(sys.stdout) and not dumb


class LiveView(PlainView):
    """A picture of the job on stderr; its last state stays above the answer, which goes to stdout as it is written.

    `notice` stands above the answer. Nothing a model or tool wrote reaches the terminal but as text.
    """

    def __init__(self, notice: str | None = None) -> None:
        super().__init__()
        from rich.console import Console

        self.notice = notice
        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._unicode = self.console.encoding.startswith("utf")
        self._live: Any = None
        self._keyboard: Keyboard | None = None
        self._width = self.console.width
        self._drawn = 0.0
        self._shown = ""
        self._answering = False
        self._question: tuple[str, ...] = ()

    def __enter__(self) -> LiveView:
        self._open()
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def answered(self, answer: str) -> bool:
        """Whether this answer was streamed to its end. What was streamed of another one is ended with a line."""
        if self._shown and self._shown != answer:
            say()
            note("— what stands above is not the whole answer; what there is: —")
        return bool(self._shown) and self._shown == answer

    def watch(self, keyboard: Keyboard | None) -> None:
        """Shows what is being typed on this keyboard."""
        self._keyboard = keyboard
        if keyboard is not None and self._live is not None:
            keyboard.echo(False)

    def tell(self, line: str) -> None:
        """Prints a line above the picture."""
        if self._live is None:
            note(line)
        else:
            self.console.print(safe(line), soft_wrap=True)

    def ask(self, question: tuple[str, ...]) -> None:
        """Shows the question in the picture, where nothing overwrites it, and above it what has no room there."""
        self._question = question
        if question:
            self._open()
        if self._live is None:
            super().ask(question)
            return
        _, whole = question_lines(self._frame())
        for line in () if whole else question:
            self.tell(line)
        self.tick()

    def tick(self) -> None:
        """Draws the picture anew."""
        if self._live is None:
            return
        if self.console.width < self._width:  # the terminal has broken our lines into more: nothing fits any more
            self.console.clear()
        self._width = self.console.width
        self._live.refresh()
        self._drawn = time.monotonic()

    def on_event(self, event: Event) -> None:
        """Takes the event in: the picture follows, pieces of the answer go to stdout at once."""
        if event.channel == "plan" and self.view.steps:
            self._close()  # the last round's state stays above the new one's
        line = self.view.apply(event)
        if event.channel == "answer":
            self._answer(event.payload)
            return
        if event.channel != "done":
            self._open()
        told = event.channel in ("inject", "compact", "approval") or event.payload.get("reasoning")
        if told and line:
            self.tell(line)
        elif event.channel == "plan":
            for remark in remarks(event.payload):
                self.tell(remark)
        if time.monotonic() - self._drawn >= REFRESH:
            self.tick()

    def _open(self) -> None:
        """Begins a picture, unless there is one or the answer is being written."""
        if self._live is not None or self._answering:
            return
        from rich.live import Live

        self._live = Live(get_renderable=self._picture, console=self.console, auto_refresh=False, redirect_stdout=False)
        self._live.start()
        if self._keyboard is not None:
            self._keyboard.echo(False)

    def _close(self) -> None:
        """Ends the picture: its whole last state stays."""
        if self._live is None:
            return
        live, self._live = self._live, None
        live.stop()
        if self._keyboard is not None:
            self._keyboard.echo(True)

    def _answer(self, payload: Any) -> None:
        status = payload["status"]
        if status == "delta":
            self._begin()
            self._shown += payload["content"]
            say(safe(payload["content"]), end="")
        elif status == "reset":
            if self._shown:
                say()
                note("— what stands above is void —\n")
            self._shown, self._answering = "", False
        elif status == "done" and self._shown:
            say()

    def _begin(self) -> None:
        if self._answering:
            return
        self._close()
        self._answering = True
        note("")
        if self.notice:
            say(f"[{self.notice}]\n")

    def _picture(self) -> RenderableType:
        from rich.console import Group

        return Group(*picture(self.view, self._frame()))

    def _frame(self) -> Frame:
        ended = self._live is None
        typed = self._keyboard.text if self._keyboard is not None and self._keyboard.quiet else None
        return Frame(
            width=self.console.width,
            height=None if ended else self.console.height,
            elapsed=time.monotonic() - self.start,
            now=time.time(),
            typed=typed,
            ended=ended,
            unicode=self._unicode,
            question=self._question,
        )
