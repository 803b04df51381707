"""Outcomes and grades, arm by arm and task by task, as a report needs them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import fmean

from executor.experiments.stats import Estimate, known_mean, mean_interval
from executor.experiments.types import Arm, Cell, Experiment, Grade, Outcome, Task


@dataclass(frozen=True, slots=True)
class ArmData:
    """An arm's ended cells in the order of tasks and repeats.

    `scores` has the scores of each task that has one, `means` their mean. `costs` has the mean cost in USD of each task
    all of whose ended cells have a cost that is wholly known.
    """

    arm: Arm
    cells: tuple[Outcome, ...]
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    means: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    missing: int = 0

    @property
    def binary(self) -> bool:
        """Whether every score is 0 or 1."""
        return all(score in (0, 1) for scores in self.scores.values() for score in scores)

    @property
    def graded(self) -> int:
        """Cells with a score."""
        return sum(map(len, self.scores.values()))

    @property
    def mean(self) -> float:
        """Mean score of its tasks. Raises ValueError where none has one."""
        return fmean(self.means.values())

    def mean_cost(self, tasks: Iterable[str] | None = None) -> float | None:
        """Mean cost of these tasks or of all that have a score, where that of each is known."""
        return known_mean([self.costs.get(task) for task in (self.means if tasks is None else tasks)])

    def quality(self, tasks: Iterable[str] | None = None) -> Estimate | None:
        """Mean score with its interval, of these tasks or of all."""
        names = self.scores if tasks is None else [task for task in tasks if task in self.scores]
        scores = [self.scores[name] for name in names]
        return mean_interval(scores) if scores else None


def least_step(one: ArmData, two: ArmData, tasks: Iterable[str]) -> float | None:
    """The least that one cell can change a task's difference between two arms, where scores are 0 or 1; None: any."""
    if not (one.binary and two.binary):
        return None
    return 1 / max(len(scores[task]) for task in tasks for scores in (one.scores, two.scores))


def data_of(experiment: Experiment, outcomes: Iterable[Outcome], grades: Iterable[Grade]) -> dict[str, ArmData]:
    """By arm, in the experiment's order. Cells that are not the experiment's are left out, and of a cell that ended
    twice the first counts."""
    score_of = {grade.cell: grade.score for grade in grades}
    places = {task.id: place for place, task in enumerate(experiment.tasks)}
    cells: dict[str, dict[Cell, Outcome]] = {arm.name: {} for arm in experiment.arms}
    for outcome in outcomes:
        if outcome.cell.arm in cells and outcome.cell.task in places:
            cells[outcome.cell.arm].setdefault(outcome.cell, outcome)
    expected = len(experiment.tasks) * experiment.repeats
    return {arm.name: _arm_data(arm, cells[arm.name].values(), score_of, places, expected) for arm in experiment.arms}


def _arm_data(
    arm: Arm,
    outcomes: Iterable[Outcome],
    score_of: Mapping[Cell, float | None],
    places: Mapping[str, int],
    expected: int,
) -> ArmData:
    cells = sorted(outcomes, key=lambda outcome: (places[outcome.cell.task], outcome.cell.repeat))
    scores: dict[str, list[float]] = {}
    costs: dict[str, list[Decimal | None]] = {}
    for outcome in cells:
        task, score = outcome.cell.task, score_of.get(outcome.cell)
        if score is not None and math.isfinite(score):
            scores.setdefault(task, []).append(min(1.0, max(0.0, score)))
        costs.setdefault(task, []).append(outcome.known_cost)
    return ArmData(
        arm,
        tuple(cells),
        {task: tuple(found) for task, found in scores.items()},
        {task: fmean(found) for task, found in scores.items()},
        {task: float(sum(known) / len(known)) for task, known in _whole(costs)},
        max(0, expected - len(cells)),
    )


def _whole(costs: Mapping[str, Sequence[Decimal | None]]) -> Iterator[tuple[str, list[Decimal]]]:
    for task, found in costs.items():
        known = [cost for cost in found if cost is not None]
        if len(known) == len(found):
            yield task, known


def tokens_by_role(cells: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    """Tokens by role, added up."""
    sums: dict[str, list[int]] = {}
    for outcome in cells:
        for role, usage in outcome.by_role.items():
            both = sums.setdefault(role, [0, 0])
            both[0] += usage.input_tokens
            both[1] += usage.output_tokens
    return {role: {"input": both[0], "output": both[1]} for role, both in sorted(sums.items())}


def models_of_cells(cells: Iterable[Outcome]) -> dict[str, int]:
    """How many steps or answers each model did in the end."""
    counts: Counter[str] = Counter()
    for outcome in cells:
        counts.update(outcome.models)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def routing_text(arm: Arm) -> str:
    """How an arm chooses its models, in a few words."""
    if arm.alone is not None and arm.kind == "recorded":
        return f"{arm.alone} alone"
    routing = arm.routing if arm.routing is not None else arm.options.get("routing")
    if routing is None:
        return "default"
    if not isinstance(routing, Mapping):
        return str(routing)
    rest = ", ".join(f"{key}={_short(value)}" for key, value in routing.items() if key != "use")
    return f"{routing.get('use', '?')}({rest})" if rest else str(routing.get("use", "?"))


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_short(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_short, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def kinds_of_tasks(tasks: Iterable[Task]) -> dict[str, list[str]]:
    """The tasks' ids by kind, for tasks whose kind is named."""
    kinds: dict[str, list[str]] = {}
    for task in tasks:
        if task.kind is not None:
            kinds.setdefault(task.kind, []).append(task.id)
    return dict(sorted(kinds.items()))
