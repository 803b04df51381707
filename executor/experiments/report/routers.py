"""Policies that order tasks by a score: what they are worth over all shares of strong calls, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from executor.experiments.curves import PARTS, Curve, apgr_samples, curve_of, oracle_order
from executor.experiments.needs import needed
from executor.experiments.recorded.arm import policy_of_arm, route_scores
from executor.experiments.stats import Estimate, Resampled, bca, score_intervals
from executor.experiments.types import Arm, Experiment
from registry.errors import ConfigError

from .data import ArmData
from .types import CurvePoint, Router

JACKKNIFED = 1_500
"""Up to so many tasks the interval is corrected for its skew, which takes tasks times tasks counts."""
POINTS = 101
"""So many points of a curve are told: one for each percent of strong calls."""


def routers_of(
    experiment: Experiment, data: Mapping[str, ArmData], samples: Callable[[int], Resampled]
) -> tuple[Router, ...]:
    """One for each scoring policy: arms that differ in their threshold alone have the same curve. The weak and the
    strong model's own results come from the arms that have them alone, else there is no curve."""
    found: dict[Any, Router] = {}
    for arm in experiment.arms:
        scores = _scores(experiment, arm)
        if scores is None:
            continue
        weak, strong = (_alone(experiment, data, model) for model in (arm.among[0], arm.among[-1]))
        key = (arm.among, tuple(scores.values()))
        if weak is not None and strong is not None and key not in found:
            router = _router(arm, scores, weak, strong, samples)
            if router is not None:
                found[key] = router
    return tuple(found.values())


def _scores(experiment: Experiment, arm: Arm) -> dict[str, float] | None:
    """By task; None where the arm has no policy that orders tasks between two models."""
    if arm.kind != "recorded" or len(arm.among) != 2:
        return None
    scores = route_scores(experiment, arm)
    return None if scores is None else {task.id: score for task, score in zip(experiment.tasks, scores, strict=True)}


def scoring_arms(experiment: Experiment) -> Iterable[Arm]:
    """Arms whose policy has a score."""
    return (arm for arm in experiment.arms if _is_scoring(experiment, arm))


def _is_scoring(experiment: Experiment, arm: Arm) -> bool:
    if arm.kind != "recorded" or len(arm.among) != 2:
        return False
    try:
        return callable(getattr(policy_of_arm(experiment, arm), "score", None))
    except ConfigError:
        return False


def _alone(experiment: Experiment, data: Mapping[str, ArmData], model: str) -> ArmData | None:
    for arm in experiment.arms:
        if arm.kind == "recorded" and arm.alone == model and data[arm.name].means:
            return data[arm.name]
    return None


def _router(
    arm: Arm, scores: Mapping[str, float], weak: ArmData, strong: ArmData, samples: Callable[[int], Resampled]
) -> Router | None:
    tasks = [task for task in weak.means if task in strong.means and task in scores]
    if not tasks:
        return None
    order = [scores[task] for task in tasks]
    low, high = [weak.means[task] for task in tasks], [strong.means[task] for task in tasks]
    curve = curve_of(
        order,
        low,
        high,
        weak_costs=[weak.costs.get(task) for task in tasks],
        strong_costs=[strong.costs.get(task) for task in tasks],
    )
    best = curve_of(oracle_order(low, high), low, high)
    return Router(
        arm.name.partition("[")[0],
        weak.arm.name,
        strong.arm.name,
        len(tasks),
        _apgr(curve, order, low, high, samples(len(tasks))),
        {f"{100 * part:.0f}": curve.cpt(part) for part in PARTS},
        _points(curve, order, low, high),
        _points(best, oracle_order(low, high), low, high),
        best.apgr,
    )


def _apgr(curve: Curve, order: list[float], low: list[float], high: list[float], drawn: Resampled) -> Estimate | None:
    """With its BCa interval: tasks are drawn anew, the policy stays as it is."""
    np = needed("numpy")

    value = curve.apgr
    if value is None or curve.n < 2:
        return None
    without = np.ones((curve.n, curve.n), dtype=np.float32) if curve.n <= JACKKNIFED else None
    if without is None:  # the skew hardly matters among so many
        jackknife = np.zeros(1)
    else:
        np.fill_diagonal(without, 0)
        jackknife = apgr_samples(order, low, high, without)
        jackknife = jackknife[np.isfinite(jackknife)]
    return bca(value, apgr_samples(order, low, high, drawn.counts), jackknife)


def _points(curve: Curve, order: list[float], low: list[float], high: list[float]) -> tuple[CurvePoint, ...]:
    """The curve at each percent of strong calls, with the interval of the mean of the answers that are taken there."""
    np = needed("numpy")

    points = [curve.at(i / (POINTS - 1)) for i in range(POINTS)]
    ranked = sorted(range(curve.n), key=lambda i: -order[i])
    weak, strong = (np.array(values, dtype=float)[ranked] for values in (low, high))
    strong_calls = np.array([round(point.share * curve.n) for point in points])
    taken = np.where(np.arange(curve.n) < strong_calls[:, None], strong, weak)
    binary = bool(((taken == 0) | (taken == 1)).all())
    mean, bottom, top = score_intervals(taken, curve.n, binary=binary)
    return tuple(
        CurvePoint(point.share, point.quality, float(point.quality - down), float(point.quality + up), point.cost)
        for point, down, up in zip(points, mean - bottom, top - mean, strict=True)
    )
