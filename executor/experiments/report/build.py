"""The report of an experiment: what each arm was worth, what it cost, how sure the differences are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean

from executor.experiments import stats
from executor.experiments.stats import LEVEL, Estimate, Samples
from executor.experiments.types import Experiment, Grade, Outcome

from .baselines import Results, baselines_of, or_most
from .conclusion import conclusion
from .data import (
    ArmData,
    data_of,
    kinds_of_tasks,
    least_step,
    models_of_cells,
    routing_text,
    tokens_by_role,
)
from .notes import notes_of
from .routers import routers_of
from .types import ArmReport, BaselineReport, Best, Cost, Difference, Head, KindPart, Latency, Report

MARGIN = 0.02
"""How much lower a quality may be and still do as well, in the closing sentence: two right answers of a hundred."""


def report_of(
    experiment: Experiment,
    outcomes: Iterable[Outcome],
    grades: Iterable[Grade],
    *,
    seed: int = 0,
    margin: float = MARGIN,
    started_at: float | None = None,
) -> Report:
    """The report of what has ended and is graded; what is missing is said in its notes.

    `seed` of the bootstrap's samples: the same data and seed give the same report. Raises ConfigError where scipy is
    not installed.
    """
    grades = list(grades)
    data = data_of(experiment, outcomes, grades)
    samples = Samples(seed)
    pairs = _Pairs(data, samples, seed)
    arms = [_arm(experiment, arm, samples) for arm in data.values()]
    weak, strong = _ends(data)
    arms = _with_front([replace(arm, pgr=_pgr(data, arm.name, weak, strong)) for arm in arms])
    reference = _reference(experiment, data, strong)
    best = _best(arms, pairs, margin)
    report = Report(
        _head(experiment, data, reference, pairs, started_at),
        tuple(arms),
        tuple(_baselines(data)),
        tuple(pairs.of(name, reference) for name in pairs.names if reference in pairs.names and name != reference)
        if reference is not None
        else (),
        best,
        routers_of(experiment, data, samples.of),
        _kinds(experiment, data),
    )
    report = replace(report, notes=notes_of(experiment, data, report, grades))
    return replace(report, conclusion=conclusion(report))


def _head(
    experiment: Experiment, data: Mapping[str, ArmData], reference: str | None, pairs: _Pairs, started_at: float | None
) -> Head:
    return Head(
        experiment.name,
        len(experiment.tasks),
        experiment.repeats,
        experiment.seed,
        experiment.grader.use,
        reference,
        experiment.size,
        sum(len(arm.cells) for arm in data.values()),
        len(pairs.p_values),
        started_at,
    )


# One arm


def _arm(experiment: Experiment, data: ArmData, samples: Samples) -> ArmReport:
    cells, arm = data.cells, data.arm
    statuses = Counter(outcome.status for outcome in cells)
    return ArmReport(
        arm.name,
        arm.kind,
        "" if arm.kind == "recorded" else arm.mode,
        routing_text(arm),
        len(data.means),
        len(cells),
        data.missing,
        len(cells) - data.graded,
        data.quality(),
        _cost(data, samples),
        _latency(cells),
        fmean(outcome.rounds for outcome in cells) if cells else 0.0,
        sum(max(0, outcome.rounds - 1) for outcome in cells),
        sum(count for status, count in statuses.items() if status != "completed"),
        dict(sorted(statuses.items())),
        sum(outcome.escalated for outcome in cells),
        sum(outcome.cached_calls for outcome in cells),
        tokens_by_role(cells),
        models_of_cells(cells),
        arm.checker,
    )


def _cost(data: ArmData, samples: Samples) -> Cost | None:
    """None where nothing at all is known of what it cost."""
    known = [outcome.cost for outcome in data.cells if outcome.cost is not None and outcome.cost.is_finite()]
    if not known:
        return None
    unknown = sum(outcome.known_cost is None for outcome in data.cells)
    costs = list(data.costs.values())
    if not costs:
        return Cost(None, None, None, float(sum(known)), unknown)
    mean = samples.of(len(costs)).interval([costs], stats.same)
    low, high = (end if math.isfinite(end) else None for end in mean[1:])
    return Cost(mean.mean, low, high, float(sum(known)), unknown)


def _latency(cells: Sequence[Outcome]) -> Latency | None:
    """Of cells whose calls all went out: a reply from the cache took no time that would mean anything."""
    seconds = [outcome.latency for outcome in cells if outcome.latency is not None and not outcome.cached_calls]
    if not seconds:
        return None
    return Latency(stats.quantile(seconds, 0.5), stats.quantile(seconds, 0.95), len(seconds))


def _with_front(arms: Sequence[ArmReport]) -> list[ArmReport]:
    """The arms, those marked of which no other one is better and no dearer, or cheaper and no worse."""
    points = {
        arm.name: (arm.cost.whole, arm.quality.mean)
        for arm in arms
        if arm.cost is not None and arm.cost.whole is not None and arm.quality is not None
    }
    front = {
        name
        for name, (cost, quality) in points.items()
        if not any(
            other_cost <= cost and other >= quality and (other_cost < cost or other > quality)
            for other_cost, other in points.values()
        )
    }
    return [replace(arm, pareto=arm.name in front) for arm in arms]


# Weak and strong


def _singles(data: Mapping[str, ArmData]) -> list[str]:
    """Arms of one model alone that have scores."""
    return [name for name, arm in data.items() if arm.arm.alone is not None and arm.means]


def _ends(data: Mapping[str, ArmData]) -> tuple[str | None, str | None]:
    """The single-model arms between which routing happens: the cheapest (where costs are not known, the worst) and the
    best one; None where there are no two."""
    singles = _singles(data)
    if not singles:
        return None, None
    worth = {name: data[name].mean for name in singles}
    cost = {name: data[name].mean_cost() for name in singles}
    strong = max(singles, key=lambda name: (worth[name], -or_most(cost[name])))
    others = [name for name in singles if name != strong]
    if not others:
        return None, strong
    if all(cost[name] is not None for name in singles):
        return min(others, key=lambda name: (or_most(cost[name]), -worth[name])), strong
    return min(others, key=lambda name: worth[name]), strong


def _pgr(data: Mapping[str, ArmData], name: str, weak: str | None, strong: str | None) -> float | None:
    """The part of the gap between weak and strong that an arm recovers, on the tasks that all three have."""
    if weak is None or strong is None:
        return None
    tasks = [task for task in data[name].means if task in data[weak].means and task in data[strong].means]
    if not tasks:
        return None
    low, high, own = (math.fsum(data[arm].means[task] for task in tasks) for arm in (weak, strong, name))
    return (own - low) / (high - low) if high - low > 1e-9 * len(tasks) else None


def _reference(experiment: Experiment, data: Mapping[str, ArmData], strong: str | None) -> str | None:
    """The arm that the others are compared with: the one that is named, else the best single-model one, else the best
    one."""
    if experiment.reference is not None:
        return experiment.reference
    if strong is not None:
        return strong
    worth = {name: arm.mean for name, arm in data.items() if arm.means}
    return max(worth, key=lambda name: worth[name]) if worth else None


def _baselines(data: Mapping[str, ArmData]) -> Iterable[BaselineReport]:
    """Of the single-model arms, where there are two or more; else of all arms. On the tasks that all of them have."""
    names = _singles(data)
    if len(names) < 2:
        names = [name for name, arm in data.items() if arm.means]
    tasks = _shared(data, names)
    if len(names) < 2 or not tasks:
        return
    results = {
        name: Results([data[name].means[task] for task in tasks], [data[name].costs.get(task) for task in tasks])
        for name in names
    }
    for baseline in baselines_of(results):
        quality = stats.mean_interval([[quality] for quality in baseline.quality])
        yield BaselineReport(baseline.name, baseline.of, quality, stats.known_mean(baseline.cost))


def _shared(data: Mapping[str, ArmData], names: Sequence[str]) -> list[str]:
    """The tasks that all of these arms have a score for, in order."""
    if not names:
        return []
    return [task for task in data[names[0]].means if all(task in data[name].means for name in names[1:])]


# Pairs


class _Pairs:
    """All pairs of arms that share tasks with scores, their p-values corrected together: which arm is the best, and so
    which comparison is told, shows only afterwards."""

    def __init__(self, data: Mapping[str, ArmData], samples: Samples, seed: int) -> None:
        self._data, self._samples = data, samples
        self.names = [name for name, arm in data.items() if arm.means]
        pairs = [pair for pair in combinations(self.names, 2) if _shared(data, pair)]
        p_values = [stats.sign_flip_p(self._differences(*pair), seed=seed) for pair in pairs]
        self.p_values = dict(zip(map(frozenset, pairs), zip(p_values, stats.holm(p_values), strict=True), strict=True))

    def _differences(self, arm: str, other: str) -> list[float]:
        one, two = self._data[arm].means, self._data[other].means
        return [one[task] - two[task] for task in _shared(self._data, (arm, other))]

    def of(self, arm: str, other: str, level: float = LEVEL) -> Difference:
        """The arm against another one."""
        one, two = self._data[arm], self._data[other]
        tasks = _shared(self._data, (arm, other))
        if not tasks:
            unknown = Estimate(math.nan, math.nan, math.nan)
            return Difference(arm, other, unknown, math.nan, math.nan, 0, math.nan)
        differences = self._differences(arm, other)
        p, corrected = self.p_values[frozenset((arm, other))]
        found = Difference(
            arm,
            other,
            stats.difference_interval(differences, least_step(one, two, tasks), level),
            p,
            corrected,
            len(tasks),
            stats.spread(differences),
        )
        if not all(task in one.costs and task in two.costs for task in tasks):
            return found
        costs = [[arm.costs[task] for task in tasks] for arm in (one, two)]
        if math.fsum(costs[1]) <= 0:
            return found
        drawn = self._samples.of(len(tasks))
        return replace(
            found, ratio=drawn.interval(costs, stats.ratio), saved=drawn.interval(costs[::-1], stats.difference)
        )


def _best(arms: Sequence[ArmReport], pairs: _Pairs, margin: float) -> Best | None:
    """The arm of the highest quality (of equal ones the cheapest) against all others: with as many comparisons as
    there are others, each interval is so wide that all of them hold together (Bonferroni)."""
    judged = [arm for arm in arms if arm.quality is not None]
    real = [arm for arm in judged if arm.checker is None] or judged
    if not real:
        return None
    worth = {arm.name: arm.quality.mean for arm in real if arm.quality is not None}
    best = max(real, key=lambda arm: (worth[arm.name], -or_most(arm.cost.whole if arm.cost else None))).name

    def against(names: Sequence[str]) -> tuple[float, tuple[Difference, ...]]:
        level = 1 - (1 - LEVEL) / max(1, len(names))
        return level, tuple(pairs.of(name, best, level) for name in names)

    level, differences = against([arm.name for arm in real if arm.name != best])
    _, supposed = against([arm.name for arm in judged if arm not in real])
    return Best(best, margin, level, differences, supposed)


# Parts


def _kinds(experiment: Experiment, data: Mapping[str, ArmData]) -> dict[str, dict[str, KindPart]]:
    parts = {}
    for kind, tasks in kinds_of_tasks(experiment.tasks).items():
        parts[kind] = {
            name: KindPart(len(own), arm.quality(own), arm.mean_cost(own))
            for name, arm in data.items()
            if (own := [task for task in tasks if task in arm.means])
        }
    return parts
