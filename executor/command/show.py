"""Views of a running job: a live table on a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from typing import Any, TextIO

from registry.messages import Event
from registry.text import cut_end

from .view import JobView, shown_cost

MARKS = {
    "pending": "·",
    "running": "▶",
    "waiting": "?",
    "completed": "✓",
    "failed": "✗",
    "skipped": "-",
    "cancelled": "-",
}
STYLES = {
    "running": "bold",
    "completed": "green",
    "failed": "red",
    "waiting": "yellow",
    "skipped": "dim",
    "pending": "dim",
}


class PlainView:
    """Progress as lines on stderr, each with the seconds since the start. The answer is printed by the command."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self.view, self.out, self.start = JobView(), out, time.monotonic()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    @property
    def answered(self) -> bool:
        """Whether the answer is on stdout already."""
        return False

    def on_event(self, event: Event) -> None:
        """Prints what is worth a line."""
        line = self.view.apply(event)
        if line:
            print(f"[{time.monotonic() - self.start:6.1f} s] {_safe(line)}", file=self.out, flush=True)


class EventView(PlainView):
    """Every public event as a JSON line on stdout."""

    def on_event(self, event: Event) -> None:
        """Prints the event."""
        self.view.apply(event)
        print(json.dumps(event.to_json(), ensure_ascii=False, default=str), flush=True)


class LiveView(PlainView):
    """A table that changes in place on stderr; then the answer on stdout as it is written."""

    def __init__(self, notice: str | None = None, out: TextIO = sys.stderr) -> None:
        super().__init__(out)
        from rich.console import Console

        self.notice = notice
        self.console = Console(file=out)
        self._stack = ExitStack()
        self._live: Any = None
        self._shown = ""

    def __enter__(self) -> LiveView:
        from rich.live import Live

        self._live = self._stack.enter_context(
            Live(get_renderable=self._table, console=self.console, refresh_per_second=4, redirect_stdout=False)
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def answered(self) -> bool:
        """Whether the whole answer was streamed."""
        return bool(self._shown) and self._shown == self.view.text

    def on_event(self, event: Event) -> None:
        """Takes the event in; the table redraws itself, answer pieces go to stdout at once."""
        line = self.view.apply(event)
        if event.channel == "answer":
            self._answer(event.payload)
        elif event.channel == "inject" and line:
            self.console.print(_safe(line), markup=False, highlight=False)

    def _answer(self, payload: Any) -> None:
        if payload["status"] == "start":
            self._stack.close()  # the table's last state stays above the answer
            if self.notice:
                print(f"[{self.notice}]\n")
        elif payload["status"] == "delta":
            sys.stdout.write(_safe(payload["content"]))
            sys.stdout.flush()
            self._shown += payload["content"]
        elif payload["status"] == "reset":
            print("\n\n— what stands above is void; the answer begins again —\n")
            self._shown = ""
        elif payload["status"] == "done" and self._shown:
            print()

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        view = self.view
        head = view.phase or "starting"
        if view.phase == "executing" and view.round > 1:
            head += f", round {view.round}"
        if view.tool:
            head += f" · {view.tool}"
        table = Table(title=Text(f"{head} · {time.monotonic() - self.start:.0f} s"), title_justify="left", box=None)
        for name in ("", "gen", "step", "task", "model", "time", "cost", "tool"):
            table.add_column(name, justify="right" if name in ("gen", "time") else "left", no_wrap=name != "task")
        for step in sorted(view.steps.values(), key=lambda step: step.generation):
            seconds = step.duration
            if seconds is None and step.status == "running" and step.started_at is not None:
                seconds = max(0.0, time.time() - step.started_at)
            told = step.error if step.status in ("failed", "skipped") else step.tool
            ended = step.status in ("completed", "failed")
            cells = [
                MARKS.get(step.status, "·"), str(step.generation), step.id, cut_end(step.task, 60), step.model,
                "" if seconds is None else f"{seconds:.1f}", shown_cost(step.cost) if ended else "", cut_end(told, 40),
            ]  # fmt: skip
            style = STYLES.get(step.status, "")
            table.add_row(*(Text(_safe(cell), style=style) for cell in cells))
        return table


def _safe(text: str) -> str:
    """Model and tool text can't move the cursor or colour the terminal: control characters are shown, not sent."""
    return "".join(
        char if char in "\n\t" or (char.isprintable() or char == " ") else f"\\x{ord(char):02x}" for char in text
    )
