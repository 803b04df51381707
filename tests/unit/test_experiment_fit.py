"""Fitting a learned policy: a rule that was planted is found, noise is called noise, and nothing is peeked at."""

import json
import random
import warnings
from dataclasses import replace
from decimal import Decimal

import pytest

from executor.experiments.curves import apgr
from executor.experiments.fit.choice import ALWAYS, NEVER, Wish, folds, threshold_at, threshold_for
from executor.experiments.fit.data import FitData, check_data, check_split, fit_data_of, halves
from executor.experiments.fit.model import MOST_WORDS, Seen, Space, fitted, gains
from executor.experiments.fit.policy import fit_policy, judge, judgement, kind_scores, scores_of, trained
from executor.experiments.types import Arm, Cell, Experiment, Grade, GraderSpec, Outcome, Task
from registry.errors import ConfigError, UsageError
from registry.learned_route import LearnedPolicy

WORDS = "the a of tom anna pays takes gives finds red green box ball train house two seven ten every day week"
FILLER = WORDS.split()


def tasks(n, *, seed=0, rule=True, kinds=("plain",)):
    """Tasks of random words. By the rule the weak model fails on most of those with `prove` or of the kind `hard`."""
    draw = random.Random(seed)
    texts, kind_of, weak, strong = [], [], [], []
    for _ in range(n):
        words = draw.choices(FILLER, k=draw.randint(5, 30))
        hard = draw.random() < 0.4
        kind = draw.choice(kinds)
        if hard:
            words.insert(draw.randrange(len(words)), "prove")
        texts.append(" ".join(words) + ".")
        kind_of.append(kind)
        fails = (hard or kind == "hard") if rule else draw.random() < 0.4
        weak.append(float(draw.random() < (0.2 if fails else 0.85)))
        strong.append(float(draw.random() < 0.88))
    return FitData(texts, kind_of, weak, strong, [0.001] * n, [0.021] * n)


def fit(data, **fields):
    return fit_policy(data, weak="small", strong="large", wish=fields.pop("wish", Wish(share=0.4)), **fields)


def split(data, seed=0):
    return [data.part(places) for places in halves(len(data), seed)]


@pytest.fixture(scope="module")
def planted():
    one, two = split(tasks(600))
    return one, two, fit(one)


def test_a_planted_rule_is_found(planted):
    one, two, policy = planted
    found = judge(policy, two, one)
    rule = apgr([float("prove" in text) for text in two.texts], two.weak, two.strong)
    assert found.learned.apgr.mean > rule - 0.05
    assert found.learned.apgr.low > 0.6
    weak, strong = policy.model.words["prove"][1:]
    assert weak < 0
    assert weak < strong
    assert judgement(policy, found).startswith("On 300 tasks that it was not fitted on: ")
    assert "better than the longest text first" in judgement(policy, found)


def test_a_judgement_s_figures_are_those_of_the_policy_itself(planted):
    one, two, policy = planted
    found, scores = judge(policy, two, one), scores_of(policy, two)
    strong = [score >= policy.threshold for score in scores]
    assert found.share == sum(strong) / len(two)
    quality = [b if there else a for a, b, there in zip(two.weak, two.strong, strong, strict=True)]
    assert found.quality == pytest.approx(sum(quality) / len(two))
    assert found.cost == pytest.approx(0.001 + 0.02 * found.share)
    assert found.learned.apgr.mean == pytest.approx(apgr(scores, two.weak, two.strong))
    assert json.loads(json.dumps(found.to_json()))["at_threshold"]["recovered"] == found.recovered
    for router in found.routers:
        assert router.apgr.low <= router.apgr.mean <= router.apgr.high
        if router.below is not None:
            assert router.below.mean == pytest.approx(found.learned.apgr.mean - router.apgr.mean)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_noise_the_judgement_says_that_nothing_was_learned(seed):
    one, two = split(tasks(400, seed=seed, rule=False))
    policy = fit(one, seed=seed)
    found = judge(policy, two, one, seed=seed)
    assert found.learned.apgr.low <= 0.5 <= found.learned.apgr.high
    assert "nothing was learned that can be told from chance" in judgement(policy, found)


def test_the_results_of_the_tasks_held_back_change_nothing_in_the_file():
    data = tasks(300)
    one, two = halves(len(data), 5)
    weak, strong = list(data.weak), list(data.strong)
    for place, source in zip(two, random.Random(9).sample(two, len(two)), strict=True):
        weak[place], strong[place] = data.strong[source], data.weak[source]
    other = replace(data, weak=weak, strong=strong)
    assert other.part(two) != data.part(two)
    assert fit(other.part(one), seed=5).text() == fit(data.part(one), seed=5).text()


