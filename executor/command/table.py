"""The picture of a running job: a line per step, the generations bracketed, cut to the terminal's width and height."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.text import cut_end

from .out import safe
from .view import PROMPT, JobView, StepLine, one_line

if TYPE_CHECKING:
    from rich.text import Text

MARKS = {
    "pending": "·",
    "running": "▶",
    "waiting": "?",
    "completed": "✓",
    "failed": "✗",
    "skipped": "-",
    "cancelled": "-",
}
PLAIN_MARKS = {"pending": ".", "running": ">", "waiting": "?", "completed": "+", "failed": "x"}
STYLES = {
    "running": "bold",
    "completed": "green",
    "failed": "red",
    "waiting": "yellow",
    "skipped": "dim",
    "cancelled": "dim",
    "pending": "dim",
}
BRACKETS = ("─", "┌", "│", "└")
PLAIN_BRACKETS = ("-", "/", "|", "\\")
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_SPINNER = "|/-\\"
MIN_TASK = 24
"""Columns of the task below which other columns give way."""
MARGIN = 6
"""Columns left of a step's id: generation, bracket, mark."""
_FIRST_SHOWN = {"running": 0, "waiting": 0, "failed": 1, "skipped": 3, "cancelled": 3}
"""Which steps are shown first where there is no room for all; those not named come third."""
ERROR_CHARS = 500
"""Characters of a failed step's error below the table's last state."""


