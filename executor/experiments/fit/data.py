"""What a learned policy is fitted on: tasks with what each of two arms made of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import TYPE_CHECKING

from executor.experiments.stats import known_mean
from registry.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from executor.experiments.types import Experiment, Grade, Outcome

LEAST = 50
"""Tasks to fit on, at the least: with fewer, an order of them can't be told from chance."""


@dataclass(frozen=True, slots=True)
class FitData:
    """Tasks with the scores (0 to 1) and costs (USD, None: unknown) that two arms have on them, means over repeats."""

    texts: Sequence[str]
    kinds: Sequence[str | None]
    weak: Sequence[float]
    strong: Sequence[float]
    weak_costs: Sequence[float | None] = ()
    strong_costs: Sequence[float | None] = ()
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def gap(self) -> float:
        """How much better the strong arm is, in mean score."""
        return (fsum(self.strong) - fsum(self.weak)) / max(len(self), 1)

    @property
    def dearer(self) -> float | None:
        """What a task costs more by the strong arm, in USD; None where a cost is unknown."""
        costs = [*self.weak_costs, *self.strong_costs]
        if not costs or any(cost is None for cost in costs):
            return None
        return (fsum(map(float, self.strong_costs)) - fsum(map(float, self.weak_costs))) / len(self)  # type: ignore[arg-type]

    def part(self, places: Sequence[int]) -> FitData:
        """These tasks of it."""
        return FitData(
            [self.texts[i] for i in places],
            [self.kinds[i] for i in places],
            [self.weak[i] for i in places],
            [self.strong[i] for i in places],
            [self.weak_costs[i] for i in places] if self.weak_costs else (),
            [self.strong_costs[i] for i in places] if self.strong_costs else (),
        )


def halves(n: int, seed: int) -> tuple[list[int], list[int]]:
    """The places of n tasks in two halves, drawn by the seed: to fit on, and to judge on."""
    places = list(range(n))
    random.Random(seed).shuffle(places)
    return sorted(places[: n // 2]), sorted(places[n // 2 :])


def check_data(data: FitData, what: str = "to fit on") -> None:
    """Raises ConfigError where nothing can be learned from these tasks."""
    if len(data) < LEAST:
        raise ConfigError(f"there are {len(data)} tasks {what}: {LEAST} are needed at the least")
    if all(one == two for one, two in zip(data.weak, data.strong, strict=True)):
        raise ConfigError(f"both arms have the same score on each of the {len(data)} tasks {what}: nothing to learn")
    if data.gap <= 0:
        weak, strong = fmean(data.weak), fmean(data.strong)
        raise ConfigError(
            f"the strong arm is no better than the weak one on the {len(data)} tasks {what} "
            f"({strong:.3f} against {weak:.3f}): there is nothing to route for"
        )


def check_split(data: FitData) -> None:
    """Raises ConfigError where the tasks are too few for two halves."""
    if len(data) < 2 * LEAST:
        raise ConfigError(
            f"there are {len(data)} tasks: {2 * LEAST} are needed at the least, half of them to judge on; "
            f"--all fits on all of them, {LEAST} at the least"
        )


def fit_data_of(
    experiment: Experiment, outcomes: Iterable[Outcome], grades: Iterable[Grade], weak: str, strong: str
) -> FitData:
    """The tasks of a run that both arms have a grade on. Raises UsageError for an arm that is not there, ConfigError
    where there are no grades."""
    arms = [arm.name for arm in experiment.arms]
    for name in (weak, strong):
        if name not in arms:
            raise UsageError(f"there is no arm {name!r} in this run: there are {', '.join(arms)}")
    if weak == strong:
        raise UsageError(f"the weak and the strong arm are both {weak!r}")
    scores = _means((grade.cell.arm, grade.cell.task, grade.score) for grade in grades)
    costs = _means(
        (outcome.cell.arm, outcome.cell.task, None if (cost := outcome.known_cost) is None else float(cost))
        for outcome in outcomes
    )
    tasks = [task for task in experiment.tasks if _both(scores, weak, strong, task.id)]
    if not tasks:
        raise ConfigError(
            f"no task has a grade by both {weak} and {strong}: `dagwright experiment grade` judges the run"
        )
    return FitData(
        [task.input for task in tasks],
        [task.kind for task in tasks],
        [scores[weak, task.id] or 0.0 for task in tasks],
        [scores[strong, task.id] or 0.0 for task in tasks],
        [costs.get((weak, task.id)) for task in tasks],
        [costs.get((strong, task.id)) for task in tasks],
        len(experiment.tasks) - len(tasks),
    )


def _both(scores: Mapping[tuple[str, str], float | None], weak: str, strong: str, task: str) -> bool:
    return scores.get((weak, task)) is not None and scores.get((strong, task)) is not None


def _means(values: Iterable[tuple[str, str, float | None]]) -> dict[tuple[str, str], float | None]:
    """The mean of what each arm has on each task; None where one of its repeats is unknown."""
    found: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for arm, task, value in values:
        found[arm, task].append(value)
    return {place: known_mean(had) for place, had in found.items()}