def test_the_same_tasks_and_seed_give_the_same_file():
    data = tasks(120)
    assert fit(data, seed=3).text() == fit(data, seed=3).text()
    assert fit(data, seed=3).about["seed"] == 3


def test_a_fit_scores_as_the_policy_does_at_run_time():
    data = tasks(200, kinds=("plain", "hard"))
    one, two = split(data)
    seen = Seen.of(one)
    space = Space(seen)
    matrix = space.matrix(seen)
    policy = LearnedPolicy("a", "b", 0.0, fitted(space, matrix, one.weak, one.strong, 0.3))
    exact = gains(matrix, one.weak, one.strong, 0.3, space.matrix(Seen.of(two)))
    assert scores_of(policy, two) == pytest.approx(exact, abs=2e-3)  # weights have four digits in the file
    assert max(exact) - min(exact) > 0.1


def test_kinds_count_and_the_table_by_kind_is_the_mean_gain_of_each():
    one, two = split(tasks(500, kinds=("plain", "hard")))
    policy = fit(one)
    assert set(policy.model.kinds) == {"plain", "hard"}
    names = [router.name for router in judge(policy, two, one).routers]
    assert names == ["learned", "longest first", "table by kind", "chance", "oracle"]
    table = kind_scores(FitData("abc", ["x", "y", "new"], [0] * 3, [0] * 3), FitData("ab", ["x", "y"], [0, 1], [1, 1]))
    assert table == [1.0, 0.0, 0.5]


def test_scores_between_0_and_1_are_learned_from_in_part():
    data = tasks(300)
    soft = replace(data, weak=[0.25 + value / 2 for value in data.weak])
    model, _ = trained(soft)
    weak, _ = model.right("tom pays the box")
    assert 0.5 < weak < 0.8
    assert model.right("prove the box")[0] < weak


def test_a_model_that_is_always_right_needs_no_weights():
    data = replace(tasks(120), strong=[1.0] * 120)
    policy = fit(data)
    assert policy.model.right("anything")[1] == pytest.approx(1, abs=0.01)
    assert all(row[2] == 0 for row in policy.model.words.values())


def test_the_words_of_a_file_are_bounded():
    data = tasks(100)
    many = [f"{text} {' '.join(f'w{(i * 97 + j) % 6000}' for j in range(200))}" for i, text in enumerate(data.texts)]
    policy = fit(replace(data, texts=many))
    assert len(policy.model.words) == MOST_WORDS
    assert len(policy.text()) < 300_000


def test_folds_hold_each_task_once_and_each_result_about_equally_often():
    data = tasks(203)
    parts = folds(data, 1)
    assert sorted(place for part in parts for place in part) == list(range(203))
    assert len({len(part) for part in parts}) <= 2
    gaps = [sum(data.strong[i] - data.weak[i] for i in part) for part in parts]
    assert max(gaps) - min(gaps) <= 3
    assert folds(data, 2) != parts


def test_each_task_is_scored_by_fits_that_have_not_seen_it():
    """Noise, with words enough to remember each task by: only what a fit has seen is ordered better than by chance."""
    data, draw = tasks(300, rule=False), random.Random(2)
    data = replace(data, texts=[" ".join(f"w{draw.randrange(1000)}" for _ in range(40)) for _ in data.texts])
    remembered, best = trained(data)
    seen = scores_of(LearnedPolicy("a", "b", 0.0, remembered), data)
    assert apgr(seen, data.weak, data.strong) > 0.9
    assert 0.3 < max(best.apgr.values()) < 0.7
    assert apgr(best.scores, data.weak, data.strong) == max(best.apgr.values())


# The threshold


def test_the_threshold_for_a_share_is_reached_by_that_share():
    scores = [random.Random(1).random() for _ in range(1)] + [i / 100 for i in range(99)]
    for share in (0.01, 0.3, 0.5, 0.99):
        reached = sum(score >= threshold_at(share, scores) for score in scores)
        assert reached == round(share * 100)
    assert threshold_at(0, scores) == NEVER
    assert threshold_at(1, scores) == ALWAYS
    assert threshold_at(0.5, [0.2] * 4) == ALWAYS
    assert sum(score >= threshold_at(0.25, [0.3, 0.2, 0.2, 0.1]) for score in [0.3, 0.2, 0.2, 0.1]) == 1
    assert sum(score >= threshold_at(0.5, [0.3, 0.2, 0.2, 0.1]) for score in [0.3, 0.2, 0.2, 0.1]) == 3


def test_the_threshold_that_keeps_a_part_of_the_lead_keeps_it():
    data = tasks(400)
    scores = [float("prove" in text) + place / 1e6 for place, text in enumerate(data.texts)]
    for part in (0.5, 0.8, 0.95, 1.0):
        threshold = threshold_for(Wish(keep=part), scores, data)
        rows = zip(scores, data.weak, data.strong, strict=True)
        quality = sum(b if score >= threshold else a for score, a, b in rows) / 400
        assert (quality - sum(data.weak) / 400) / data.gap >= part - 1e-9


