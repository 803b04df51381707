"""`dagwright experiment run FILE.toml`: an experiment, run and gone on with, judged and reported."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.experiments.experiment_file import read_experiment
from executor.experiments.folder import Folder
from executor.experiments.run.experiment import Progress, RunEnd, run_experiment
from executor.experiments.run.stopping import GRACE, Stop
from executor.experiments.types import Experiment, Grade
from executor.job_options import JobOptions
from registry.budget import Budget
from registry.errors import UsageError
from registry.messages import money

from .keyboard import no_signal, on_signal
from .out import note, on_terminal, say_json
from .setup import Setup, prepared
from .values import count_of

if TYPE_CHECKING:
    from executor.settings_model import Settings

EXIT_CODES = {"done": 0, "incomplete": 3, "budget_exceeded": 4, "interrupted": 130}
RUNS = Path("runs")
JUDGE = "judge"
LIBRARIES = ("numpy", "scipy", "matplotlib")
"""What a report needs."""
QUIET = 10.0
"""Seconds between two lines of progress where no terminal shows them."""
NAMED = 3
"""Cells that could not be run and are named."""


async def experiment_run(options: argparse.Namespace) -> int:
    """Runs the cells that are not there yet; the exit code tells how that ended."""
    from executor.experiments.grading.graders import check_grader

    if not options.no_report:
        _check_libraries()
    experiment = _with_options(read_experiment(options.file, data=options.data), options)
    folder = Folder(options.output or RUNS / experiment.name)
    async with _prepared(experiment, options) as setup:
        check_grader(experiment, None if setup is None else setup.models)
        end = await _run(experiment, folder, setup, options)
        if end.status == "interrupted":
            note(f"interrupted: {_standing(end)} Everything is kept; the same command goes on.")
            if options.json:
                say_json(_told(end, folder))
            return EXIT_CODES[end.status]
        _say_failed(end)
        report = None if options.no_report else await _report(experiment, folder, setup, options)
    if options.json:
        say_json({**_told(end, folder), **({} if report is None else {"report": report})})
    note(f"{_standing(end)} {folder.path}/")
    if end.status == "budget_exceeded":
        note(f"The run's budget of {experiment.budget} is used up. With a larger one the same command goes on.")
    return EXIT_CODES[end.status]


def _with_options(experiment: Experiment, options: argparse.Namespace) -> Experiment:
    """The experiment with what was given to the command on top."""
    if options.run_budget is not None:
        try:
            budget = Budget.parse(options.run_budget)
        except UsageError as error:
            raise UsageError(f"--budget: {error}") from None
        if budget.seconds is not None:
            raise UsageError(f"--budget {options.run_budget}: the run's budget limits money or tokens")
        experiment = replace(experiment, budget=budget)
    if options.concurrency is not None:
        concurrency = count_of(options.concurrency, "--concurrency") or experiment.concurrency
        experiment = replace(experiment, concurrency=concurrency)
    return experiment


def _check_libraries() -> None:
    """Raises ConfigError where the report could not be made in the end."""
    from executor.experiments.needs import needed

    for module in LIBRARIES:
        if find_spec(module) is None:
            needed(module)


@asynccontextmanager
async def _prepared(experiment: Experiment, options: argparse.Namespace) -> AsyncIterator[Setup | None]:
    """Models, tools and settings, where anything of the experiment needs models."""
    if experiment.grader.use != JUDGE and all(arm.kind == "recorded" for arm in experiment.arms):
        yield None
        return
    async with prepared(options) as setup:
        yield setup


async def _run(experiment: Experiment, folder: Folder, setup: Setup | None, options: argparse.Namespace) -> RunEnd:
    stop = Stop()
    calls = None if options.calls is None else Path(options.calls)
    with _stopping(stop), _Bar() if on_terminal(sys.stderr) else _Lines() as shown:
        return await run_experiment(
            experiment,
            folder,
            None if setup is None else setup.models,
            None if setup is None else setup.tools,
            None if setup is None else setup.settings,
            options_of=JobOptions.from_settings if setup is None else _options_of(setup),
            calls=calls,
            stop=stop,
            on_progress=shown,
        )


def _options_of(setup: Setup) -> Callable[[Settings], JobOptions]:
    """How a job's options are made of its settings: where the demonstration model works, by its profile."""
    if setup.notice is None:
        return JobOptions.from_settings
    from executor.demo.profile import adapted, profile

    def options_of(settings: Settings) -> JobOptions:
        return adapted(profile(), JobOptions.from_settings(settings), setup.tools, said=settings.origins).options

    return options_of


