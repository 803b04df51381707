"""Made-up results of experiments: tasks of different difficulty, arms of stated quality and price, all seeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import NormalDist
from typing import Any

from executor.experiments.types import (
    Arm,
    Cell,
    Experiment,
    Grade,
    GraderSpec,
    Outcome,
    RecordedAnswer,
    RecordedModel,
    Task,
)
from registry.messages import Usage


@dataclass(frozen=True)
class Made:
    """An arm to make results of. `rate`: how many of its answers are right; `cost` of one in USD, on average; `level`:
    a fixed difficulty's worth (see `results`)."""

    rate: float
    cost: float | None = 0.001
    routing: Any = None
    kind: str = "job"
    latency: float = 2.0
    escalates: float = 0.0
    fails: float = 0.0


@dataclass(frozen=True)
class Results:
    """What an experiment came to."""

    experiment: Experiment
    outcomes: tuple[Outcome, ...]
    grades: tuple[Grade, ...]
    scores: Mapping[str, Any] = field(default_factory=dict)


def results(
    arms: Mapping[str, Made],
    *,
    tasks: int = 200,
    repeats: int = 1,
    seed: int = 1,
    alike: float = 1.0,
    kinds: Sequence[str] = (),
    reference: str | None = None,
    binary: bool = True,
) -> Results:
    """The tasks' difficulties deviate by `alike` times what the answers do otherwise: the more, the more alike arms
    answer the same task."""
    import numpy as np

    draw = np.random.default_rng(seed)
    normal = NormalDist()
    difficulty = draw.standard_normal(tasks) * alike
    made_tasks = tuple(
        Task(f"t{i:04d}", f"question {i}", metadata={"kind": kinds[i % len(kinds)]} if kinds else {})
        for i in range(tasks)
    )
    outcomes, grades, scores = [], [], {}
    for name, made in arms.items():
        place = normal.inv_cdf(made.rate) * (1 + alike**2) ** 0.5
        chance = np.array([normal.cdf(place - one) for one in difficulty])
        right = draw.random((repeats, tasks)) < chance
        score = (
            right.astype(float)
            if binary
            else np.round(np.clip(chance + draw.normal(0, 0.2, (repeats, tasks)), 0, 1), 3)
        )
        scores[name] = score
        for repeat in range(repeats):
            for i, task in enumerate(made_tasks):
                cell = Cell(name, task.id, repeat + 1)
                failed = draw.random() < made.fails
                outcomes.append(_outcome(cell, made, draw, failed=failed))
                grades.append(Grade(cell, 0.0 if failed else float(score[repeat, i])))
    experiment = Experiment(
        "made up",
        made_tasks,
        tuple(Arm(name, made.kind, routing=made.routing) for name, made in arms.items()),  # type: ignore[arg-type]
        GraderSpec("exact"),
        repeats,
        seed=seed,
        reference=reference,
    )
    return Results(experiment, tuple(outcomes), tuple(grades), scores)


def _outcome(cell: Cell, made: Made, draw: Any, *, failed: bool) -> Outcome:
    size = float(draw.lognormal(-0.125, 0.5))
    cost = None if made.cost is None else Decimal(str(round(made.cost * size, 8)))
    usage = Usage(int(900 * size), int(300 * size), cost=cost)
    plan = Usage(200, 60, cost=None if cost is None else Decimal(0))
    escalated = int(draw.random() < made.escalates)
    rounds = 1 + int(draw.random() < 0.1)
    return Outcome(
        cell,
        "failed" if failed else "completed",
        "" if failed else "an answer",
        "it broke" if failed else None,
        "llm_error" if failed else None,
        cost,
        usage + plan,
        {"step": usage, "planner": plan},
        {"large" if escalated else "small": usage + plan},
        round(made.latency * float(draw.lognormal(0, 0.4)), 3),
        rounds,
        3,
        int(failed),
        {"large" if escalated else "small": 3},
        escalated,
        job_id="job",
    )


def recorded(tasks: int = 300, seed: int = 3) -> Experiment:
    """Two models whose answers are on file; long questions are harder for the weak one."""
    import numpy as np

    draw = np.random.default_rng(seed)
    lengths = draw.integers(20, 400, tasks)
    weak = draw.random(tasks) < 0.9 - lengths / 800
    strong = draw.random(tasks) < 0.88
    made = tuple(
        Task(f"q{i}", "x" * int(lengths[i]), metadata={"kind": "odd" if i % 2 else "even"}) for i in range(tasks)
    )
    models = {
        name: RecordedModel(
            name, {task.id: RecordedAnswer("", float(right[i]), Decimal(cost)) for i, task in enumerate(made)}
        )
        for name, right, cost in (("weak", weak, "0.0004"), ("strong", strong, "0.01"))
    }
    long = [
        Arm(f"longest[threshold={size}]", "recorded", among=("weak", "strong"),
            routing={"use": "longest", "models": ["weak", "strong"], "threshold": size})
        for size in (100, 250)
    ]  # fmt: skip
    cascades = [
        Arm(f"cascade[checker={checker}]", "recorded", routing="cascade", among=("weak", "strong"), checker=checker)
        for checker in (0.7, 0.9)
    ]
    alone = [Arm(name, "recorded", among=(name,)) for name in models]
    return Experiment("recorded", made, (*alone, *long, *cascades), GraderSpec("recorded"), seed=seed, recorded=models)


def recorded_results(experiment: Experiment) -> Results:
    """What comes of an experiment on recorded answers, graded by the verdicts on file."""
    from executor.experiments.recorded.arm import recorded_outcomes

    outcomes = tuple(outcome for arm in experiment.arms for outcome in recorded_outcomes(experiment, arm))
    return Results(experiment, outcomes, tuple(Grade(one.cell, one.recorded_score) for one in outcomes))
