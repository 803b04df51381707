"""What a router's order of tasks is worth: quality and cost over the share of tasks that go to the strong model.

The measures are those of Ong et al., "RouteLLM: Learning to Route LLMs with Preference Data" (arXiv 2406.18665, section
2.2): the performance gap recovered, PGR = (quality - weak) / (strong - weak); its average over the shares of strong
calls, APGR; and CPT(x), the least share of strong calls that recovers the part x of the gap. That paper averages PGR
over ten shares; here it is averaged over all that there are, 0, 1, ... n strong calls among n tasks, so that APGR is
exact and chance is 0.5 exactly. The strong model does the tasks with the highest scores first; among tasks of equal
score chance decides, so that the curve is the straight line between the ends of their group, whatever order the tasks
have on file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, SupportsFloat

from registry.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTS = (0.5, 0.8, 0.95)
"""The parts of the gap that reports tell CPT for."""
ROUNDING = 1e-12
"""Mean qualities that differ by no more than this are the same: sums in another order differ by less."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place on a curve. `share` of tasks done by the strong model, mean `quality` and mean `cost` of a task in USD
    (None: not known). `threshold`: the strong model does the tasks whose score is at least this; None between two
    thresholds, where chance chooses among tasks of equal score."""

    share: float
    quality: float
    cost: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Quality and cost over the share of strong calls, of `n` tasks: straight lines between `points`, from the weak
    model alone to the strong model alone."""

    points: tuple[Point, ...]
    n: int

    @property
    def weak(self) -> Point:
        """The weak model alone."""
        return self.points[0]

    @property
    def strong(self) -> Point:
        """The strong model alone."""
        return self.points[-1]

    @property
    def gap(self) -> float:
        """How much better the strong model alone is than the weak one."""
        return self.strong.quality - self.weak.quality

    @property
    def apgr(self) -> float | None:
        """The mean PGR over 0 to n strong calls; None where the strong model is no better than the weak one."""
        if self.gap <= 0:
            return None
        area = sum((one.quality + two.quality) / 2 * (two.share - one.share) for one, two in pairwise(self.points))
        return _over_all_counts((area - self.weak.quality) / self.gap, self.n)

    def pgr(self, quality: float) -> float | None:
        """The part of the gap that this quality recovers: below 0 worse than the weak model, above 1 better than the
        strong one. None where there is no gap."""
        return None if self.gap <= 0 else (quality - self.weak.quality) / self.gap

    def at(self, share: float) -> Point:
        """The place at a share of strong calls, 0 to 1. Raises UsageError for another."""
        if not 0 <= share <= 1:
            raise UsageError(f"a share of strong calls lies between 0 and 1, not at {share!r}")
        for one, two in pairwise(self.points):
            if share <= two.share:
                return one if share == one.share else two if share == two.share else _between(one, two, share)
        return self.strong

    def cpt(self, part: float) -> float | None:
        """The least share of strong calls that recovers this part of the gap (0.5: half of it); None where there is no
        gap, or no share recovers it."""
        return None if self.gap <= 0 else self.share_for(self.weak.quality + part * self.gap)

    def share_for(self, quality: float) -> float | None:
        """The least share of strong calls that has this quality, give or take a rounding error; None where none has."""
        if self.weak.quality >= quality - ROUNDING:
            return 0.0
        for one, two in pairwise(self.points):
            if two.quality >= quality - ROUNDING:
                rise = min((quality - one.quality) / (two.quality - one.quality), 1.0)
                return one.share + rise * (two.share - one.share)
        return None


def curve_of(
    scores: Sequence[float],
    weak: Sequence[float],
    strong: Sequence[float],
    *,
    weak_costs: Sequence[SupportsFloat | None] | None = None,
    strong_costs: Sequence[SupportsFloat | None] | None = None,
) -> Curve:
    """The curve of tasks ordered by `scores`, the highest first to the strong model.

    `weak` and `strong`: what each model's answer to the task was worth; the costs are in USD. Where one is unknown, the
    curve has no cost. Raises UsageError for lists of different lengths, none at all, or a score that is no number.
    """
    n = _checked(scores, weak, strong)
    low, high = _costs(weak_costs, n), _costs(strong_costs, n)
    quality, cost, dearer = math.fsum(weak) / n, None, [0.0] * n
    if low is not None and high is not None:
        cost, dearer = math.fsum(low) / n, [two - one for one, two in zip(low, high, strict=True)]
    points = [Point(0.0, quality, cost, math.inf)]
    done = 0
    for score, group in groupby(sorted(range(n), key=lambda i: -scores[i]), key=lambda i: scores[i]):
        members = list(group)
        done += len(members)
        quality += math.fsum(strong[i] - weak[i] for i in members) / n
        if cost is not None:
            cost += math.fsum(dearer[i] for i in members) / n
        points.append(Point(done / n, quality, cost, score))
    last = points[-1]
    points[-1] = Point(1.0, math.fsum(strong) / n, last.cost, last.threshold)  # without the sums' rounding errors
    return Curve(tuple(points), n)


