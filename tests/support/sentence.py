"""What the closing sentence of a report must say, from its CSV alone, by code of its own."""

from __future__ import annotations

import csv
from io import StringIO
from typing import Any

import numpy as np
from scipy import stats as scipy_stats


def read(text: str) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Scores and costs by arm and task, as report.csv has them."""
    found: dict[str, Any] = {}
    for row in csv.DictReader(StringIO(text)):
        task = found.setdefault(row["arm"], {}).setdefault(row["task"], {"score": [], "cost": []})
        task["score"].append(float(row["score"]))
        task["cost"].append(float(row["cost_usd"]))
    return found


def column(arm: dict[str, dict[str, list[float]]], name: str) -> Any:
    return np.array([np.mean(arm[task][name]) for task in sorted(arm)])


def bootstrapped(one: Any, two: Any) -> tuple[float, float]:
    """The interval of what the first saves against the second, in percent."""
    rows = np.random.default_rng(77).integers(0, len(one), (2_000, len(one)))
    drawn = one[rows].mean(axis=1) / two[rows].mean(axis=1)
    high, low = np.quantile(drawn, [0.025, 0.975])
    return 100 * (1 - low), 100 * (1 - high)


def expected_sentence(text: str, reference: str, margin: float) -> dict[str, Any]:
    """What to use, what it saves, how sure, by the rule of docs/experiments.md: written anew, with numpy's means
    and Student's interval by hand."""
    arms = {name: arm for name, arm in read(text).items() if "checker=" not in name}
    quality = {name: column(arm, "score") for name, arm in arms.items()}
    cost = {name: column(arm, "cost") for name, arm in arms.items()}
    best = max(arms, key=lambda name: (quality[name].mean(), -cost[name].mean()))
    repeats = max(len(task["score"]) for arm in arms.values() for task in arm.values())
    level = 1 - 0.05 / (len(arms) - 1)
    as_well, intervals = {best}, {}
    for name in arms:
        if name != best:
            # a task is added, half of it a step of 1 / repeats up, half of it down
            values = np.append(quality[name] - quality[best], [1 / repeats, -1 / repeats])
            weights = np.append(np.ones(len(values) - 2), [0.5, 0.5])
            size = weights.sum()
            mean = (weights * values).sum() / size
            variance = (weights * (values - mean) ** 2).sum() / (size - 1)
            half = scipy_stats.t.ppf((1 + level) / 2, size - 1) * (variance / size) ** 0.5
            intervals[name] = (mean - half, mean + half)
            if mean - half > -margin and bootstrapped(cost[name], cost[best])[0] > 0:
                as_well.add(name)
    chosen = min(as_well, key=lambda name: cost[name].mean())
    return {
        "best": best,
        "chosen": chosen,
        "quality": 100 * quality[chosen].mean(),
        "interval": intervals,
        "saved": 100 * (1 - cost[chosen].mean() / cost[reference].mean()),
        "saved_interval": bootstrapped(cost[chosen], cost[reference]),
    }