MORE_ABOVE = "  (the whole question stands above)"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a picture depends on beside the job. `elapsed` are seconds since its start, `now` seconds since the epoch;
    `height` None: all of it; `typed` the line being typed, None where none can be; `ended`: the table's last state;
    `question`: what the user is asked, it goes before the steps."""

    width: int
    height: int | None
    elapsed: float
    now: float
    typed: str | None = None
    ended: bool = False
    unicode: bool = True
    question: tuple[str, ...] = ()


def picture(view: JobView, frame: Frame) -> list[Text]:
    """The lines to be shown, none wider than the frame; below the last state, why steps failed."""
    from rich.text import Text

    lines = [_title(view, frame)]
    asked, _ = question_lines(frame)
    extra = len(asked) + (4 if frame.typed is not None else 3)
    room = None if frame.height is None else frame.height - extra
    if view.steps and not (asked and room is not None and room < 1):
        room = None if room is None else max(1, room)
        steps = sorted(view.steps.values(), key=lambda step: step.generation)
        shown = _chosen(steps, room)
        lines += _rows(shown, frame)
        if len(shown) < len(steps):
            hidden = Counter(step.status for step in steps) - Counter(step.status for step in shown)
            told = ", ".join(f"{count} {status}" for status, count in sorted(hidden.items()))
            lines.append(Text(f"{'…' if frame.unicode else '...'} and {told}", style="dim"))
    lines += [Text(line, style="yellow") for line in asked]
    if frame.typed is not None and not frame.ended:
        lines.append(_input(frame))
    for line in lines:
        line.truncate(max(1, frame.width - 1), overflow="ellipsis")
        if not frame.unicode:
            line.plain = line.plain.replace("…", "~")
    return [*lines, *_errors(view, frame)] if frame.ended else lines


def question_lines(frame: Frame) -> tuple[list[str], bool]:
    """The question broken to the frame's width, in half of its height at most, and whether that is all of it."""
    from rich.cells import chop_cells

    if not frame.question or frame.ended:
        return [], True
    width = max(1, frame.width - 1)
    lines = [piece for line in frame.question for piece in chop_cells(safe(one_line_kept(line)), width)]
    most = len(lines) if frame.height is None else max(2, frame.height // 2) - 1
    whole = len(lines) <= most
    if not whole:
        lines = [*lines[: most - 1], MORE_ABOVE] if most > 1 else lines[:1]
    return (lines if frame.typed is not None else [*lines, PROMPT]), whole


def one_line_kept(text: str) -> str:
    """The text in one line, its blanks as they are."""
    return re.sub(r"\s", " ", text)


def _errors(view: JobView, frame: Frame) -> list[Text]:
    """Why steps failed, in full: the table has room for the first words only."""
    from rich.text import Text

    mark = (MARKS if frame.unicode else PLAIN_MARKS)["failed"]
    failed = [step for step in view.steps.values() if step.status == "failed"]
    return [Text(safe(f"{mark} {step.id}: {cut_end(step.error, ERROR_CHARS)}"), style="red") for step in failed]


def _title(view: JobView, frame: Frame) -> Text:
    from rich.text import Text

    parts = [] if frame.ended else [view.phase or ("working" if view.turns else "starting")]
    if view.round > 1:
        parts.append(f"round {view.round}")
    if view.steps:
        ended = sum(step.status in ("completed", "failed", "skipped", "cancelled") for step in view.steps.values())
        parts.append(f"{ended} of {len(view.steps)} steps")
    elif view.turns:
        parts.append(f"turn {view.turns}")
    if view.tool and not frame.ended:
        parts.append(safe(one_line(view.tool)))
    parts.append(_duration(frame.elapsed, "d"))
    line = Text().append("" if frame.ended else _spin(frame) + " ", style="cyan")
    return line.append((" · " if frame.unicode else " - ").join(parts), style="bold")


def _spin(frame: Frame) -> str:
    spinner = SPINNER if frame.unicode else PLAIN_SPINNER
    return spinner[int(frame.elapsed * 5) % len(spinner)]


def _input(frame: Frame) -> Text:
    from rich.text import Text

    if not frame.typed and frame.question:
        return Text(f"{PROMPT}; Ctrl-C stops", style="bold yellow")
    if not frame.typed:
        return Text("type a line to add to the goal; Ctrl-C stops", style="dim")
    room = max(1, frame.width - 5)
    typed = safe(re.sub(r"\s", " ", frame.typed))[-room:]
    return Text(f"> {typed}{'▏' if frame.unicode else '_'}", style="yellow")


def _chosen(steps: Sequence[StepLine], room: int | None) -> Sequence[StepLine]:
    """As many steps as there is room for, in their order: what runs, what failed, then what is nearest to what runs.
    One less where some stay hidden: their number is told in the line."""
    if room is None or len(steps) <= room:
        return steps
    running = [place for place, step in enumerate(steps) if _FIRST_SHOWN.get(step.status) == 0]

    def rank(place: int) -> tuple[int, int, int]:
        distance = min((abs(place - other) for other in running), default=0)
        return _FIRST_SHOWN.get(steps[place].status, 2), distance, place

    chosen = sorted(sorted(range(len(steps)), key=rank)[: max(1, room - 1)])
    return [steps[place] for place in chosen]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Widths in columns; 0: not shown."""

    id: int
    task: int
    model: int
    time: int = 6
    cost: int = 8


def _columns(steps: Sequence[StepLine], width: int) -> _Columns:
    """The task gets what is left; where that is too little, the model goes, then the cost, then the time."""
    from rich.cells import cell_len

    name = min(12, max(cell_len(safe(step.id)) for step in steps))
    model = min(18, max(5, *(cell_len(safe(step.model)) for step in steps)))
    for columns in ((model, 6, 8), (min(model, 10), 6, 8), (0, 6, 8), (0, 6, 0), (0, 0, 0)):
        fixed = MARGIN + name + 1 + sum(2 + column for column in columns if column)
        if width - 1 - fixed >= MIN_TASK:
            break
    return _Columns(name, max(4, width - 1 - fixed), *columns)


def _rows(steps: Sequence[StepLine], frame: Frame) -> list[Text]:
    from rich.text import Text

    columns = _columns(steps, frame.width)
    head = "gen   step".ljust(MARGIN + columns.id + 1 + columns.task)
    head += f"  {'model':<{columns.model}}" if columns.model else ""
    head += f"  {'time':>{columns.time}}" if columns.time else ""
    head += f"  {'cost':>{columns.cost}}" if columns.cost else ""
    rows = [_row(step, bracket, columns, frame) for step, bracket in zip(steps, _brackets(steps, frame), strict=True)]
    return [Text(head, style="dim"), *rows]


def _brackets(steps: Sequence[StepLine], frame: Frame) -> list[str]:
    """The left margin: a generation's number where it begins, and a bracket around its steps."""
    alone, first, middle, last = BRACKETS if frame.unicode else PLAIN_BRACKETS
    margins = []
    for at, step in enumerate(steps):
        begins = at == 0 or steps[at - 1].generation != step.generation
        ends = at + 1 == len(steps) or steps[at + 1].generation != step.generation
        mark = (alone if ends else first) if begins else (last if ends else middle)
        margins.append(f"{step.generation if begins else '':<2}{mark}")
    return margins


def _row(step: StepLine, bracket: str, columns: _Columns, frame: Frame) -> Text:
    from rich.text import Text

    style = STYLES.get(step.status, "")
    marks = MARKS if frame.unicode else PLAIN_MARKS
    line = Text().append(f"{bracket} ", style="cyan")
    line.append(f"{marks.get(step.status, '-')} ", style=style)
    line.append_text(_cell(step.id, columns.id, style)).append(" ")
    line.append_text(_task(step, columns.task, style, frame))
    if columns.model:
        line.append("  ").append_text(_cell(step.model, columns.model, style))
    if columns.time:
        line.append("  ").append(_duration(_seconds(step, frame.now)).rjust(columns.time), style=style)
    if columns.cost:
        line.append("  ").append(_cost(step).rjust(columns.cost), style=style)
    return line


def _task(step: StepLine, width: int, style: str, frame: Frame) -> Text:
    """What the step is to do, and behind it what it calls right now, or why it has no result."""
    told = step.error if step.status in ("failed", "skipped", "cancelled") else step.tool
    if not told:
        return _cell(step.task, width, style)
    from rich.cells import cell_len

    arrow = " ← " if frame.unicode else " < "
    told = safe(one_line(told))
    task = min(cell_len(safe(one_line(step.task))), max(width // 2, width - len(arrow) - cell_len(told)))
    line = _cell(step.task, task, style)
    return line.append(arrow, style="dim").append_text(
        _cell(told, max(1, width - task - len(arrow)), "red" if step.status == "failed" else "italic")
    )


def _cell(text: str, width: int, style: str) -> Text:
    from rich.text import Text

    cell = Text(safe(one_line(text)), style=style)
    cell.truncate(width, overflow="ellipsis", pad=True)
    return cell


def _seconds(step: StepLine, now: float) -> float | None:
    if step.duration is None and step.status == "running" and step.started_at is not None:
        return max(0.0, now - step.started_at)
    return step.duration if step.started_at is not None else None


def _duration(seconds: float | None, kind: str = "s") -> str:
    if seconds is None:
        return ""
    if seconds >= 100:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
    return f"{seconds:.1f} s" if kind == "s" else f"{seconds:.0f} s"


def _cost(step: StepLine) -> str:
    """USD to a hundredth of a cent; the exact sum stands in the account at the end."""
    if step.status not in ("completed", "failed"):
        return ""
    if step.cost is None:
        return "unknown"
    cost = float(step.cost)
    return f"${cost:.4f}" if cost >= 0.0001 or cost == 0 else "<$0.0001"