def oracle_order(weak: Sequence[float], strong: Sequence[float]) -> list[float]:
    """The scores of one who knows the answers: how much the strong model's is better. No order has a higher curve."""
    return [two - one for one, two in zip(weak, strong, strict=True)]


def random_curve(weak: Sequence[float], strong: Sequence[float], **costs: Any) -> Curve:
    """What a choice by chance comes to, in expectation: the straight line. Costs as in `curve_of`."""
    return curve_of([0.0] * len(weak), weak, strong, **costs)


def apgr(scores: Sequence[float], weak: Sequence[float], strong: Sequence[float]) -> float | None:
    """The mean PGR of tasks in this order; None where the strong model is no better. Arguments as in `curve_of`."""
    return curve_of(scores, weak, strong).apgr


def cpt(scores: Sequence[float], weak: Sequence[float], strong: Sequence[float], part: float) -> float | None:
    """The least share of strong calls that recovers this part of the gap. Arguments as in `curve_of`."""
    return curve_of(scores, weak, strong).cpt(part)


def apgr_samples(scores: Sequence[float], weak: Sequence[float], strong: Sequence[float], counts: Any) -> NDArray[Any]:
    """APGR of many samples of the same tasks at once, for a bootstrap. Needs numpy.

    `counts[b][i]`: how often task i is in sample b; every sample has at least one task. Not a number where a sample's
    strong model is no better than its weak one.
    """
    import numpy as np

    _checked(scores, weak, strong)
    times = np.atleast_2d(np.asarray(counts, dtype=float))
    order = np.argsort(-np.asarray(scores, dtype=float), kind="stable")
    ordered = np.asarray(scores, dtype=float)[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    gains = (np.asarray(strong, dtype=float) - np.asarray(weak, dtype=float))[order]
    size = np.add.reduceat(times[:, order], starts, axis=1)
    gain = np.add.reduceat(times[:, order] * gains, starts, axis=1)
    n, gap = size.sum(axis=1), gain.sum(axis=1)
    before = np.cumsum(gain, axis=1) - gain
    with np.errstate(divide="ignore", invalid="ignore"):
        area = ((before + gain / 2) * size).sum(axis=1) / n / gap
    return np.where(gap > 0, (n * area + 0.5) / (n + 1), np.nan)


def _over_all_counts(area: float, n: int) -> float:
    """The mean over 0 to n strong calls, from the area under the line through them: the ends count whole, not half."""
    return (n * area + 0.5) / (n + 1)


def _between(one: Point, two: Point, share: float) -> Point:
    part = (share - one.share) / (two.share - one.share)
    cost = None if one.cost is None or two.cost is None else one.cost + part * (two.cost - one.cost)
    return Point(share, one.quality + part * (two.quality - one.quality), cost)


def _checked(scores: Sequence[float], weak: Sequence[float], strong: Sequence[float]) -> int:
    if not len(scores) == len(weak) == len(strong):
        raise UsageError(
            f"a curve needs equally many of each: {len(scores)} scores, {len(weak)} weak results and "
            f"{len(strong)} strong ones"
        )
    if not len(scores):
        raise UsageError("a curve needs at least one task")
    for what, values in (("score", scores), ("weak result", weak), ("strong result", strong)):
        bad = next((value for value in values if not math.isfinite(value)), None)
        if bad is not None:
            raise UsageError(f"a {what} is {bad!r}, which is no number to order or to add by")
    return len(scores)


def _costs(costs: Sequence[SupportsFloat | None] | None, n: int) -> list[float] | None:
    known = [float(cost) for cost in costs or () if cost is not None]
    if costs is not None and len(costs) != n:
        raise UsageError(f"a curve needs equally many of each: {n} tasks and {len(costs)} costs")
    return known if len(known) == n else None
