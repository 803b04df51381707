"""What routers are measured by: the best single arm, chance, and an oracle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from executor.experiments.stats import known_mean
from registry.errors import UsageError


@dataclass(frozen=True, slots=True)
class Results:
    """What came of an arm, task by task in one order for all arms: mean `quality` over the repeats, 0 to 1, and mean
    `cost` in USD, None where it is not known."""

    quality: Sequence[float]
    cost: Sequence[float | None]


BaselineName = Literal["best single", "random", "oracle"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline of the arms `of`, task by task as in `Results`. For "best single", `of` is that arm alone."""

    name: BaselineName
    of: tuple[str, ...]
    quality: tuple[float, ...]
    cost: tuple[float | None, ...]


def best_single(arms: Mapping[str, Results]) -> Baseline:
    """The arm of the highest mean quality; of equal ones the cheapest, then the first. A cost that is not known is the
    highest. Chosen by the same results that it is judged by: of many alike arms it looks a little better than it is."""
    name = max(arms, key=lambda name: (fmean(arms[name].quality), -_total(arms[name].cost)))  # the first of equal ones
    return Baseline("best single", (name,), tuple(arms[name].quality), tuple(arms[name].cost))


def random_mixture(arms: Mapping[str, Results]) -> Baseline:
    """Each task by an arm chosen by chance, all alike: the exact expectation."""
    costs = [known_mean(values) for values in zip(*(arm.cost for arm in arms.values()), strict=True)]
    quality = tuple(fmean(values) for values in zip(*(arm.quality for arm in arms.values()), strict=True))
    return Baseline("random", tuple(arms), quality, tuple(costs))


def oracle(arms: Mapping[str, Results]) -> Baseline:
    """Each task by the arm that did it best, of equal ones by the cheapest: no choice of one arm a task does better.
    Where answers vary from repeat to repeat, it also chooses by luck and looks better than any oracle could."""
    names = tuple(arms)
    quality, cost = [], []
    for place in range(_length(arms)):
        best = max(names, key=lambda name: (arms[name].quality[place], -or_most(arms[name].cost[place])))
        quality.append(arms[best].quality[place])
        cost.append(arms[best].cost[place])
    return Baseline("oracle", names, tuple(quality), tuple(cost))


def baselines_of(arms: Mapping[str, Results]) -> tuple[Baseline, ...]:
    """The three baselines of these arms, of the same tasks in the same order. Raises UsageError where there are no arms
    or their tasks are not equally many."""
    _length(arms)
    return best_single(arms), random_mixture(arms), oracle(arms)


def _length(arms: Mapping[str, Results]) -> int:
    lengths = {len(values) for arm in arms.values() for values in (arm.quality, arm.cost)}
    if len(lengths) != 1 or lengths == {0}:
        raise UsageError("baselines need at least one arm and one task, and equally many tasks of each arm")
    return lengths.pop()


def _total(costs: Sequence[float | None]) -> float:
    return math.fsum(map(or_most, costs))


def or_most(cost: float | None) -> float:
    """A cost to compare by: one that is not known is the highest."""
    return math.inf if cost is None else cost
