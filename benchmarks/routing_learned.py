"""Learned routing on recorded answers: fitted on one half of the tasks, judged on the other, over many halves.

    python -m benchmarks.routing_learned --data PATH [--splits N] [--only gsm8k|mmlu]
    python -m benchmarks.routing_learned --data PATH --write     # makes examples/routing/*.policy.json anew

PATH: a folder that has the evaluation files of lm-sys/RouteLLM somewhere in it, `gsm8k_responses.csv` and
`mmlu_*.csv` (see examples/routing/SOURCE.md). Calls nothing; needs some minutes for each of the two sets. Everything is
chosen inside the half that is fitted on. The halves of one set of tasks overlap, so that the spread over halves tells
how much the choice of the half matters and nothing about other tasks: the interval over tasks, from one split, does
that. The examples' policies are fitted on half of the tasks, none of them in the examples' excerpts. Ends with status 1
where a target is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from executor.experiments.curves import apgr, oracle_order
from executor.experiments.experiment_file import read_experiment
from executor.experiments.fit.choice import Wish
from executor.experiments.fit.data import FitData, halves
from executor.experiments.fit.policy import fit_policy, judge, judgement, kind_scores, scores_of, trained
from executor.experiments.types import Experiment
from registry.learned_route import LearnedPolicy

from .routing import EXAMPLES, data_of

ABOVE_TABLE = 0.01
"""How much better than a table by subject the learned order is to be."""
SUBJECT_SPLITS = 10


@dataclass(frozen=True)
class Target:
    """What is to be reached: an APGR, or None: that of the table by kind and a bit more. `splits`: random halves, more
    where there are fewer tasks and each half tells less."""

    file: str
    pattern: str
    apgr: float | None
    splits: int


TARGETS = {
    "gsm8k": Target("gsm8k.toml", "gsm8k_responses.csv", 0.64, 100),
    "mmlu": Target("mmlu.toml", "mmlu_*.csv", None, 20),
}


def fit_data(experiment: Experiment) -> FitData:
    """The recorded verdicts."""
    tasks = experiment.tasks
    weak, strong = ([experiment.recorded[name].answers[task.id] for task in tasks] for name in ("weak", "strong"))
    return FitData(
        [task.input for task in tasks],
        [task.kind for task in tasks],
        [answer.score or 0.0 for answer in weak],
        [answer.score or 0.0 for answer in strong],
        [None if answer.cost is None else float(answer.cost) for answer in weak],
        [None if answer.cost is None else float(answer.cost) for answer in strong],
    )


def compared(fit_on: FitData, other: FitData, seed: int) -> dict[str, float]:
    """APGR on other tasks: of the learned order, the longest text first, a table by kind, and the oracle."""
    model, _ = trained(fit_on, seed)
    orders = {
        "learned": scores_of(LearnedPolicy("weak", "strong", 0.0, model), other),
        "longest first": [float(len(text)) for text in other.texts],
        "table by kind": kind_scores(other, fit_on),
        "oracle": oracle_order(other.weak, other.strong),
    }
    return {name: apgr(order, other.weak, other.strong) or 0.0 for name, order in orders.items()}


def over_splits(data: FitData, splits: int) -> dict[str, list[float]]:
    """Many seeded halves."""
    parts = [halves(len(data), seed) for seed in range(splits)]
    found = [compared(data.part(one), data.part(two), seed) for seed, (one, two) in enumerate(parts)]
    return {name: [split[name] for split in found] for name in found[0]}


def over_subjects(data: FitData, splits: int) -> dict[str, list[float]]:
    """Halves of the subjects: what is judged are subjects that were not seen."""
    kinds, found = sorted({kind or "" for kind in data.kinds}), []
    for seed in range(splits):
        seen = set(random.Random(seed).sample(kinds, len(kinds) // 2))
        places = [[i for i, kind in enumerate(data.kinds) if (kind in seen) is there] for there in (True, False)]
        found.append(compared(data.part(places[0]), data.part(places[1]), seed))
    return {name: [split[name] for split in found] for name in found[0]}


def show(title: str, found: dict[str, list[float]]) -> None:
    """Means and spreads."""
    print(f"  {title}")
    for name, values in found.items():
        spread = f"deviation {stdev(values):.4f}, {min(values):.3f} to {max(values):.3f}"
        print(f"    {name:<16} APGR {fmean(values):.4f}  ({spread})")


def checked(name: str, data: FitData, target: Target, splits: int) -> bool:
    """Prints what there is to say of one set of tasks; whether its target is reached."""
    print(f"{name}: {len(data):,} tasks", flush=True)
    found = over_splits(data, splits)
    show(f"{splits} random halves to fit on, the other ones to judge on", found)
    own, bound = fmean(found["learned"]), target.apgr
    if bound is None:
        bound = fmean(found["table by kind"]) + ABOVE_TABLE
        above = [one - two for one, two in zip(found["learned"], found["table by kind"], strict=True)]
        print(f"    above the table on the same halves by {fmean(above):+.4f} ({min(above):+.3f} to {max(above):+.3f})")
    reached = own >= bound
    print(f"    target {bound:.4f}: {own:.4f}  {'PASS' if reached else 'MISSED'}", flush=True)
    one, two = (data.part(places) for places in halves(len(data), 0))
    policy = fit_policy(one, weak="weak", strong="strong", wish=Wish(keep=0.8))
    print("  the first of them, interval over tasks, the threshold for 80 % of the lead:")
    print(f"    {judgement(policy, judge(policy, two, one))}", flush=True)
    if len(set(data.kinds)) > 1:
        show(
            "subjects never seen: fitted on half of the subjects, judged on the others",
            over_subjects(data, SUBJECT_SPLITS),
        )
    return reached


def write(name: str, data: FitData, target: Target) -> None:
    """Makes the example's policy anew, of half of the tasks: none of those in the example's excerpt."""
    excerpt = {task.input for task in read_experiment(EXAMPLES / target.file).tasks}
    places = [place for place, text in enumerate(data.texts) if text not in excerpt]
    drawn = sorted(random.Random(0).sample(places, len(data) // 2))
    about = {
        "experiment": name,
        "data": "lm-sys/RouteLLM (Apache-2.0): half of the questions, none of the excerpt's",
        "tasks_of_the_run": len(data),
    }
    wish = Wish(keep=0.8)
    policy = fit_policy(data.part(drawn), weak="weak", strong="strong", wish=wish, about=about)
    policy = policy.save(EXAMPLES / f"{name}.policy.json")
    print(f"{policy.file}: {len(policy.text()):,} bytes")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing_learned", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="where RouteLLM's evaluation files are")
    parser.add_argument("--splits", type=int, help="random halves (default: 100 of GSM8K, 20 of MMLU)")
    parser.add_argument("--write", action="store_true", help="make the examples' policies anew, nothing else")
    parser.add_argument("--only", choices=list(TARGETS), help="one of the sets")
    options = parser.parse_args(arguments)
    missed = 0
    for name, target in TARGETS.items():
        if options.only not in (None, name):
            continue
        data = data_of(options.data, target.pattern)
        if data is None:
            print(f"{name}: no {target.pattern} below {options.data}: MISSED")
            missed += 1
            continue
        answers = fit_data(read_experiment(EXAMPLES / target.file, data=data))
        if options.write:
            write(name, answers, target)
        else:
            missed += not checked(name, answers, target, options.splits or target.splits)
    if not options.write:
        print(f"missed: {missed}" if missed else "all targets are reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
