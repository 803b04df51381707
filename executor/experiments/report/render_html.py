"""A report as one HTML file that needs nothing else: no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

import html

from .figures import printable
from .plots import DARK_PAPER, INK, PAPER, QUIET, cost_plot, router_plot, theme
from .tables import Table, head_line, tables_of
from .types import Report

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
LONG = 34
"""Characters after which a name is folded."""
STYLE = f"""
:root {{ color-scheme: light dark; --paper: {PAPER}; --line: #d9d9d5; --sunk: #f4f4f2; {theme(dark=False)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: {DARK_PAPER}; --line: #33353a; --sunk: #1a1b1e; {theme(dark=True)} }}
}}
body {{ margin: 0 auto; max-width: 1120px; padding: 24px 20px 60px; background: var(--paper, {PAPER});
  color: var(--ink, {INK}); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }}
h1 {{ font-size: 24px; line-height: 1.25; margin: 0 0 2px; overflow-wrap: anywhere; }}
h2 {{ font-size: 17px; margin: 34px 0 8px; }}
p {{ margin: 6px 0; max-width: 78ch; }}
.quiet, caption {{ color: var(--quiet, {QUIET}); font-size: 13px; }}
.conclusion {{ border-inline-start: 3px solid var(--c0, #0072b2); padding: 2px 0 2px 14px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }}
th {{ font-weight: 600; vertical-align: bottom; white-space: pre; }}
th.name, td.name {{ text-align: left; }}
td.long {{ white-space: normal; overflow-wrap: anywhere; min-width: 22em; }}
tbody tr:hover {{ background: var(--sunk); }}
caption {{ caption-side: bottom; text-align: left; padding: 6px 0; white-space: normal; }}
figure {{ margin: 14px 0; max-width: 820px; }}
figure svg {{ width: 100%; height: auto; }}
li {{ margin: 3px 0; max-width: 78ch; }}
""".strip()


def render_html(report: Report) -> str:
    """The whole page. Everything that comes from the experiment is escaped."""
    pictures = {"Arms": cost_plot(report, standalone=False), "Routers": router_plot(report, standalone=False)}
    parts = [f"<h1>{escape(report.head.name)}</h1>", f'<p class="quiet">{escape(head_line(report))}</p>']
    for table in tables_of(report):
        parts += [f"<h2>{escape(table.title)}</h2>", _table(table)]
        picture = pictures.get(table.title)
        if picture is not None:
            parts.append(f"<figure>{picture}</figure>")
    if report.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
        parts.append(f'<h2>Notes</h2>\n<ul class="notes">{items}</ul>')
    parts.append(f'<h2>Conclusion</h2>\n<p class="conclusion">{escape(report.conclusion)}</p>')
    return _PAGE.format(policy=POLICY, title=escape(report.head.name), style=STYLE, body="\n".join(parts))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def escape(text: str) -> str:
    """Text that can't be anything else, not even unseen."""
    return html.escape(printable(text))


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_name(column.left)}>{escape(column.name)}</th>' for column in table.columns)
    rows = "\n".join(
        "<tr>"
        + "".join(_field(text, left=column.left) for text, column in zip(row, table.columns, strict=True))
        + "</tr>"
        for row in table.rows
    )
    caption = f"<caption>{escape(table.note)}</caption>" if table.note else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>{caption}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _field(text: str, *, left: bool) -> str:
    return f"<td{_name(left, long=len(text) > LONG)}>{escape(text)}</td>"


def _name(left: bool, *, long: bool = False) -> str:
    return f' class="name{" long" if long else ""}"' if left else ""
