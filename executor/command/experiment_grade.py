"""`dagwright experiment grade DIR`: the answers of a run judged again, by its grader or another one."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from executor.experiments.folder import Folder
from executor.experiments.grading.graders import JUDGE, check_grader, grade_all
from executor.experiments.types import Experiment, Grade, GraderSpec, Outcome
from registry.errors import ConfigError, UsageError
from registry.models import ModelRegistry

from .out import note, say_json
from .setup import prepared

RIGHT = "a grader's name, a table such as '{use=\"numeric\", tolerance=0.01}', or a TOML file with a table [grader]"


async def experiment_grade(options: argparse.Namespace) -> int:
    """Judges and reports anew; nothing of the tasks is run. Exit codes: 0 done, 3 some answers could not be judged."""
    from .experiment_report import reported

    folder = Folder.open(options.folder)
    with folder.locked():
        before = experiment = folder.experiment
        if options.grader is not None:
            experiment = with_grader(experiment, grader_given(options.grader))
        others = folder.grades() if experiment.grader == before.grader else ()
        outcomes = folder.outcomes()
        if not outcomes:
            raise UsageError(f"{folder.path} has no answers yet: nothing to judge")
        async with _models(experiment, folder, outcomes, options) as models:
            check_grader(experiment, models)
            if options.grader is not None:
                folder.take_up(experiment)
            grades = await graded(experiment, folder, outcomes, models, others)
        report = None if options.no_report else reported(folder, experiment, outcomes, grades, options)
    return _said(folder, experiment, grades, report, options)


async def graded(
    experiment: Experiment,
    folder: Folder,
    outcomes: Sequence[Outcome],
    models: ModelRegistry | None,
    before: Iterable[Grade] = (),
) -> list[Grade]:
    """The grades of the outcomes, put into the folder. Whatever ends the judging early, what was judged is kept, and of
    the other cells the grades of `before`, which are of the same grader."""
    done: list[Grade] = []
    try:
        return await grade_all(experiment, outcomes, models=models, known=folder.grades(), on_grade=done.append)
    finally:
        kept = {grade.cell: grade for grade in (*before, *done)}
        folder.put_grades(kept[outcome.cell] for outcome in outcomes if outcome.cell in kept)


def grader_given(text: str) -> GraderSpec:
    """The grader that --grader names. Raises UsageError and ConfigError."""
    if text.lstrip().startswith("{"):
        table = _table(text)
    elif text.endswith(".toml"):
        table = _file(Path(text))
    else:
        table = {"use": text}
    use = table.get("use")
    if not isinstance(use, str) or not use.strip():
        raise UsageError(f"--grader {text}: `use` is missing; it must be {RIGHT}")
    return GraderSpec(use.strip(), {key: value for key, value in table.items() if key != "use"})


def with_grader(experiment: Experiment, spec: GraderSpec) -> Experiment:
    """The same experiment with another grader, also in what is written down of it."""
    source = {**experiment.source, "grader": {"use": spec.use, **spec.options}}
    return replace(experiment, grader=spec, source=source)


def _table(text: str) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(text)
    except ValueError:
        try:
            found = tomllib.loads(f"grader = {text}")["grader"]
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"--grader {text}: neither TOML nor JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise UsageError(f"--grader {text}: must be {RIGHT}")
    return found


def _file(path: Path) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("grader")
    except OSError as error:
        raise UsageError(f"--grader {path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: there is no table [grader] in it")
    return table


@asynccontextmanager
async def _models(
    experiment: Experiment, folder: Folder, outcomes: Sequence[Outcome], options: argparse.Namespace
) -> AsyncIterator[ModelRegistry | None]:
    """Models for a judge, within what is left of the run's budget; none for other graders."""
    if experiment.grader.use != JUDGE:
        yield None
        return
    from executor.experiments.grading.judging import judging

    calls = None if options.calls is None else Path(options.calls)
    async with prepared(options) as setup:
        note(f"Judging {len(outcomes):,} answers …")
        async with judging(experiment, folder, setup.models, outcomes, folder.grades(), calls=calls) as models:
            yield models


def _said(
    folder: Folder,
    experiment: Experiment,
    grades: Sequence[Grade],
    report: Mapping[str, Any] | None,
    options: argparse.Namespace,
) -> int:
    ungraded = [grade for grade in grades if grade.score is None]
    if options.json:
        told = {"folder": str(folder.path), "grader": experiment.grader.use, "graded": len(grades) - len(ungraded)}
        say_json({**told, "ungraded": len(ungraded), **({} if report is None else {"report": report})})
    note(
        f"{len(grades) - len(ungraded):,} of {len(grades):,} answers judged by {experiment.grader.use}. {folder.path}/"
    )
    if ungraded:
        note(f"not judged: {ungraded[0].cell.task} by {ungraded[0].cell.arm}: {ungraded[0].reason}")
    return 3 if ungraded else 0
