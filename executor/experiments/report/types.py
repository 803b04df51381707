"""What a report consists of: figures and their intervals, plain and frozen. `to_json` is the shape of report.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from executor.experiments.stats import Estimate, is_shown


@dataclass(frozen=True, slots=True)
class Cost:
    """USD per cell, of the cells whose cost is wholly known; `total` is all that is known to have been spent.

    `unknown`: cells whose cost, or a part of it, is not known: then `partial`, and `mean` and `total` lack something.
    """

    mean: float | None
    low: float | None
    high: float | None
    total: float
    unknown: int = 0

    @property
    def partial(self) -> bool:
        """Whether something is missing."""
        return self.unknown > 0

    @property
    def whole(self) -> float | None:
        """The mean, where nothing is missing."""
        return None if self.partial else self.mean

    def to_json(self) -> dict[str, Any]:
        """As in report.json."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "total": self.total,
                "partial": self.partial, "unknown": self.unknown}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, of the `n` cells that had no reply from the cache."""

    p50: float
    p95: float
    n: int


@dataclass(frozen=True, slots=True)
class ArmReport:
    """One arm. `n_tasks`: tasks with a score; `n_cells`: ended cells; `missing`: cells that have not ended; `ungraded`:
    ended cells without a score. `rounds`: the mean of the jobs', `replans`: rounds after the first, in all. `checker`:
    how often the simulated checker is right that the arm supposes."""

    name: str
    kind: str
    mode: str
    routing: str
    n_tasks: int
    n_cells: int
    missing: int
    ungraded: int
    quality: Estimate | None
    cost: Cost | None
    latency: Latency | None
    rounds: float
    replans: int
    failures: int
    statuses: Mapping[str, int]
    escalated: int
    cached_calls: int
    tokens: Mapping[str, Mapping[str, int]]
    models: Mapping[str, int]
    checker: float | None = None
    pgr: float | None = None
    pareto: bool = False

    def to_json(self) -> dict[str, Any]:
        """As in report.json."""
        return {
            "name": self.name, "kind": self.kind, "mode": self.mode, "routing": self.routing,
            "n_tasks": self.n_tasks, "n_cells": self.n_cells, "missing": self.missing, "ungraded": self.ungraded,
            "quality": estimate_json(self.quality),
            "cost": None if self.cost is None else self.cost.to_json(),
            "latency": None if self.latency is None else
            {"p50": self.latency.p50, "p95": self.latency.p95, "n": self.latency.n},
            "rounds": self.rounds, "replans": self.replans, "failures": self.failures,
            "statuses": dict(self.statuses), "escalated": self.escalated, "cached_calls": self.cached_calls,
            "tokens": {role: dict(counts) for role, counts in self.tokens.items()}, "models": dict(self.models),
            "checker": self.checker, "pgr": self.pgr, "pareto": self.pareto,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class BaselineReport:
    """What stands beside the arms: `of` which arms it is made."""

    name: str
    of: tuple[str, ...]
    quality: Estimate
    cost: float | None

    def to_json(self) -> dict[str, Any]:
        """As in report.json."""
        cost = None if self.cost is None else {"mean": self.cost}
        return {"name": self.name, "of": list(self.of), "quality": estimate_json(self.quality), "cost": cost}


@dataclass(frozen=True, slots=True)
class Difference:
    """An arm's quality minus another's on the `n_tasks` tasks that both have, and how many times its cost.

    `p`: of no difference; `p_corrected`: for all pairs of arms. `deviation`: of the tasks' differences. `ratio` and
    `saved` (USD per task, the other's cost minus the arm's) are None where a cost is not wholly known.
    """

    arm: str
    other: str
    quality: Estimate
    p: float
    p_corrected: float
    n_tasks: int
    deviation: float
    ratio: Estimate | None = None
    saved: Estimate | None = None

    @property
    def shown(self) -> bool:
        """Whether a difference in quality is shown."""
        return is_shown(self.quality, self.p_corrected)

    def to_json(self) -> dict[str, Any]:
        """As in report.json."""
        return {
            "arm": self.arm, "reference": self.other,
            "quality": {"difference": self.quality.mean, "low": self.quality.low, "high": self.quality.high,
                        "p": self.p, "p_corrected": self.p_corrected, "deviation": _finite(self.deviation)},
            "cost": None if self.ratio is None else
            {"ratio": _finite(self.ratio.mean), "low": _finite(self.ratio.low), "high": _finite(self.ratio.high),
             "saved": None if self.saved is None else estimate_json(self.saved)},
            "n_tasks": self.n_tasks,
        }  # fmt: skip


class CurvePoint(NamedTuple):
    """Quality, with its interval, and mean cost in USD at a share of strong calls."""

    share: float
    quality: float
    low: float
    high: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class Router:
    """A policy that orders tasks by a score, over all shares of strong calls. `oracle`: what one who knows the answers
    comes to on the same tasks; chance has an APGR of 0.5."""

    arm: str
    weak: str
    strong: str
    n_tasks: int
    apgr: Estimate | None
    cpt: Mapping[str, float | None]
    curve: tuple[CurvePoint, ...]
    oracle: tuple[CurvePoint, ...]
    oracle_apgr: float | None

    def to_json(self) -> dict[str, Any]:
        """As in report.json."""
        return {"arm": self.arm, "weak": self.weak, "strong": self.strong, "n_tasks": self.n_tasks,
                "apgr": estimate_json(self.apgr), "cpt": dict(self.cpt),
                "curve": [point._asdict() for point in self.curve],
                "oracle": {"apgr": self.oracle_apgr, "curve": [point._asdict() for point in self.oracle]}}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KindPart:
    """An arm on the tasks of one kind."""

    n: int
    quality: Estimate | None
    cost: float | None

    def to_json(self) -> dict[str, Any]:
        """As in report.json."""
        return {"n": self.n, "quality": estimate_json(self.quality), "cost": self.cost}


@dataclass(frozen=True, slots=True)
class Best:
    """The comparisons with the best arm, which the closing sentence rests on: their intervals hold jointly at 95 %,
    each at `level`. `margin`: how much lower a quality may be and still do as well. Arms whose checker is simulated are
    no choice where there are others: they are compared with the best of those in `supposed`, each at its own level."""

    arm: str
    margin: float
    level: float
    differences: tuple[Difference, ...]
    supposed: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As in report.json."""
        return {
            "arm": self.arm, "margin": self.margin, "level": self.level,
            "differences": [difference.to_json() for difference in self.differences],
            "supposed": [difference.to_json() for difference in self.supposed],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Head:
    """What was run. `cells`: all there are to be, `ended`: those that have; `pairs`: comparisons that p-values are
    corrected for."""

    name: str
    tasks: int
    repeats: int
    seed: int
    grader: str
    reference: str | None
    cells: int
    ended: int
    pairs: int = 0
    started_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As in report.json."""
        return {
            "name": self.name, "tasks": self.tasks, "repeats": self.repeats, "seed": self.seed, "grader": self.grader,
            "reference": self.reference, "cells": self.cells, "ended": self.ended, "pairs": self.pairs,
            "started_at": self.started_at,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """All of it, but for the single cells, which stand in report.csv."""

    head: Head
    arms: tuple[ArmReport, ...]
    baselines: tuple[BaselineReport, ...] = ()
    differences: tuple[Difference, ...] = ()
    best: Best | None = None
    routers: tuple[Router, ...] = ()
    kinds: Mapping[str, Mapping[str, KindPart]] = field(default_factory=dict)
    conclusion: str = ""
    notes: tuple[str, ...] = ()

    def arm(self, name: str) -> ArmReport:
        """The arm of this name. Raises KeyError."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """The content of report.json: plain JSON data; what is not known is null."""
        return {
            "experiment": self.head.to_json(),
            "arms": [arm.to_json() for arm in self.arms],
            "baselines": [baseline.to_json() for baseline in self.baselines],
            "differences": [difference.to_json() for difference in self.differences],
            "best": None if self.best is None else self.best.to_json(),
            "routers": [router.to_json() for router in self.routers],
            "kinds": [
                {"kind": kind, "arms": {name: part.to_json() for name, part in parts.items()}}
                for kind, parts in self.kinds.items()
            ],
            "conclusion": self.conclusion,
            "notes": list(self.notes),
        }


def estimate_json(estimate: Estimate | None) -> dict[str, float | None] | None:
    """An estimate as in report.json; ends that are not known are null."""
    if estimate is None:
        return None
    return {name: _finite(value) for name, value in estimate.to_json().items()}


def _finite(value: float) -> float | None:
    """JSON has no infinity and no NaN: what is not known is null."""
    return value if math.isfinite(value) else None