def test_the_threshold_by_worth_is_the_price_of_a_gain():
    data = tasks(60)
    assert threshold_for(Wish(worth=0.1), [0.0] * 60, data) == pytest.approx(0.2)  # 0.02 more a task
    assert threshold_for(Wish(worth=0.001), [0.0] * 60, data) == NEVER
    with pytest.raises(ConfigError, match="not known for all tasks"):
        threshold_for(Wish(worth=1), [0.0] * 60, replace(data, strong_costs=[None] * 60))
    with pytest.raises(ConfigError, match="does not cost more"):
        threshold_for(Wish(worth=1), [0.0] * 60, replace(data, strong_costs=data.weak_costs))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "one of share, keep and worth"),
        ({"share": 0.5, "keep": 0.5}, "one of"),
        ({"share": 1.5}, "share must lie between 0 and 1"),
        ({"keep": -0.1}, "keep must lie"),
        ({"worth": 0}, "worth must be an amount"),
        ({"worth": float("inf")}, "worth must be an amount"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(given, said):
    with pytest.raises(UsageError, match=said):
        Wish(**given)


# What is fitted on


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (tasks(49), "there are 49 tasks to fit on: 50 are needed"),
        (replace(tasks(60), strong=tasks(60).weak), "the same score on each"),
        (replace(tasks(60), weak=tasks(60).strong, strong=tasks(60).weak), "no better than the weak one"),
    ],
)
def test_where_nothing_can_be_learned_it_says_so(data, said):
    with pytest.raises(ConfigError, match=said):
        fit(data)


def test_too_few_tasks_for_two_halves_are_told_with_the_way_out():
    with pytest.raises(ConfigError, match="--all fits on all of them"):
        check_split(tasks(99))
    check_split(tasks(100))
    check_data(tasks(100))


def test_halves_are_drawn_by_the_seed_and_share_nothing():
    one, two = halves(11, 4)
    assert sorted(one + two) == list(range(11))
    assert (len(one), len(two)) == (5, 6)
    assert halves(11, 4) == (one, two)
    assert halves(11, 5) != (one, two)


def run(arms=("weak", "strong"), n=3):
    many = tuple(Task(f"t{i}", f"text {i}", metadata={"kind": "k"} if i else {}) for i in range(n))
    return Experiment("x", many, tuple(Arm(name, "recorded", among=(name,)) for name in arms), GraderSpec("recorded"))


def results(scores, repeats=1):
    cells = [(Cell(arm, f"t{i}", r), score) for (arm, i, r), score in scores.items()]
    outcomes = [Outcome(cell, "completed", cost=Decimal("0.01") * cell.repeat) for cell, _ in cells]
    return outcomes, [Grade(cell, score) for cell, score in cells]


def test_the_tasks_of_a_run_are_those_that_both_arms_have_a_grade_on():
    scores = {
        (arm, i, r): float(arm == "strong" and r == 1) for arm in ("weak", "strong") for i in range(3) for r in (1, 2)
    }
    scores["weak", 2, 2] = None
    data = fit_data_of(run(), *results(scores), "weak", "strong")
    assert list(data.texts) == ["text 0", "text 1"]
    assert list(data.kinds) == [None, "k"]
    assert (list(data.weak), list(data.strong)) == ([0, 0], [0.5, 0.5])
    assert list(data.strong_costs) == [pytest.approx(0.015)] * 2
    assert data.left_out == 1


def test_arms_that_are_not_there_and_runs_without_grades_are_told():
    with pytest.raises(UsageError, match="no arm 'huge' in this run: there are weak, strong"):
        fit_data_of(run(), [], [], "weak", "huge")
    with pytest.raises(UsageError, match="are both 'weak'"):
        fit_data_of(run(), [], [], "weak", "weak")
    with pytest.raises(ConfigError, match="experiment grade"):
        fit_data_of(run(), [], [], "weak", "strong")


def test_the_model_of_an_arm_is_known_where_it_is_one_alone():
    arms = (
        Arm("single", "recorded", among=("m",)),
        Arm("routed", "recorded", among=("m", "n"), routing="hint"),
        Arm("text", options={"routing": "fixed:large"}),
        Arm("table", routing={"use": "fixed", "model": "fast"}),
        Arm("job", options={"routing": "hint"}),
    )
    assert [arm.alone for arm in arms] == ["m", None, "large", "fast", None]


def test_a_fit_that_does_not_converge_is_no_warning():
    data = tasks(60)
    seen = Seen.of(data)
    space = Space(seen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(space, space.matrix(seen), data.weak, data.strong, 1e6)
