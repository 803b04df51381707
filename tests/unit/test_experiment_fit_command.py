"""`dagwright experiment fit`, on a real folder of a run, and the policy that it writes as an arm of another one."""

import json
from pathlib import Path

import pytest

from executor.cli import main
from executor.experiments.experiment_file import read_experiment
from executor.experiments.folder import Folder
from executor.experiments.recorded.arm import policy_of_arm, recorded_outcomes, request_of, route_scores
from registry.learned_route import LearnedPolicy

EXAMPLES = Path(__file__).parents[2] / "examples" / "routing"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "gsm8k"
    assert main(["experiment", "run", str(EXAMPLES / "gsm8k.toml"), "--output", str(path), "--no-report"]) == 0
    assert main(["experiment", "grade", str(path), "--no-report"]) == 0
    return path


def fit(run, *options, arms=("weak", "strong")):
    return main(["experiment", "fit", str(run), "--weak", arms[0], "--strong", arms[1], *options])


def test_the_policy_is_written_and_what_it_is_worth_is_shown(run, capsys):
    assert fit(run) == 0
    shown = capsys.readouterr()
    policy = LearnedPolicy.from_file(run / "policy.json")
    assert (policy.weak, policy.strong) == ("weak", "strong")
    assert (policy.about["tasks"], policy.about["tasks_of_the_run"], policy.about["seed"]) == (70, 140, 7)
    assert [line.split("  ")[0] for line in shown.out.splitlines()[1:5]] == [
        "learned", "longest first", "chance", "oracle",
    ]  # fmt: skip
    assert "On 70 tasks that it was not fitted on" in shown.out
    assert f'routing = {{use="learned", file="{run}/policy.json"}}' in shown.err


def test_as_json_it_has_all_figures_and_the_same_file(run, capsys, tmp_path):
    assert fit(run, "--json", "--keep", "0.8", "--output", str(tmp_path / "p.json")) == 0
    told = json.loads(capsys.readouterr().out)
    policy = LearnedPolicy.from_file(tmp_path / "p.json")
    assert told["threshold"] == policy.threshold
    assert told["about"] == policy.about
    assert told["about"]["threshold_for"] == {"keep": 0.8}
    assert told["judged"]["tasks"] == 70
    own = told["judged"]["routers"][0]
    assert own["router"] == "learned"
    assert f"{own['apgr']['low']:.3f} to {own['apgr']['high']:.3f}" in told["conclusion"]
    before = (tmp_path / "p.json").read_bytes()
    assert fit(run, "--json", "--keep", "0.8", "--output", str(tmp_path / "p.json")) == 0
    assert (tmp_path / "p.json").read_bytes() == before


def test_fitted_on_all_tasks_only_cross_validation_tells(run, capsys, tmp_path):
    options = ("--all", "--share", "0.3", "--seed", "3", "--strong-model", "reasoning")
    assert fit(run, *options, "--output", str(tmp_path / "p.json")) == 0
    policy = LearnedPolicy.from_file(tmp_path / "p.json")
    assert (policy.about["tasks"], policy.about["seed"], policy.strong) == (140, 3, "reasoning")
    shown = capsys.readouterr().out
    assert shown.startswith("By cross-validation on the 140 tasks that it is fitted on; none were held back: ")
    assert len(shown.splitlines()) == 1


def test_a_policy_s_arm_chooses_as_the_policy_scores(tmp_path):
    experiment = read_experiment(EXAMPLES / "gsm8k.toml")
    arm = next(arm for arm in experiment.arms if arm.name == "learned")
    policy = LearnedPolicy.from_file(EXAMPLES / "gsm8k.policy.json")
    assert policy_of_arm(experiment, arm).model == policy.model
    scores = [policy.score(request_of(task)) for task in experiment.tasks]
    assert route_scores(experiment, arm) == scores
    chosen = [next(iter(outcome.models)) for outcome in recorded_outcomes(experiment, arm)]
    assert chosen == ["strong" if score >= policy.threshold else "weak" for score in scores]
    assert set(chosen) == {"weak", "strong"}


@pytest.mark.parametrize("name", ["gsm8k", "mmlu"])
def test_the_examples_policies_are_small_and_fitted_on_other_questions_than_the_excerpt(name):
    path = EXAMPLES / f"{name}.policy.json"
    policy = LearnedPolicy.from_file(path)
    assert path.stat().st_size < 300_000
    assert policy.text() == path.read_text(encoding="utf-8")
    assert policy.about["tasks"] == policy.about["tasks_of_the_run"] // 2
    assert "none of the excerpt" in policy.about["data"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--share", "2"), "share must lie between 0 and 1"),
        (("--keep", "much"), "--keep much: must be a number"),
        (("--worth", "nan"), "--worth nan: must be a number"),
        (("--seed", "x"), "--seed x: must be a whole number"),
        (("--output", "/nowhere/p.json"), "can't be written"),
    ],
)
def test_wrong_options_are_told(run, capsys, options, said):
    assert fit(run, *options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        (("weak", "large"), "there is no arm 'large' in this run: there are weak, strong,"),
        (("weak", "longest"), "say with --strong-model which one the policy chooses"),
        (("strong", "weak"), "no better than the weak one"),
    ],
)
def test_arms_that_can_t_be_learned_from_are_told(run, capsys, arms, said):
    assert fit(run, arms=arms) == 2
    assert said in capsys.readouterr().err


def test_too_few_tasks_and_missing_grades_are_told(capsys, tmp_path):
    text = (EXAMPLES / "gsm8k.toml").read_text(encoding="utf-8")
    text = text.replace("gsm8k_excerpt.csv", str(EXAMPLES / "gsm8k_excerpt.csv")).replace("seed = 7", "limit = 60")
    text = text.replace("gsm8k.policy.json", str(EXAMPLES / "gsm8k.policy.json"))
    (tmp_path / "few.toml").write_text(text, encoding="utf-8")
    folder = str(tmp_path / "run")
    assert main(["experiment", "run", str(tmp_path / "few.toml"), "--output", folder, "--no-report"]) == 0
    Folder.open(folder).put_grades([])
    assert fit(folder) == 2
    assert "no task has a grade by both weak and strong: `dagwright experiment grade` judges the run" in (
        capsys.readouterr().err
    )
    assert main(["experiment", "grade", folder, "--no-report"]) == 0
    assert fit(folder) == 2
    assert "there are 60 tasks: 100 are needed at the least" in capsys.readouterr().err
    assert fit(folder, "--all") == 0
