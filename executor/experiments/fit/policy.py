"""Makes a learned routing policy of what two arms made of the same tasks, and says how good it is on others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from executor.experiments.curves import PARTS, apgr_samples, curve_of, oracle_order
from executor.experiments.needs import needed
from executor.experiments.stats import Estimate, Resampled, bca, known_mean
from registry.learned_route import LearnedPolicy, RouteModel
from registry.routing import RouteRequest

from .choice import FOLDS, Chosen, Wish, chosen, threshold_for
from .data import FitData, check_data
from .model import Seen, Space, fitted, rounded

RESAMPLES = 2_000
CHANCE = 0.5
"""APGR of a choice by chance."""


@dataclass(frozen=True, slots=True)
class Router:
    """One order of the judged tasks: its APGR with a 95 % interval over tasks, and how much the learned one's is above
    it on the same tasks (None for the learned one itself)."""

    name: str
    apgr: Estimate
    below: Estimate | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        below = None if self.below is None else self.below.to_json()
        return {"router": self.name, "apgr": self.apgr.to_json(), "learned_is_above_by": below}


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy on tasks that it was not fitted on. At its threshold: `share` of strong calls, mean `quality` and `cost`
    (USD a task, None: not known); beside them the two models alone."""

    tasks: int
    routers: tuple[Router, ...]
    share: float
    quality: float
    weak: float
    strong: float
    cost: float | None = None
    weak_cost: float | None = None
    strong_cost: float | None = None
    cpt: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def learned(self) -> Router:
        """The policy's own order."""
        return self.routers[0]

    @property
    def recovered(self) -> float:
        """The part of the strong model's lead that is kept at the threshold."""
        return (self.quality - self.weak) / (self.strong - self.weak)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "tasks": self.tasks,
            "routers": [router.to_json() for router in self.routers],
            "at_threshold": {
                "share": self.share, "quality": self.quality, "recovered": self.recovered, "cost": self.cost,
            },
            "weak": {"quality": self.weak, "cost": self.weak_cost},
            "strong": {"quality": self.strong, "cost": self.strong_cost},
            "cpt": dict(self.cpt),
        }  # fmt: skip


def fit_policy(
    data: FitData, *, weak: str, strong: str, wish: Wish, seed: int = 0, about: Mapping[str, Any] | None = None
) -> LearnedPolicy:
    """A policy fitted on all these tasks, chosen by cross-validation among them. `weak` and `strong`: the models' names
    or roles. Raises ConfigError where nothing can be learned or scikit-learn is missing."""
    model, best = trained(data, seed)
    cross_validated = _interval(best.scores, data, seed)
    told = {
        **(about or {}),
        "tasks": len(data),
        "kinds": len(model.kinds),
        "weak_quality": rounded(fmean(data.weak)),
        "strong_quality": rounded(fmean(data.strong)),
        "threshold_for": wish.to_json(),
        "penalty": best.penalty,
        "cross_validation": {
            "folds": FOLDS,
            "apgr": {name: rounded(value) for name, value in cross_validated.to_json().items()},
            "apgr_by_penalty": {f"{penalty:g}": rounded(value) for penalty, value in best.apgr.items()},
        },
        "seed": seed,
    }
    return LearnedPolicy(weak, strong, rounded(threshold_for(wish, best.scores, data)), model, told)


def trained(data: FitData, seed: int = 0) -> tuple[RouteModel, Chosen]:
    """The model of a policy fitted on all these tasks, and what cross-validation among them told. Raises ConfigError as
    `fit_policy`."""
    check_data(data)
    seen = Seen.of(data)
    # one thread: sums come out the same on any number of cores, and such small ones are not done sooner by more
    with needed("threadpoolctl").threadpool_limits(1):
        best = chosen(data, seen, seed=seed)
        space = Space(seen)
        return fitted(space, space.matrix(seen), data.weak, data.strong, best.penalty), best


def judge(policy: LearnedPolicy, data: FitData, fitted_on: FitData, *, seed: int = 0) -> Judged:
    """The policy on other tasks, beside the longest text first, a table by kind from the tasks it was fitted on, chance
    and the oracle. Raises ConfigError where these tasks show nothing."""
    check_data(data, "to judge on")
    scores = scores_of(policy, data)
    curve = curve_of(scores, data.weak, data.strong)
    strong = [score >= policy.threshold for score in scores]
    costs = _chosen_costs(data, strong)
    return Judged(
        len(data),
        _routers(_orders(scores, data, fitted_on), data, seed),
        sum(strong) / len(data),
        fmean(data.strong[i] if there else data.weak[i] for i, there in enumerate(strong)),
        curve.weak.quality,
        curve.strong.quality,
        known_mean(costs),
        known_mean(data.weak_costs),
        known_mean(data.strong_costs),
        {f"{part:.0%}": curve.cpt(part) for part in PARTS},
    )


