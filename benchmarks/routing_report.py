"""The report in docs/: routing between two models on GSM8K, on the half of the questions that nothing was fitted on.

    python -m benchmarks.routing_report --data PATH [--output docs]

PATH: a folder that has `gsm8k_responses.csv` of lm-sys/RouteLLM somewhere in it (see examples/routing/SOURCE.md). Calls
nothing; needs some seconds. Writes OUTPUT/routing-report.md and its pictures in OUTPUT/images/routing; the same data
give the same bytes. A `learned` policy is fitted on one half of the questions, and so are all thresholds: for each
share of strong calls that which has this share there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from executor.experiments.experiment_file import read_experiment
from executor.experiments.fit.choice import Wish, threshold_at
from executor.experiments.fit.data import FitData, halves
from executor.experiments.fit.policy import fit_policy, scores_of
from executor.experiments.grading.graders import grade_all
from executor.experiments.recorded.arm import recorded_outcomes, request_of
from executor.experiments.recorded.longest import Longest
from executor.experiments.report.build import report_of
from executor.experiments.report.plots import cost_plot, router_plot
from executor.experiments.report.render_markdown import render_markdown
from executor.experiments.report.types import Report
from executor.experiments.types import Arm, Experiment

from .routing import EXAMPLES, data_of
from .routing_learned import fit_data

SHARES = (0.3, 0.5, 0.7)
TITLE = "Routing on GSM8K, judged on unseen questions"
ABOUT = """\
How a report looks, on real answers: those of two models to the questions of GSM8K are on file (see
[where they come from](../examples/routing/SOURCE.md)). Half of the {all:,} questions served to fit the policy `learned`
and to choose all thresholds; the figures are of the other half. `share` is that of the questions which go to the strong
model by the first half. Made by `python -m benchmarks.routing_report --data PATH`."""


def split(whole: Experiment, folder: Path) -> Experiment:
    """The experiment on the half that nothing is fitted on."""
    one, other = halves(len(whole.tasks), whole.seed)
    data = fit_data(whole)
    fit_on: FitData = data.part(one)
    policy = fit_policy(fit_on, weak="weak", strong="strong", wish=Wish(share=0.5), seed=whole.seed)
    policy.save(folder / "policy.json")
    among = ("weak", "strong")
    lengths = [Longest(among, 0).score(request_of(whole.tasks[i])) for i in one]
    orders = {"longest": lengths, "learned": scores_of(policy, fit_on)}
    keys = {"longest": {"use": "longest", "models": list(among)}, "learned": {"use": "learned", "file": "policy.json"}}
    routers = [
        Arm(f"{name}[share={share}]", "recorded", among=among,
            routing={**keys[name], "threshold": threshold_at(share, orders[name])})
        for name in orders
        for share in SHARES
    ]  # fmt: skip
    kept = [arm for arm in whole.arms if arm.name.partition("[")[0] not in orders]
    tasks = tuple(whole.tasks[i] for i in sorted(other))
    return replace(whole, name=TITLE, tasks=tasks, arms=(*kept[:2], *routers, *kept[2:]), base=folder)


def reported(whole: Experiment) -> Report:
    """The report on the unseen half."""
    with TemporaryDirectory() as folder:
        experiment = split(whole, Path(folder))
        outcomes = [outcome for arm in experiment.arms for outcome in recorded_outcomes(experiment, arm)]
        return report_of(experiment, outcomes, asyncio.run(grade_all(experiment, outcomes)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report; 2 where the data are not there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, type=Path, help="a folder with gsm8k_responses.csv somewhere in it")
    parser.add_argument("--output", default=Path("docs"), type=Path, help="default: docs")
    options = parser.parse_args(arguments)
    file = data_of(options.data, "gsm8k_responses.csv")
    if file is None:
        print(f"there is no gsm8k_responses.csv in {options.data}", file=sys.stderr)
        return 2
    whole = read_experiment(EXAMPLES / "gsm8k.toml", data=file)
    report = reported(whole)
    title, _, rest = render_markdown(report, plots="images/routing").partition("\n")
    pictures = options.output / "images" / "routing"
    pictures.mkdir(parents=True, exist_ok=True)
    for name, picture in (("cost", cost_plot(report)), ("routers", router_plot(report))):
        (pictures / f"{name}.svg").write_text(picture or "", encoding="utf-8")
    text = f"{title}\n\n{ABOUT.format(all=len(whole.tasks))}\n{rest}"
    (options.output / "routing-report.md").write_text(text, encoding="utf-8")
    print(report.conclusion)
    return 0


if __name__ == "__main__":
    sys.exit(main())
