"""A report as Markdown, with GitHub's tables."""

from __future__ import annotations

import re

from .figures import printable
from .tables import Document, Table, document_of
from .types import Report

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def render_markdown(report: Report, plots: str | None = "plots") -> str:
    """The report; `plots`: the folder of its pictures as seen from the text, None: without pictures."""
    return document_markdown(document_of(report), plots)


def document_markdown(document: Document, plots: str | None = None) -> str:
    """A document as Markdown."""
    parts = [f"# {escaped(document.title)}", escaped(document.line)]
    for table in document.tables:
        parts += [f"## {escaped(table.title)}", _table(table)]
        if table.note:
            parts.append(escaped(table.note))
        if plots is not None and table.title in document.pictures:
            name, told = document.pictures[table.title]
            parts.append(f"![{told}]({plots}/{name})")
    if document.notes:
        parts += ["## Notes", "\n".join(f"- {escaped(note)}" for note in document.notes)]
    parts += ["## Conclusion", escaped(document.conclusion)]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))


def _table(table: Table) -> str:
    head = "| " + " | ".join(escaped(column.name) for column in table.columns) + " |"
    rule = "|" + "|".join(":--" if column.left else "--:" for column in table.columns) + "|"
    rows = ["| " + " | ".join(map(escaped, row)) + " |" for row in table.rows]
    return "\n".join([head, rule, *rows])