def scores_of(policy: LearnedPolicy, data: FitData) -> list[float]:
    """The policy's own scores of these tasks, as it gives them at run time."""
    return [policy.score(RouteRequest(task=text, kind=kind)) for text, kind in zip(data.texts, data.kinds, strict=True)]


def kind_scores(data: FitData, fitted_on: FitData) -> list[float]:
    """A table by kind: the mean gain of each kind on the tasks it is made of; the mean of all for another kind."""
    had: dict[str | None, list[float]] = defaultdict(list)
    for kind, weak, strong in zip(fitted_on.kinds, fitted_on.weak, fitted_on.strong, strict=True):
        had[kind].append(strong - weak)
    return [fmean(had[kind]) if kind in had else fitted_on.gap for kind in data.kinds]


def judgement(policy: LearnedPolicy, judged: Judged | None) -> str:
    """What is known of a policy's worth, in a sentence. `judged` None: no tasks were held back."""
    if judged is None:
        own = Estimate(**policy.about["cross_validation"]["apgr"])
        where = f"By cross-validation on the {policy.about['tasks']:,} tasks that it is fitted on; none were held back"
    else:
        own, where = judged.learned.apgr, f"On {judged.tasks:,} tasks that it was not fitted on"
    interval = f"APGR {own.mean:.3f}, 95 % interval {own.low:.3f} to {own.high:.3f}; chance is 0.5"
    if own.low <= CHANCE <= own.high:
        return f"{where}: nothing was learned that can be told from chance ({interval}). Don't use it."
    if own.high < CHANCE:
        return f"{where}: its order is worse than chance ({interval}). Don't use it."
    if judged is None:
        return f"{where}: its order is better than chance ({interval})."
    others = " and ".join(_beside(one) for one in judged.routers if one.name in ("longest first", "table by kind"))
    kept = f"{judged.share:.0%} strong calls keep {judged.recovered:.0%} of the strong model's lead"
    return f"{where}: {kept} ({interval}). Its order is {others}."


def _beside(other: Router) -> str:
    assert other.below is not None
    name = {"longest first": "the longest text first"}.get(other.name, f"a {other.name}")
    if other.below.low > 0:
        return f"better than {name} ({other.apgr.mean:.3f})"
    if other.below.high < 0:
        return f"worse than {name} ({other.apgr.mean:.3f})"
    return f"not shown to differ from {name} ({other.apgr.mean:.3f})"


def _orders(scores: Sequence[float], data: FitData, fitted_on: FitData) -> dict[str, Sequence[float]]:
    """The orders to compare, the policy's first."""
    orders: dict[str, Sequence[float]] = {"learned": scores, "longest first": [float(len(text)) for text in data.texts]}
    if len(set(fitted_on.kinds)) > 1:
        orders["table by kind"] = kind_scores(data, fitted_on)
    return {**orders, "chance": [0.0] * len(data), "oracle": oracle_order(data.weak, data.strong)}


def _routers(orders: Mapping[str, Sequence[float]], data: FitData, seed: int) -> tuple[Router, ...]:
    """APGR of each order over the same samples of the tasks."""
    counts = Resampled(len(data), seed=seed, resamples=RESAMPLES).counts
    found = {name: _drawn(order, data, counts) for name, order in orders.items()}
    own = found["learned"]
    routers = []
    for name, (value, drawn, without) in found.items():
        below = None if name == "learned" else bca(own[0] - value, own[1] - drawn, own[2] - without)
        routers.append(Router(name, bca(value, drawn, without), below))
    return tuple(routers)


def _interval(scores: Sequence[float], data: FitData, seed: int) -> Estimate:
    value, drawn, without = _drawn(scores, data, Resampled(len(data), seed=seed, resamples=RESAMPLES).counts)
    return bca(value, drawn, without)


def _drawn(order: Sequence[float], data: FitData, counts: Any) -> tuple[float, Any, Any]:
    """APGR of an order, of samples of the tasks, and with each task left out."""
    np = needed("numpy")
    value = curve_of(order, data.weak, data.strong).apgr
    samples = np.concatenate([apgr_samples(order, data.weak, data.strong, part) for part in np.array_split(counts, 8)])
    n = len(data)
    without = np.concatenate(
        [
            apgr_samples(order, data.weak, data.strong, 1.0 - np.eye(n)[part])
            for part in np.array_split(np.arange(n), max(1, n // 200))
        ]
    )
    return value or 0.0, samples, without


def _chosen_costs(data: FitData, strong: Sequence[bool]) -> Sequence[float | None]:
    if not data.weak_costs or not data.strong_costs:
        return ()
    return [data.strong_costs[i] if there else data.weak_costs[i] for i, there in enumerate(strong)]
