"""Routing on recorded answers: the known baselines beside ours, cascades beside their closed form, and what they save.

    python -m benchmarks.routing --data PATH

PATH: a folder that has the evaluation files of lm-sys/RouteLLM somewhere in it, `gsm8k_responses.csv` and
`mmlu_*.csv` (see examples/routing/SOURCE.md). Reads examples/routing/*.toml, calls nothing. Nothing of what it prints
depends on the machine. Ends with status 1 where a figure is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from executor.experiments.curves import Curve, curve_of, oracle_order, random_curve
from executor.experiments.experiment_file import read_experiment
from executor.experiments.recorded.arm import expected, recorded_outcomes, route_scores
from executor.experiments.types import Arm, Experiment

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "routing"
ACCURACIES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SAMPLES = 2_000
"""Samples of the bootstrap, and random orders."""
STANDARD_ERRORS = 4


@dataclass(frozen=True)
class Known:
    """What is known of a set of answers: APGR of the longest prompt first and of an oracle, to three digits, and for
    the whole set the shares that are right, in percent."""

    file: str
    pattern: str
    longest: float | None
    oracle: float | None
    weak: float | None = None
    strong: float | None = None
    either: float | None = None


KNOWN = {
    "gsm8k": Known("gsm8k.toml", "gsm8k_responses.csv", 0.601, 1.124, 63.84, 85.67, 92.87),
    "mmlu": Known("mmlu.toml", "mmlu_*.csv", 0.552, 1.218),
}
"""Computed independently from the whole GSM8K file and from 29 of the 57 MMLU subjects."""


class Told:
    """What was printed: whether all of it is as it should be."""

    def __init__(self) -> None:
        self.missed = 0

    def line(
        self, what: str, ours: float, known: float | None = None, within: float = 0.0005, form: str = ".3f"
    ) -> None:
        verdict = ""
        if known is not None:
            good = abs(ours - known) <= within
            self.missed += not good
            verdict = f"  known {known:{form}}  {'PASS' if good else 'MISSED'}"
        print(f"  {what:<44} {ours:{form}}{verdict}")


@dataclass(frozen=True)
class Answers:
    """Verdicts and costs, task by task."""

    weak: list[float]
    strong: list[float]
    weak_costs: list[float]
    strong_costs: list[float]

    @classmethod
    def of(cls, experiment: Experiment) -> Answers:
        found = {}
        for name in ("weak", "strong"):
            answers = [experiment.recorded[name].answers[task.id] for task in experiment.tasks]
            found[name] = [float(answer.score) for answer in answers]  # type: ignore[arg-type]  # all have one
            found[f"{name}_costs"] = [float(answer.cost) for answer in answers]  # type: ignore[arg-type]
        return cls(**found)

    def curve(self, scores: Sequence[float]) -> Curve:
        return curve_of(scores, self.weak, self.strong, weak_costs=self.weak_costs, strong_costs=self.strong_costs)


def baselines(told: Told, experiment: Experiment, answers: Answers, known: Known) -> None:
    """The single models, the longest prompt first, chance and an oracle."""
    longest = next(arm for arm in experiment.arms if arm.name == "longest")
    curve = answers.curve(route_scores(experiment, longest) or [])
    either = np.mean(np.maximum(answers.weak, answers.strong))
    told.line("weak alone, % right", 100 * curve.weak.quality, known.weak, 0.005, ".2f")
    told.line("strong alone, % right", 100 * curve.strong.quality, known.strong, 0.005, ".2f")
    told.line("either right, %", 100 * float(either), known.either, 0.005, ".2f")
    told.line("APGR, longest prompt first", curve.apgr or math.nan, known.longest)
    told.line("APGR, oracle", answers.curve(oracle_order(answers.weak, answers.strong)).apgr or math.nan, known.oracle)
    told.line("APGR, random, expected", random_curve(answers.weak, answers.strong).apgr or math.nan, 0.5, 1e-9)
    draws = np.random.default_rng(7).random((SAMPLES, len(answers.weak)))
    some = [answers.curve(list(draw)).apgr or math.nan for draw in draws[:200]]
    error = STANDARD_ERRORS * float(np.std(some)) / math.sqrt(len(some))
    told.line("APGR, random, mean of 200 orders", float(np.mean(some)), 0.5, error)
    for part in (0.5, 0.8, 0.95):
        told.line(
            f"CPT{100 * part:.0f}, longest prompt first, % strong calls", 100 * (curve.cpt(part) or 0), form=".1f"
        )


def cascades(told: Told, experiment: Experiment, answers: Answers) -> None:
    """Cascades by the accuracy of their checker: simulated, and by the closed form; what they save at equal quality."""
    weak, strong = np.array(answers.weak), np.array(answers.strong)
    low, high = np.array(answers.weak_costs), np.array(answers.strong_costs)
    print("  cascade: checker, % right, closed form, cost, closed form (share of the strong model alone)")
    for accuracy in ACCURACIES:
        arm = Arm("cascade", "recorded", routing={"use": "cascade", "models": ["weak", "strong"]},
                  among=("weak", "strong"), checker=accuracy)  # fmt: skip
        chance = accuracy * (1 - weak) + (1 - accuracy) * weak
        quality, cost = np.mean((1 - chance) * weak + chance * strong), np.mean(low + chance * high)
        spread = chance * (1 - chance)
        n = len(weak)
        ended = list(recorded_outcomes(experiment, arm))
        got = np.mean([outcome.recorded_score for outcome in ended])
        paid = np.mean([float(outcome.cost or 0) for outcome in ended])
        errors = (np.sqrt(np.sum(spread * (strong - weak) ** 2)) / n, np.sqrt(np.sum(spread * high**2)) / n)
        exact = list(expected(experiment, arm).values())
        good = (
            abs(got - quality) <= STANDARD_ERRORS * errors[0] + 1e-12
            and abs(paid - cost) <= STANDARD_ERRORS * errors[1] + 1e-12
            and math.isclose(np.mean([score for score, _ in exact]), quality, rel_tol=1e-9)
            and math.isclose(np.mean([spent or 0 for _, spent in exact]), cost, rel_tol=1e-9)
        )
        told.missed += not good
        print(f"    {accuracy:.1f}  {100 * got:.2f}  {100 * quality:.2f}  {paid / high.mean():.3f}  "
              f"{cost / high.mean():.3f}  {'PASS' if good else 'MISSED'}")  # fmt: skip
    saved(weak, strong, low, high)


def saved(weak: np.ndarray, strong: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """What a cascade costs that is as good as the strong model alone: quality and cost are linear in the accuracy."""
    picks = np.random.default_rng(7).integers(0, len(weak), (SAMPLES, len(weak)))
    found = [equal(weak[pick], strong[pick], low[pick], high[pick]) for pick in picks]
    accuracy, share = equal(weak, strong, low, high)
    ends = np.nanpercentile([1 - part for _, part in found], [2.5, 97.5])
    print(
        f"  as good as the strong model alone from a checker of {accuracy:.3f} on; it saves there "
        f"{100 * (1 - share):.1f} % of the cost (95 % interval {100 * ends[0]:.1f} to {100 * ends[1]:.1f} %)"
    )


def equal(weak: np.ndarray, strong: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """The accuracy of the checker from which a cascade is as good as the strong model, and its cost there, as a share
    of the strong model's."""
    ends = []
    for accuracy in (0.5, 1.0):
        chance = accuracy * (1 - weak) + (1 - accuracy) * weak
        ends.append((np.mean((1 - chance) * weak + chance * strong), np.mean(low + chance * high)))
    (at_half, cost_half), (at_one, cost_one) = ends
    part = (strong.mean() - at_half) / (at_one - at_half)
    return 0.5 + part / 2, float((cost_half + part * (cost_one - cost_half)) / high.mean())


def data_of(folder: Path, pattern: str) -> Path | None:
    """Where the files of a pattern are, below a folder: the file itself, or the folder of several."""
    found = sorted(folder.rglob(pattern))
    if not found:
        return None
    return found[0] if "*" not in pattern else found[0].parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="where RouteLLM's evaluation files are")
    options = parser.parse_args(arguments)
    told = Told()
    for name, known in KNOWN.items():
        data = data_of(options.data, known.pattern)
        if data is None:
            print(f"{name}: no {known.pattern} below {options.data}: MISSED")
            told.missed += 1
            continue
        experiment = read_experiment(EXAMPLES / known.file, data=data)
        kinds = len({task.kind for task in experiment.tasks})
        print(f"{name}: {len(experiment.tasks):,} tasks{f' of {kinds} kinds' if kinds > 1 else ''}")
        answers = Answers.of(experiment)
        other = name == "mmlu" and kinds != 29  # other subjects have other figures
        baselines(told, experiment, answers, replace(known, longest=None, oracle=None) if other else known)
        cascades(told, experiment, answers)
    print("missed: " + str(told.missed) if told.missed else "all as known")
    return 1 if told.missed else 0


if __name__ == "__main__":
    sys.exit(main())
