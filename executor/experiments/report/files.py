"""A report's files, in the folder of its run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal

from executor.experiments.folder import Folder
from executor.experiments.types import Experiment, Grade, Outcome

from .build import MARGIN, report_of
from .plots import cost_plot, router_plot
from .render_csv import render_arms_csv, render_csv
from .render_html import render_html
from .render_markdown import render_markdown
from .render_text import render_text
from .types import Report

Format = Literal["text", "markdown", "html", "csv", "json"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "html", "csv", "json")
SUFFIXES: dict[str, Format] = {
    ".txt": "text", ".md": "markdown", ".html": "html", ".htm": "html", ".csv": "csv", ".json": "json",
}  # fmt: skip


def render(
    form: str,
    report: Report,
    experiment: Experiment,
    outcomes: Iterable[Outcome],
    grades: Iterable[Grade],
    *,
    width: int = 100,
) -> str:
    """The report in one of `FORMATS`, with the same figures in each. Raises ValueError for another one."""
    match form:
        case "text":
            return render_text(report, width)
        case "markdown":
            return render_markdown(report)
        case "html":
            return render_html(report)
        case "csv":
            return render_csv(experiment, outcomes, grades)
        case "json":
            return json.dumps(report.to_json(), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    raise ValueError(f"{form!r} is no format of reports: there are {', '.join(FORMATS)}")


def write_reports(
    folder: Folder,
    experiment: Experiment,
    outcomes: Iterable[Outcome],
    grades: Iterable[Grade],
    *,
    margin: float = MARGIN,
) -> Report:
    """Makes the report and writes all of its files: report.md, .html, .csv, .json, report_arms.csv, plots/*.svg. Each
    file is there as a whole or as it was before."""
    outcomes, grades = list(outcomes), list(grades)
    report = report_of(experiment, outcomes, grades, margin=margin, started_at=folder.started_at)
    for name, picture in (("cost", cost_plot(report)), ("routers", router_plot(report))):
        path = folder.path / "plots" / f"{name}.svg"
        if picture is not None:
            folder.write(f"plots/{name}.svg", picture)
        else:
            path.unlink(missing_ok=True)  # of a report before
    for name, form in (
        ("report.csv", "csv"),
        ("report.html", "html"),
        ("report.md", "markdown"),
        ("report.json", "json"),
    ):
        folder.write(name, render(form, report, experiment, outcomes, grades))
    folder.write("report_arms.csv", render_arms_csv(report))
    return report
