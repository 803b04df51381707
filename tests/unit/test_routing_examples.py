"""The examples of routing, in this process: cascades beside their closed form, what they save, and the benchmark."""

import csv
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import routing
from executor.experiments.experiment_file import read_experiment
from executor.experiments.grading.graders import check_grader, grade_all
from executor.experiments.recorded.arm import expected, policy_of_arm, recorded_outcomes
from registry.tokens import estimate_text

EXAMPLES = Path(__file__).parents[2] / "examples" / "routing"
WEAK, STRONG = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
USD = {WEAK: 0.24e-6, STRONG: 24.7e-6}


@pytest.fixture(scope="module")
def rows():
    with (EXAMPLES / "gsm8k_excerpt.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def experiment():
    return read_experiment(EXAMPLES / "gsm8k.toml")


def right(row, model):
    return float(row[model] == "True")


def cost(row, model):
    return USD[model] * (estimate_text(row["prompt"]) + estimate_text(row[f"{model}_response"]))


def closed_form(rows, accuracy):
    """Mean quality and cost of a cascade: the strong answer where the checker calls the weak one wrong."""
    quality = spent = 0.0
    for row in rows:
        weak, strong = right(row, WEAK), right(row, STRONG)
        escalated = accuracy if not weak else 1 - accuracy
        quality += (1 - escalated) * weak + escalated * strong
        spent += cost(row, WEAK) + escalated * cost(row, STRONG)
    return quality / len(rows), spent / len(rows)


def cascades(experiment):
    return [arm for arm in experiment.arms if arm.name.startswith("cascade[")]


async def test_the_curve_of_cascades_agrees_with_its_closed_form(rows, experiment):
    """Simulated within 4 standard errors of it (of the draws of 50 repeats), and in expectation exactly."""
    repeats, n = 50, len(rows)
    mine = replace(experiment, repeats=repeats)
    arms = cascades(experiment)
    assert [arm.checker for arm in arms] == [0.6, 0.7, 0.8, 0.9, 1.0]
    for arm in arms:
        quality, spent = closed_form(rows, arm.checker)
        exact = list(expected(experiment, arm).values())
        assert sum(score for score, _ in exact) / n == pytest.approx(quality)
        assert sum(paid for _, paid in exact) / n == pytest.approx(spent)
        outcomes = list(recorded_outcomes(mine, arm))
        grades = await grade_all(mine, outcomes)
        spread = arm.checker * (1 - arm.checker) / repeats
        error = 4 * math.sqrt(spread * sum((right(row, STRONG) - right(row, WEAK)) ** 2 for row in rows)) / n
        dearer = 4 * math.sqrt(spread * sum(cost(row, STRONG) ** 2 for row in rows)) / n
        assert sum(grade.score for grade in grades) / len(grades) == pytest.approx(quality, abs=error + 1e-12)
        assert float(sum(one.cost for one in outcomes)) / len(outcomes) == pytest.approx(spent, abs=dearer + 1e-12)


def test_what_a_cascade_saves_at_the_quality_of_the_strong_model_alone(rows, experiment):
    """Quality and cost are linear in the checker's accuracy, so the point of equal quality is found by hand."""
    strong = sum(right(row, STRONG) for row in rows) / len(rows)
    alone = sum(cost(row, STRONG) for row in rows) / len(rows)
    (low, low_cost), (high, high_cost) = closed_form(rows, 0.6), closed_form(rows, 1.0)
    assert low < strong < high
    part = (strong - low) / (high - low)
    saved = 1 - (low_cost + part * (high_cost - low_cost)) / alone
    assert 0.4 < saved < 0.6
    arm = replace(cascades(experiment)[0], checker=0.6 + 0.4 * part)
    exact = list(expected(experiment, arm).values())
    assert sum(score for score, _ in exact) / len(rows) == pytest.approx(strong)
    assert 1 - sum(paid for _, paid in exact) / len(rows) / alone == pytest.approx(saved)


@pytest.mark.parametrize("name", ["gsm8k", "mmlu"])
def test_the_examples_can_be_run(name):
    mine = read_experiment(EXAMPLES / f"{name}.toml")
    check_grader(mine)
    for arm in mine.arms:
        policy_of_arm(mine, arm)
    assert {model.roles for model in mine.recorded.values()} == {("fast",), ("reasoning",)}
    assert len(mine.tasks) == {"gsm8k": 140, "mmlu": 320}[name]
    assert len({task.kind for task in mine.tasks}) == {"gsm8k": 1, "mmlu": 8}[name]


def test_the_benchmark_tells_what_is_missed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(routing, "SAMPLES", 200)
    (tmp_path / "evals").mkdir()
    shutil.copy(EXAMPLES / "gsm8k_excerpt.csv", tmp_path / "evals" / "gsm8k_responses.csv")
    assert routing.main(["--data", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "mmlu: no mmlu_*.csv below" in told
    assert "APGR, longest prompt first                   0.538  known 0.601  MISSED" in told
    assert "APGR, random, expected                       0.500  known 0.500  PASS" in told
    assert "it saves there" in told
