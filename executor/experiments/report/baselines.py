"""What routers are measured by: the longest prompt to the strong model, the best single arm, chance, and an oracle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from registry.errors import UsageError
from registry.models import ModelRegistry
from registry.routing import Choice, RouteRequest, RoutingPolicy, named


@dataclass(frozen=True, slots=True)
class Longest(RoutingPolicy):
    """Texts of at least `threshold` characters to the strong model, of `models` (weak, strong): a baseline that knows
    nothing of the tasks."""

    name: ClassVar[str] = "longest"
    models: tuple[str, str]
    threshold: float

    @classmethod
    def read(cls, value: Any) -> Longest | None:
        """The policy where `routing` names it; None where it is another one. Raises UsageError."""
        if value == cls.name:
            value = {"use": cls.name}
        if not isinstance(value, Mapping) or value.get("use") != cls.name:
            return None
        if unknown := sorted(str(key) for key in value if key not in ("use", "models", "threshold")):
            raise UsageError(f'routing "longest" has no {unknown[0]!r}: there are models and threshold')
        models, threshold = value.get("models", ["fast", "reasoning"]), value.get("threshold")
        if (
            not isinstance(models, list | tuple)
            or len(models) != 2
            or not all(isinstance(name, str) for name in models)
        ):
            raise UsageError(f'routing "longest": models = {models!r}: must be the weak and the strong one')
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not math.isfinite(threshold):
            raise UsageError(
                f'routing "longest": threshold = {threshold!r}: must be a number of characters; texts '
                "of at least so many go to the strong model"
            )
        return cls((models[0], models[1]), threshold)

    def score(self, request: RouteRequest) -> float:
        """The text's length in characters."""
        return float(len(request.task))

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The strong model for a long text."""
        score = self.score(request)
        strong = score >= self.threshold
        told = f"{score:.0f} characters, {'at least' if strong else 'less than'} {self.threshold:g}"
        return Choice(named(models, self.models[strong]), told, score)

    def check(self, models: ModelRegistry) -> None:
        """Raises UsageError where one of the two models is not there."""
        for name in self.models:
            named(models, name)

    def to_json(self) -> Mapping[str, Any]:
        """The policy as an arm's `routing` has it."""
        return {"use": self.name, "models": list(self.models), "threshold": self.threshold}


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
    name = max(arms, key=lambda name: (_mean(arms[name].quality), -_total(arms[name].cost)))  # the first of equal ones
    return Baseline("best single", (name,), tuple(arms[name].quality), tuple(arms[name].cost))


def random_mixture(arms: Mapping[str, Results]) -> Baseline:
    """Each task by an arm chosen by chance, all alike: the exact expectation."""
    costs = [_spent(values) for values in zip(*(arm.cost for arm in arms.values()), strict=True)]
    quality = tuple(
        math.fsum(values) / len(values) for values in zip(*(arm.quality for arm in arms.values()), strict=True)
    )
    return Baseline("random", tuple(arms), quality, tuple(costs))


def oracle(arms: Mapping[str, Results]) -> Baseline:
    """Each task by the arm that did it best, of equal ones by the cheapest: no choice of one arm a task does better.
    Where answers vary from repeat to repeat, it also chooses by luck and looks better than any oracle could."""
    names = tuple(arms)
    quality, cost = [], []
    for place in range(_length(arms)):
        best = max(names, key=lambda name: (arms[name].quality[place], -_or_most(arms[name].cost[place])))
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


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _total(costs: Sequence[float | None]) -> float:
    return math.fsum(map(_or_most, costs))


def _spent(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) / len(known) if len(known) == len(costs) else None


def _or_most(cost: float | None) -> float:
    return math.inf if cost is None else cost