@contextmanager
def _stopping(stop: Stop) -> Iterator[None]:
    """Ctrl-C and a termination stop the run with grace, the second one at once."""
    loop = asyncio.get_running_loop()

    def told() -> None:
        if not stop.told.is_set():
            note(f"Stopping: calls under way have {GRACE:g} seconds. Press Ctrl-C again to stop at once.")
        stop.tell()

    on_signal(loop, "SIGINT", told)
    on_signal(loop, "SIGTERM", told)
    try:
        yield
    finally:
        no_signal(loop, "SIGINT")
        no_signal(loop, "SIGTERM")


# The end


async def _report(
    experiment: Experiment, folder: Folder, setup: Setup | None, options: argparse.Namespace
) -> dict[str, Any]:
    """The answers judged, and the report written and shown; as JSON."""
    from .experiment_report import reported

    with folder.locked():
        grades = await _graded(experiment, folder, setup, options)
        return reported(folder, experiment, folder.outcomes(), grades, options)


async def _graded(
    experiment: Experiment, folder: Folder, setup: Setup | None, options: argparse.Namespace
) -> list[Grade]:
    from executor.experiments.grading.judging import judging

    from .experiment_grade import graded

    outcomes = folder.outcomes()
    if setup is None or experiment.grader.use != JUDGE:
        return await graded(experiment, folder, outcomes, None)
    note(f"Judging {len(outcomes):,} answers …")
    calls = None if options.calls is None else Path(options.calls)
    async with judging(experiment, folder, setup.models, outcomes, folder.grades(), calls=calls) as models:
        return await graded(experiment, folder, outcomes, models)


def _told(end: RunEnd, folder: Folder) -> dict[str, Any]:
    return {
        "status": end.status,
        "folder": str(folder.path),
        "cells": end.cells,
        "ended": end.ended,
        "spent": {"usd": money(end.spent.usd), "tokens": end.spent.tokens},
        "failed": [{**cell._asdict(), "reason": reason} for cell, reason in end.failed.items()],
    }


def _standing(end: RunEnd) -> str:
    return f"{end.ended:,} of {end.cells:,} cells, ${end.spent.usd:.4f} spent."


def _say_failed(end: RunEnd) -> None:
    for cell, reason in list(end.failed.items())[:NAMED]:
        note(f"could not be run: {cell.task} by {cell.arm}, repeat {cell.repeat}: {reason}")
    if (more := len(end.failed) - NAMED) > 0:
        note(f"and {more:,} more")


class _Lines:
    """Progress on stderr where no terminal shows it: a line now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = 0.0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now >= self._next or progress.ended == progress.cells:
            self._next = now + QUIET
            note(", ".join([f"{progress.ended:,} of {progress.cells:,} cells", *_parts(progress, now - self._began)]))


class _Bar:
    """Progress on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Picture

        columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._picture = Picture(*columns, console=Console(stderr=True), transient=True, expand=True)
        self._bar = self._picture.add_task("cells", total=None)
        self._began = time.monotonic()

    def __enter__(self) -> _Bar:
        self._picture.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._picture.stop()

    def __call__(self, progress: Progress) -> None:
        told = ", ".join(["cells", *_parts(progress, time.monotonic() - self._began)])
        self._picture.update(self._bar, total=progress.cells, completed=progress.ended, description=told)


def _parts(progress: Progress, passed: float) -> list[str]:
    """What is told beside the count."""
    parts = [f"{progress.running} running"] if progress.running else []
    if progress.spent or progress.cost is not None:
        parts.append(f"${progress.spent:.4f} spent")
    left = progress.cells - progress.ended
    if progress.begun and left:
        parts.append(f"about {_time(passed / progress.begun * left)} left")
    return parts


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
