"""A report for the terminal."""

from __future__ import annotations

from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING

from .figures import printable
from .tables import GAP, Document, Table, document_of
from .types import Report

if TYPE_CHECKING:
    from rich.console import Console

LEAST = 10
"""Characters of a row's name below which it is folded no further."""
LINE = 100
"""Longer lines of text are hard to read."""


def render_text(report: Report, width: int = 100, *, color: bool = False) -> str:
    """The report in `width` columns; with `color`, as a terminal shows it."""
    return document_text(document_of(report), width, color=color)


def document_text(document: Document, width: int = 100, *, color: bool = False) -> str:
    """A document in `width` columns."""
    from rich.console import Console
    from rich.text import Text

    out = StringIO()
    console = Console(file=out, width=width, force_terminal=color, color_system="standard" if color else None,
                      highlight=False, markup=False, emoji=False, legacy_windows=False)  # fmt: skip
    console.print(Text(document.title, style="bold"))
    console.print(_lines(document.line, min(width, LINE)))
    for table in document.tables:
        _print(console, table.within(width), min(width, LINE))
    line = min(width, LINE)
    if document.notes:
        console.print(Text("\nNotes", style="bold"))
        for note in document.notes:
            console.print(_lines(note, line, initial_indent="- ", subsequent_indent="  "))
    console.print(Text("\nConclusion", style="bold"))
    console.print(_lines(document.conclusion, line))
    return "\n".join(row.rstrip() for row in out.getvalue().split("\n"))


def _print(console: Console, table: Table, line: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Rows
    from rich.text import Text

    console.print(Text(f"\n{table.title}", style="bold"))
    rows = Rows(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    others = sum(table.width(place) + GAP for place in range(1, len(table.columns)))
    name = max(LEAST, min(table.width(0), console.width - others))
    for place, column in enumerate(table.columns):
        rows.add_column(Text(column.name), justify="left" if column.left else "right", overflow="fold",
                        no_wrap=not column.left, min_width=table.width(place) if place else name)  # fmt: skip
    for row in table.rows:
        rows.add_row(*(Text(printable(field)) for field in row))
    console.print(rows)
    if table.note:
        console.print(Text(_lines(table.note, line), style="dim"))


def _lines(text: str, width: int, **indents: str) -> str:
    """Lines of text; a number and its percent sign stay together."""
    return "\n".join(wrap(printable(text).replace(" %", "\u00a0%"), width, **indents)).replace("\u00a0", " ")  # type: ignore[arg-type]
