"""A report as Markdown, with GitHub's tables."""

from __future__ import annotations

import re

from .report_tables import Table, head_line, tables_of
from .report_types import Report

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def render_markdown(report: Report, plots: str | None = "plots") -> str:
    """The report; `plots`: the folder of its pictures as seen from the text, None: without pictures."""
    pictures = {"Arms": ("cost.svg", "Quality over cost")} if _has_costs(report) else {}
    if report.routers:
        pictures["Routers"] = ("routers.svg", "Quality over the share of strong calls")
    parts = [f"# {escaped(report.head.name)}", escaped(head_line(report))]
    for table in tables_of(report):
        parts += [f"## {escaped(table.title)}", _table(table)]
        if table.note:
            parts.append(escaped(table.note))
        if plots is not None and table.title in pictures:
            name, told = pictures[table.title]
            parts.append(f"![{told}]({plots}/{name})")
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {escaped(note)}" for note in report.notes)]
    parts += ["## Conclusion", escaped(report.conclusion)]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _table(table: Table) -> str:
    head = "| " + " | ".join(escaped(column.name) for column in table.columns) + " |"
    rule = "|" + "|".join(":--" if column.left else "--:" for column in table.columns) + "|"
    rows = ["| " + " | ".join(map(escaped, row)) + " |" for row in table.rows]
    return "\n".join([head, rule, *rows])


def _has_costs(report: Report) -> bool:
    return any(arm.cost is not None and arm.cost.whole is not None and arm.quality is not None for arm in report.arms)
