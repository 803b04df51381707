"""What a learned policy's fit is chosen by: cross-validation over the tasks to fit on, and nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from executor.experiments.curves import apgr, curve_of
from registry.errors import ConfigError, UsageError

from .data import FitData
from .model import Seen, Space, gains

FOLDS = 5
PENALTIES = (0.1, 0.3, 1.0)
"""Inverse strengths C of the penalty on the weights' squares that are tried."""
NEVER, ALWAYS = 1.0, -1.0
"""Thresholds that no score reaches, and that every score does."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the threshold is to do; one of the three. `share`: the part of all tasks that the strong model does.
    `keep`: the part of the strong model's lead in quality that is kept, with as few strong calls as possible. `worth`:
    what a right answer is worth in USD: the strong model does what its likelier success is worth its price for."""

    share: float | None = None
    keep: float | None = None
    worth: float | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.share, self.keep, self.worth)) != 1:
            raise UsageError("the threshold follows from one of share, keep and worth")
        for name, value in (("share", self.share), ("keep", self.keep)):
            if value is not None and not 0 <= value <= 1:
                raise UsageError(f"{name} must lie between 0 and 1, not at {value!r}")
        if self.worth is not None and not (math.isfinite(self.worth) and self.worth > 0):
            raise UsageError(f"worth must be an amount in USD above 0, not {self.worth!r}")

    def to_json(self) -> dict[str, float]:
        """The one that is given."""
        values = {"share": self.share, "keep": self.keep, "worth": self.worth}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best penalty, the scores that the tasks got from fits that had not seen them, and APGR with each penalty."""

    penalty: float
    scores: Sequence[float]
    apgr: Mapping[float, float]


def chosen(data: FitData, seen: Seen, *, seed: int) -> Chosen:
    """The penalty whose order of the tasks has the highest APGR, each task scored by a fit on the other folds."""
    scores = _held_out(data, seen, seed)
    found = {penalty: apgr(scores[penalty], data.weak, data.strong) or 0.0 for penalty in PENALTIES}
    best = max(PENALTIES, key=lambda penalty: found[penalty])
    return Chosen(best, scores[best], found)


def folds(data: FitData, seed: int, count: int = FOLDS) -> list[list[int]]:
    """The places of the tasks in parts of about equal size, drawn by the seed, each with about the same share of each
    result. Without that a fold that is better than the others by chance is scored by fits on worse ones, and the other
    way round, so that the scores of all folds together would order the tasks worse than the fits do."""
    places = list(range(len(data)))
    random.Random(f"{seed} folds").shuffle(places)
    places.sort(key=lambda i: (data.strong[i] - data.weak[i], data.weak[i]))
    return [sorted(places[start::count]) for start in range(count)]


def threshold_for(wish: Wish, scores: Sequence[float], data: FitData) -> float:
    """The threshold that does what is wished on tasks with these scores. Raises ConfigError where costs are unknown, or
    the strong model is not the dearer one."""
    if wish.worth is not None:
        return _worth_it(wish.worth, data.dearer)
    share = wish.share
    if share is None:
        share = curve_of(scores, data.weak, data.strong).cpt(wish.keep or 0.0)
        share = 1.0 if share is None else share
    return threshold_at(share, scores)


def threshold_at(share: float, scores: Sequence[float]) -> float:
    """The threshold that this share of the scores reaches, at the least: halfway to the next lower score."""
    count = math.ceil(share * len(scores) - 1e-9)
    ordered = sorted(scores, reverse=True)
    if count <= 0:
        return NEVER
    while count < len(ordered) and ordered[count] == ordered[count - 1]:
        count += 1  # equal scores are on the same side
    return ALWAYS if count >= len(ordered) else (ordered[count - 1] + ordered[count]) / 2


def _worth_it(worth: float, dearer: float | None) -> float:
    if dearer is None:
        raise ConfigError("what the answers cost is not known for all tasks: give --share or --keep instead")
    if dearer <= 0:
        raise ConfigError("the strong arm does not cost more than the weak one: use it for everything")
    return min(dearer / worth, NEVER)


def _held_out(data: FitData, seen: Seen, seed: int) -> dict[float, list[float]]:
    scores = {penalty: [0.0] * len(data) for penalty in PENALTIES}
    for fold in folds(data, seed):
        out = set(fold)
        rest = [place for place in range(len(data)) if place not in out]
        known = seen.part(rest)
        weak, strong = [data.weak[i] for i in rest], [data.strong[i] for i in rest]
        space = Space(known)
        matrix, there = space.matrix(known), space.matrix(seen.part(fold))
        for penalty in PENALTIES:
            for place, score in zip(fold, gains(matrix, weak, strong, penalty, there), strict=True):
                scores[penalty][place] = score
    return scores
