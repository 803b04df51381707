"""`dagwright experiment report FOLDER`: the report of a run, again, or in another form."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from executor.experiments.folder import Folder
from executor.experiments.report.build import MARGIN, report_of
from executor.experiments.report.files import SUFFIXES, render, write_reports
from executor.experiments.report.render_text import render_text
from executor.experiments.types import Experiment, Grade, Outcome
from registry.errors import UsageError

from .out import note, on_terminal, say, say_json, show
from .values import number_of

PLAIN_WIDTH = 120
"""Columns where no terminal says how many it has."""


async def experiment_report(options: argparse.Namespace) -> int:
    """Reports on what is in the folder; nothing is run."""
    folder, margin, form = Folder.open(options.folder), _margin(options.margin), _form(options)
    experiment, outcomes, grades = folder.experiment, folder.outcomes(), folder.grades()
    if outcomes and not grades:
        note(f"Nothing is judged yet: `dagwright experiment grade {options.folder}` does it.")
    if form is None:
        told = reported(folder, experiment, outcomes, grades, options, margin=margin)
        if options.json:
            say_json(told)
        note(f"report.md, report.html, report.csv, report.json: {folder.path}/")
        return 0
    report = report_of(experiment, outcomes, grades, margin=margin, started_at=folder.started_at)
    text = render(form, report, experiment, outcomes, grades, width=columns())
    if options.output is None:
        say(text, end="") if form in ("json", "csv") else show(text, end="")
        return 0
    _write(Path(options.output), text)
    if options.json:
        say_json(report.to_json())
    return 0


def reported(
    folder: Folder,
    experiment: Experiment,
    outcomes: Iterable[Outcome],
    grades: Iterable[Grade],
    options: argparse.Namespace,
    *,
    margin: float = MARGIN,
) -> dict[str, Any]:
    """Writes all files of the report, and shows it unless JSON is asked for; the report as JSON."""
    report = write_reports(folder, experiment, outcomes, grades, margin=margin)
    if not options.json:
        show(render_text(report, columns()), end="")
    return report.to_json()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="replace", newline="")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from None


def columns() -> int:
    """How wide standard output is."""
    return max(60, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns) if on_terminal(sys.stdout) else PLAIN_WIDTH


def _form(options: argparse.Namespace) -> str | None:
    """The one form that is asked for; None: all of them."""
    if options.format is not None:
        return str(options.format)
    if options.output is None:
        return None
    suffix = Path(options.output).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"--output {options.output}: give --format, too: its name does not tell the form")
    return SUFFIXES[suffix]


def _margin(text: str | None) -> float:
    right = "a number of points above 0, such as 2"
    points = number_of(text, "--margin", right)
    if points is None:
        return MARGIN
    if not 0 < points <= 100:
        raise UsageError(f"--margin {text}: must be {right}")
    return points / 100
