"""How answers are judged: the graders by their names, and all of a run's cells graded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from executor.experiments.types import Arm, Cell, Experiment, Grade, GraderSpec, Outcome, Task
from executor.plain_errors import plain_errors
from registry.errors import ConfigError
from registry.models import ModelRegistry
from registry.routing import RoutingPolicy
from registry.routing_config import table_of
from registry.toml_file import Table, nearest

from .base import Grader
from .json_fields import JsonFields
from .judge import Judge
from .numbers import Numeric
from .own import Function, Recorded
from .texts import Contains, Exact, Regex

RULES: Mapping[str, Callable[[Table], Grader]] = {
    "exact": Exact,
    "numeric": Numeric,
    "contains": Contains,
    "regex": Regex,
    "json": JsonFields,
    "recorded": Recorded,
}
"""Graders that need nothing but the cell."""
JUDGE = "judge"
NAMES = (*RULES, JUDGE)
BREATH = 200
"""Cells between two pauses, in which other tasks of the loop come to their turn."""
_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def grader_of(
    spec: GraderSpec,
    *,
    base: Path | None = None,
    models: ModelRegistry | None = None,
    arms: Sequence[Arm] = (),
    path: str = "experiment",
) -> Grader:
    """The grader that a table [grader] describes.

    `base`: where a module of one's own is looked for. `models`: for a judge, who can't judge without. Raises
    ConfigError, which says what is wrong and what would be right.
    """
    table = Table(path, "grader", spec.options)
    if spec.use in RULES:
        return RULES[spec.use](table)
    if spec.use == JUDGE:
        return Judge(table, models, arms)
    if _PLACE.fullmatch(spec.use):
        return Function(spec.use, table, base)
    raise ConfigError(
        f"{path}: [grader] use = {spec.use!r}: there is no such grader: {nearest(spec.use, NAMES)}, or "
        "package.module:function"
    )


def check_grader(experiment: Experiment, models: ModelRegistry | None = None) -> None:
    """Whether the experiment's grader can judge its answers, before any is paid for.

    Raises ConfigError for wrong keys, tasks that all lack a target, answers on file without verdicts, and, where the
    `models` are given, for a judge that is not there or of the family of those who answer.
    """
    grader = grader_of(experiment.grader, base=experiment.base, models=models, arms=experiment.arms)
    if grader.needs_target and all(task.target is None for task in experiment.tasks):
        raise ConfigError(f"the grader {experiment.grader.use!r} goes by the tasks' targets, and no task has one")
    if isinstance(grader, Recorded):
        _check_verdicts(experiment)
    if isinstance(grader, Judge) and models is not None:
        grader.refuse_family(experiment, _answering(experiment, models))


def _check_verdicts(experiment: Experiment) -> None:
    used = {name for arm in experiment.arms if arm.kind == "recorded" for name in arm.among}
    if not used:
        raise ConfigError('the grader "recorded" takes the verdicts on file, and no arm has recorded answers')
    for name in sorted(used & experiment.recorded.keys()):
        if all(answer.score is None for answer in experiment.recorded[name].answers.values()):
            raise ConfigError(
                f'the grader "recorded" takes the verdicts on file, and [recorded.{name}] names no column '
                "with them (`score`)"
            )


def _answering(experiment: Experiment, models: ModelRegistry) -> Iterator[str]:
    """The models that will answer, as far as the arms say it: those on file, and those that jobs may be routed to."""
    for arm in experiment.arms:
        yield from arm.among
        if arm.kind == "job":
            roles = arm.options.get("roles")
            own = models.with_roles(roles) if isinstance(roles, Mapping) else models
            for name in ("smart", *(_routed_to(arm.routing) or ("general", "fast", "reasoning"))):
                yield own.name_of(own.resolve(name))


def _routed_to(routing: Any) -> tuple[str, ...]:
    """The models and roles that a routing as data names; none where it leaves that to hints or to others."""
    if routing is None:
        return ()
    table = routing.to_json() if isinstance(routing, RoutingPolicy) else table_of(routing)
    models = table.get("models", ())
    named = (table.get("model"), table.get("default"), *(models.values() if isinstance(models, Mapping) else models))
    return tuple(name for name in named if isinstance(name, str))


async def grade_all(
    experiment: Experiment,
    outcomes: Iterable[Outcome],
    *,
    models: ModelRegistry | None = None,
    known: Iterable[Grade] = (),
    spec: GraderSpec | None = None,
    on_grade: Callable[[Grade], None] | None = None,
) -> list[Grade]:
    """The grades of all cells, in the order of the outcomes.

    `spec`: another grader than the experiment's. `models`: for a judge; their budget and their cache of replies are
    kept, so that a verdict that was asked for before costs nothing. `known`: grades of before; a judge's is taken over
    where nothing that it depends on has changed. `on_grade` is told each grade. Raises ConfigError.
    """
    outcomes = list(outcomes)
    grader = grader_of(spec or experiment.grader, base=experiment.base, models=models, arms=experiment.arms)
    tasks = {task.id: task for task in experiment.tasks}
    if isinstance(grader, Judge):
        grader.begin(experiment, outcomes)
    grading = _Grading(grader, tasks, {grade.cell: grade for grade in known}, on_grade)
    workers = 1 if type(grader) in RULES.values() else experiment.concurrency
    with plain_errors():
        async with asyncio.TaskGroup() as group:
            places = iter(enumerate(outcomes))
            for _ in range(min(workers, len(outcomes))):
                group.create_task(grading.work(places))
    return [grading.grades[place] for place in range(len(outcomes))]


class _Grading:
    """Cells being graded, by several at once."""

    def __init__(
        self,
        grader: Grader,
        tasks: Mapping[str, Task],
        known: Mapping[Cell, Grade],
        on_grade: Callable[[Grade], None] | None,
    ) -> None:
        self.grader, self.tasks, self.known, self.on_grade = grader, tasks, known, on_grade
        self.grades: dict[int, Grade] = {}

    async def work(self, places: Iterator[tuple[int, Outcome]]) -> None:
        """Grades what nobody else has begun, until nothing is left."""
        for place, outcome in places:
            grade = await self._grade(outcome)
            self.grades[place] = grade
            if self.on_grade is not None:
                self.on_grade(grade)
            if place % BREATH == 0:
                await asyncio.sleep(0)

    async def _grade(self, outcome: Outcome) -> Grade:
        task = self.tasks.get(outcome.cell.task)
        if task is None:
            return Grade(outcome.cell, None, "the experiment has no such task any more")
        before = self.known.get(outcome.cell)
        if before is not None and self._stands(before, task, outcome):
            return before
        return await self.grader.grade(task, outcome)

    def _stands(self, before: Grade, task: Task, outcome: Outcome) -> bool:
        """Whether a judge's grade of before is what it would say again."""
        if not isinstance(self.grader, Judge) or before.score is None:
            return False
        return before.details.get("key") == self.grader.key(task, outcome)


def grading_notes(grades: Iterable[Grade]) -> list[str]:
    """What a reader of the report must know of how it was judged: how often a judge's two orders agreed, and whether it
    judged its own kind."""
    judged = [grade for grade in grades if "agreed" in grade.details]
    if not judged:
        return []
    agreed = sum(bool(grade.details["agreed"]) for grade in judged)
    names = sorted({str(grade.details["judge"]) for grade in judged})
    notes = [
        f"Judged by {', '.join(names)}, each answer in both orders: they agreed on {agreed:,} of {len(judged):,} "
        f"answers ({100 * agreed / len(judged):.0f} %)."
    ]
    same = sorted({str(name) for grade in judged for name in grade.details.get("same_family", ())})
    if same:
        notes.append(f"The judge is of the same family as {', '.join(same)}: judges favour their own kind.")
    return notes
