"""`dagwright experiment fit FOLDER`: a learned routing policy out of a run's results, and how good it is."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from registry.errors import UsageError

from .out import note, say, say_json, show
from .values import number_of

if TYPE_CHECKING:
    from executor.experiments.fit.choice import Wish
    from executor.experiments.fit.data import FitData
    from executor.experiments.fit.policy import Judged
    from executor.experiments.types import Experiment
    from registry.learned_route import LearnedPolicy

SHARE = 0.5
"""Strong calls where nothing else is wished."""


async def experiment_fit(options: argparse.Namespace) -> int:
    """Writes the policy's file; nothing is run. Exit code 0, also where nothing was learned: the sentence says so."""
    from executor.experiments.fit.data import fit_data_of
    from executor.experiments.folder import Folder

    wish, folder = wish_of(options), Folder.open(options.folder)
    experiment = folder.experiment
    data = fit_data_of(experiment, folder.outcomes(), folder.grades(), options.weak, options.strong)
    if data.left_out:
        note(f"{data.left_out:,} tasks are left out: an arm has no grade on them.")
    output = Path(options.output) if options.output else folder.path / "policy.json"
    policy, judged = await asyncio.to_thread(_fitted, options, experiment, data, wish)
    policy = policy.save(output)
    if options.json:
        from executor.experiments.fit.policy import judgement

        found = None if judged is None else judged.to_json()
        say_json(
            {
                "policy": str(output),
                "weak": policy.weak,
                "strong": policy.strong,
                "threshold": policy.threshold,
                "about": dict(policy.about),
                "judged": found,
                "conclusion": judgement(policy, judged),
            }
        )
    else:
        _told(policy, judged)
    note(f'The policy: {output}. Use it: routing = {{use="learned", file="{output}"}}')
    return 0


def wish_of(options: argparse.Namespace) -> Wish:
    """What the threshold is to do. Raises UsageError."""
    from executor.experiments.fit.choice import Wish

    given = {name: number_of(getattr(options, name), f"--{name}") for name in ("share", "keep", "worth")}
    known = {name: value for name, value in given.items() if value is not None}
    return Wish(**(known or {"share": SHARE}))


def _fitted(
    options: argparse.Namespace, experiment: Experiment, data: FitData, wish: Wish
) -> tuple[LearnedPolicy, Judged | None]:
    """The policy, and what it is worth on the tasks held back; None: none are."""
    from executor.experiments.fit.data import check_split, halves
    from executor.experiments.fit.policy import fit_policy, judge

    seed = experiment.seed if options.seed is None else _seed(options.seed)
    fit_on = data
    if not options.all:
        check_split(data)
        one, other = halves(len(data), seed)
        fit_on = data.part(one)
    about = {
        "experiment": experiment.name, "weak_arm": options.weak, "strong_arm": options.strong,
        "split": "all" if options.all else "half", "tasks_of_the_run": len(data),
    }  # fmt: skip
    policy = fit_policy(
        fit_on,
        weak=_model(experiment, options.weak, options.weak_model, "weak"),
        strong=_model(experiment, options.strong, options.strong_model, "strong"),
        wish=wish,
        seed=seed,
        about=about,
    )
    return policy, None if options.all else judge(policy, data.part(other), fit_on, seed=seed)


def _model(experiment: Experiment, arm: str, given: str | None, side: str) -> str:
    """The model or role that the policy chooses for an arm."""
    name = given or next(one for one in experiment.arms if one.name == arm).alone
    if not name:
        raise UsageError(
            f"the arm {arm!r} is not one model alone: say with --{side}-model which one the policy chooses"
        )
    return name


# What is shown


def _told(policy: LearnedPolicy, judged: Judged | None) -> None:
    from executor.experiments.fit.policy import judgement

    if judged is not None:
        for line in _table(judged):
            say(line)
        say()
    show(judgement(policy, judged))


def _table(judged: Judged) -> list[str]:
    """Orders of the tasks held back, and what the threshold comes to."""
    lines = [f"{'':<16}{'APGR':>7}  {'95 % interval':<16}learned is above it by"]
    for router in judged.routers:
        own, below = router.apgr, router.below
        apart = "" if below is None else f"{below.mean:+.3f}  ({below.low:+.3f} to {below.high:+.3f})"
        lines.append(f"{router.name:<16}{own.mean:>7.3f}  {f'{own.low:.3f} to {own.high:.3f}':<16}{apart}".rstrip())
    lines.append("")
    lines.append(f"{'':<16}{'strong':>7}  {'quality':<9}{'USD a task':<12}")
    for name, share, quality, cost in (
        ("weak alone", 0.0, judged.weak, judged.weak_cost),
        ("at threshold", judged.share, judged.quality, judged.cost),
        ("strong alone", 1.0, judged.strong, judged.strong_cost),
    ):
        price = "unknown" if cost is None else f"{cost:.3g}"
        lines.append(f"{name:<16}{share:>7.0%}  {quality:<9.3f}{price:<12}".rstrip())
    return lines


def _seed(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"--seed {value}: must be a whole number") from None
