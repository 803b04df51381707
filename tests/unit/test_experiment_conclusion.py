"""The closing sentence: its rule, from figures; and recomputed from report.csv by code of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from executor.experiments.report.build import MARGIN, report_of
from executor.experiments.report.conclusion import conclusion
from executor.experiments.report.render_csv import render_csv
from executor.experiments.report.types import Report
from tests.support.experiment_results import Made, Results, recorded, recorded_results, results
from tests.support.sentence import bootstrapped, column, expected_sentence, read

WEAK, STRONG = Made(0.62, 0.0005, "fixed:small"), Made(0.86, 0.01, "fixed:large")


def report(made: Results, **more: Any) -> Report:
    return report_of(made.experiment, made.outcomes, made.grades, **more)


# The rule


def test_a_cheaper_arm_that_does_as_well_is_to_be_used() -> None:
    arms = {"weak": WEAK, "strong": STRONG, "cascade": Made(0.855, 0.004, "cascade")}
    told = report(results(arms, tasks=2_000, alike=6)).conclusion
    assert told.startswith("Use cascade: quality ")
    assert "of strong, the best; no difference is shown" in told
    assert "within the margin of 2 points" in told
    assert re.search(r"a task, (59|60|61) % less than strong \[\d\d, \d\d\]\.$", told)


def test_an_arm_that_is_better_and_cheaper() -> None:
    arms = {"weak": WEAK, "strong": STRONG, "cascade": Made(0.95, 0.004, "cascade")}
    told = report(results(arms, tasks=800)).conclusion
    assert told.startswith("Use cascade, the best: quality ")
    assert re.search(r"cascade is [\d.]+ points better than strong \(95 %: \+\d", told)
    assert re.search(r"it costs (59|60|61) % less than strong", told)
    assert "No cheaper arm does as well: the nearest, weak, is" in told


def test_few_tasks_decide_nothing_and_it_says_how_many_would() -> None:
    made = results({"weak": WEAK, "strong": STRONG, "cascade": Made(0.84, 0.004, "cascade")}, tasks=100, seed=4)
    told = report(made).conclusion
    assert told.startswith("With 100 tasks it can't be said whether a cheaper arm does as well as strong")
    assert "no difference in quality is shown" in told
    assert "That is not to say that there is none" in told
    assert re.search(r"about [\d,]+ tasks would tell", told)
    assert told.endswith("Until then: strong where quality counts, cascade where cost does.")


def test_no_arm_is_cheaper_than_the_best() -> None:
    told = report(results({"a": Made(0.9, 0.001), "b": Made(0.6, 0.01)}, tasks=300)).conclusion
    assert told.startswith("Use a, the best")
    assert re.search(r"no arm costs less: (89|90|91) % less than b \[\d\d, \d\d\]", told)
    assert "is not shown" not in told
    alike = report(results({"a": Made(0.8, 0.001), "b": Made(0.8, 0.01)}, tasks=300, seed=2)).conclusion
    assert alike.startswith(("Use a, the best", "Use a: quality", "With 300 tasks"))
    assert "is shown" in alike or "is not shown" in alike


def test_without_costs_it_is_about_quality_alone() -> None:
    told = report(results({"a": Made(0.7, None), "b": Made(0.9, None)}, tasks=300)).conclusion
    assert told.startswith("No costs are known, so this is about quality alone. Use b")
    close = report(results({"a": Made(0.7, None), "b": Made(0.72, None)}, tasks=60)).conclusion
    assert "No difference in quality is shown between" in close
    assert "Use" not in close


def test_a_cost_that_is_not_wholly_known_is_no_cost_to_save() -> None:
    made = results({"weak": WEAK, "strong": STRONG, "free": Made(0.86, 0.0001)}, tasks=400, alike=4)
    outcomes = tuple(
        replace(one, cost=None) if one.cell.arm == "free" and one.cell.task == "t0007" else one for one in made.outcomes
    )
    found = report(replace(made, outcomes=outcomes))
    assert not found.conclusion.startswith("Use free")
    assert any("A part of the cost is not known (free 1 of 400 cells)" in note for note in found.notes)
    assert not found.arm("free").pareto


def test_one_arm_or_none_is_nothing_to_compare() -> None:
    told = report(results({"only": STRONG}, tasks=30)).conclusion
    assert re.fullmatch(
        r"There is one arm, only \(quality [\d.]+ % \[[\d., ]+\]\): there is nothing to compare it with\.", told
    )
    made = results({"a": WEAK, "b": STRONG}, tasks=30)
    assert report(replace(made, grades=())).conclusion == "Nothing has a score yet: there is nothing to conclude."
    half = replace(made, grades=tuple(grade for grade in made.grades if grade.cell.arm == "a"))
    assert report(half).conclusion.startswith("Only one arm has scores, a")


def test_an_unfinished_run_says_so() -> None:
    made = results({"a": WEAK, "b": STRONG}, tasks=200)
    told = report(replace(made, outcomes=made.outcomes[:-50])).conclusion
    assert told.startswith("So far, with 350 of 400 cells ended: ")


def test_a_simulated_checker_is_told() -> None:
    experiment = recorded(600)
    told = report(recorded_results(experiment)).conclusion
    assert "Use cascade" not in told
    assert re.search(
        r"If a checker were right 90 % of the time and cost nothing, cascade\[checker=0.9\] would reach", told
    )
    alone = replace(experiment, arms=tuple(arm for arm in experiment.arms if arm.checker is not None))
    told = report(recorded_results(alone)).conclusion
    assert told.startswith("Use cascade[checker=0.9]")
    assert "supposes a checker that is right 90 % of the time" in told
    one_real = replace(experiment, arms=tuple(arm for arm in experiment.arms if arm.checker or arm.name == "strong"))
    told = report(recorded_results(one_real)).conclusion
    assert told.startswith("Of the arms without a simulated checker there is one, strong")
    assert "If a checker were right 90 %" in told


def test_the_margin_decides() -> None:
    arms = {"weak": WEAK, "strong": STRONG, "cascade": Made(0.83, 0.004, "cascade")}
    made = results(arms, tasks=2_000, alike=2)
    assert not report(made).conclusion.startswith("Use cascade")
    assert report(made, margin=0.1).conclusion.startswith("Use cascade")


def test_it_depends_on_the_figures_alone() -> None:
    found = report(results({"a": WEAK, "b": STRONG}, tasks=100))
    assert conclusion(replace(found, notes=(), conclusion="", kinds={})) == found.conclusion


@pytest.mark.parametrize("seed", range(20))
def test_alike_arms_are_never_told_apart_without_its_being_shown(seed: int) -> None:
    made = results({"a": Made(0.8, 0.001), "b": Made(0.8, 0.002), "c": Made(0.8, 0.003)}, tasks=100, seed=seed)
    found = report(made)
    assert found.best is not None
    shown = [one for one in found.best.differences if one.p_corrected < 0.05]
    if not shown:
        assert " shown" in found.conclusion


# From the CSV, by other means


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("rate", [0.855, 0.95])
def test_the_sentence_is_what_the_csv_says(rate: float, repeats: int) -> None:
    arms = {"weak": WEAK, "strong": STRONG, "cascade": Made(rate, 0.004, "cascade")}
    made = results(arms, tasks=1_500, repeats=repeats, alike=6, reference="strong")
    told = report(made).conclusion
    expected = expected_sentence(render_csv(made.experiment, made.outcomes, made.grades), "strong", MARGIN)
    assert re.match(r"Use ([\w]+)[:,]", told)[1] == expected["chosen"] == "cascade"  # type: ignore[index]
    assert float(re.search(r"quality ([\d.]+) %", told)[1]) == pytest.approx(expected["quality"], abs=0.051)  # type: ignore[index]
    saved, low, high = map(float, re.search(r"(\d+) % less than strong \[(\d+), (\d+)\]", told).groups())  # type: ignore[union-attr]
    assert saved == pytest.approx(expected["saved"], abs=0.51)
    assert (low, high) == pytest.approx(expected["saved_interval"], abs=1.01)
    if expected["best"] != "cascade":
        jointly = re.search(r"95 % jointly for 2 comparisons: ([+-][\d.]+) to ([+-][\d.]+)", told)
        assert jointly is not None
        ends = [100 * end for end in expected["interval"]["cascade"]]
        assert tuple(map(float, jointly.groups())) == pytest.approx(ends, abs=0.051)


def test_of_recorded_answers_too() -> None:
    made = recorded_results(replace(recorded(800), reference="strong"))
    told = report(made).conclusion
    text = render_csv(made.experiment, made.outcomes, made.grades)
    expected = expected_sentence(text, "strong", MARGIN)
    assert expected["best"] == expected["chosen"] == "strong"
    assert f"{expected['quality']:.1f} %" in told
    assert re.match(r"Use strong, the best: |With 800 tasks .* does as well as strong, the best ", told)
    found = re.search(r"If a checker were right 90 % .* for (\d+) % less than strong \[(\d+), (\d+)\]", told)
    assert found is not None
    arms = read(text)
    cascade, strong = (column(arms[name], "cost") for name in ("cascade[checker=0.9]", "strong"))
    assert float(found[1]) == pytest.approx(100 * (1 - cascade.mean() / strong.mean()), abs=0.51)
    assert (float(found[2]), float(found[3])) == pytest.approx(bootstrapped(cascade, strong), abs=1.01)
