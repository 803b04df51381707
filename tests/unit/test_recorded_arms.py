"""Arms of recorded answers: single models, policies, cascades with a simulated checker; baselines."""

import math
from decimal import Decimal

import pytest

from executor.experiments.curves import curve_of
from executor.experiments.recorded.arm import (
    expected,
    models_of,
    policy_of_arm,
    recorded_outcomes,
    request_of,
    route_scores,
)
from executor.experiments.recorded.draws import uniform
from executor.experiments.recorded.longest import Longest
from executor.experiments.report.baselines import Results, baselines_of
from executor.experiments.types import Arm, Cell, Experiment, GraderSpec, Outcome, RecordedAnswer, RecordedModel, Task
from registry.errors import ConfigError, UsageError

WEAK, STRONG = Decimal("0.001"), Decimal("0.02")
TEXTS = ["a" * 10, "b" * 30, "c" * 20, "d" * 40]


def experiment(weak=(1, 0, 1, 0), strong=(1, 1, 0, 1), arms=(), **fields):
    tasks = tuple(Task(f"t{i}", text, metadata={"kind": "ab"[i % 2]}) for i, text in enumerate(TEXTS * 500))
    recorded = {
        name: RecordedModel(
            name,
            {
                task.id: RecordedAnswer(f"{name} of {task.id}", float(scores[i % 4]), cost, 2.0)
                for i, task in enumerate(tasks)
            },
        )
        for name, scores, cost in (("weak", weak, WEAK), ("strong", strong, STRONG))
    }
    tasks = tasks[: fields.pop("n", 4)]
    return Experiment("x", tasks, tuple(arms), GraderSpec("recorded"), recorded=recorded, **fields)


def arm(routing=None, among=("weak", "strong"), **fields):
    return Arm("arm", "recorded", routing=routing, among=among, **fields)


def outcomes(arm, **fields):
    return list(recorded_outcomes(experiment(**fields), arm))


def test_a_single_model_gives_its_answers_as_they_are_on_file():
    got = outcomes(arm(among=("strong",)), repeats=2)
    assert [outcome.cell for outcome in got] == [Cell("arm", f"t{i}", repeat) for repeat in (1, 2) for i in range(4)]
    assert got[2] == Outcome(
        Cell("arm", "t2", 1), "completed", "strong of t2", cost=STRONG, latency=2.0, steps=1, models={"strong": 1},
        recorded_score=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("routing", "chosen"),
    [
        ("fixed:strong", ["strong"] * 4),
        ("fixed:fast", ["weak"] * 4),
        ("fixed:reasoning", ["strong"] * 4),
        ({"use": "table", "models": {"a": "weak"}, "default": "strong"}, ["weak", "strong"] * 2),
        ({"use": "longest", "models": ["weak", "strong"], "threshold": 30}, ["weak", "strong"] * 2),
        ({"use": "longest", "threshold": 30.5}, ["weak"] * 3 + ["strong"]),
    ],
)
def test_a_policy_chooses_by_text_and_kind(routing, chosen):
    got = outcomes(arm(routing))
    assert [dict(outcome.models) for outcome in got] == [{name: 1} for name in chosen]
    assert [outcome.answer.split()[0] for outcome in got] == chosen
    assert {outcome.escalated for outcome in got} == {0}


def test_the_scores_of_a_policy_order_tasks():
    longest = arm({"use": "longest", "threshold": 1})
    assert route_scores(experiment(), longest) == [10, 30, 20, 40]
    assert route_scores(experiment(), arm("fixed:weak")) is None
    assert route_scores(experiment(), arm(among=("weak",))) is None
    choice = policy_of_arm(experiment(), longest).choose(
        request_of(experiment().tasks[0]), models_of(experiment(), longest)
    )
    assert (choice.model, choice.score) == ("strong", 10)


def test_models_on_file_can_not_be_called():
    llm = models_of(experiment(), arm("fixed:weak")).get("weak")
    with pytest.raises(UsageError, match="'weak' stands for answers on file"):
        llm.prepare(None)


async def test_a_call_of_a_model_on_file_says_what_it_is():
    llm = models_of(experiment(), arm("fixed:weak")).get("weak")
    with pytest.raises(UsageError, match="can't be called"):
        await llm.chat([])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (arm(), "arm 'arm' needs `routing`"),
        (arm("cascade"), "nothing to escalate by on recorded answers: give `checker = 0.9`"),
        (arm("fixed:weak", checker=0.9), "`checker` is for routing that escalates"),
        (arm(among=("weak",), checker=0.9), "`checker` is for routing that escalates"),
        (arm("fixed:best"), "arm 'arm': the routing policy names 'best'"),
        (arm({"use": "longest", "models": ["weak", "big"], "threshold": 1}), "names 'big'"),
        (arm({"use": "longest"}), "threshold = None: must be a number of characters"),
        (arm({"use": "longest", "models": ["weak"], "threshold": 1}), "must be the weak and the strong one"),
        (arm({"use": "longest", "threshold": 1, "x": 1}), "has no 'x'"),
        (arm("fixed:weak", among=("weak", "other")), "no answers of 'other' are recorded"),
        (arm("fixed:weak", among=()), "names no recorded model"),
    ],
)
def test_an_arm_that_can_not_be_is_told(wrong, told):
    with pytest.raises(ConfigError, match=told):
        list(recorded_outcomes(experiment(), wrong))


def test_a_checker_without_verdicts_is_told():
    bare = experiment()
    answers = {name: RecordedAnswer("x") for name in bare.recorded["weak"].answers}
    bare.recorded["weak"] = RecordedModel("weak", answers)
    with pytest.raises(ConfigError, match="no verdict on the answer of 'weak' to the task 't0'"):
        list(recorded_outcomes(bare, arm("cascade", checker=0.9)))


# Cascades


def totals(got):
    n = len(got)
    return (
        sum(outcome.recorded_score for outcome in got) / n,
        float(sum(outcome.cost for outcome in got)) / n,
        sum(outcome.escalated for outcome in got) / n,
    )


def test_a_perfect_checker_keeps_right_answers_and_escalates_wrong_ones():
    got = outcomes(arm("cascade", checker=1.0))
    assert [outcome.escalated for outcome in got] == [0, 1, 0, 1]
    assert [outcome.recorded_score for outcome in got] == [1, 1, 1, 1]
    assert [outcome.cost for outcome in got] == [WEAK, WEAK + STRONG, WEAK, WEAK + STRONG]
    assert [outcome.latency for outcome in got] == [2, 4, 2, 4]
    worst = outcomes(arm("cascade", checker=0.0))
    assert [outcome.escalated for outcome in worst] == [1, 0, 1, 0]


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.6, 0.75, 0.9, 1.0])
def test_a_cascade_agrees_with_what_its_checker_makes_of_it(accuracy):
    """Closed form: a task costs the weak answer, and the strong one where the checker says wrong, with the chance
    e = a (1 - w) + (1 - a) w; its quality is (1 - e) w + e s. Its simulation is within 4 standard errors of that."""
    weak, strong, n = [1, 0, 1, 0], [1, 1, 0, 1], 2_000
    chances = [accuracy * (1 - w) + (1 - accuracy) * w for w in weak]
    quality = sum((1 - e) * w + e * s for e, w, s in zip(chances, weak, strong, strict=True)) / 4
    escalated = sum(chances) / 4
    cost = float(WEAK) + escalated * float(STRONG)
    spread = 4 * math.sqrt(sum(e * (1 - e) for e in chances) / 4 / n)
    cascade = arm("cascade", checker=accuracy)
    got = totals(outcomes(cascade, n=n))
    assert got[0] == pytest.approx(quality, abs=spread + 1e-12)
    assert got[1] == pytest.approx(cost, abs=float(STRONG) * spread + 1e-12)
    assert got[2] == pytest.approx(escalated, abs=spread + 1e-12)
    exact = expected(experiment(n=n), cascade)
    assert sum(score for score, _ in exact.values()) / n == pytest.approx(quality)
    assert sum(spent for _, spent in exact.values()) / n == pytest.approx(cost)


@pytest.mark.parametrize("accuracy", [0.3, 0.8, 1.0])
def test_three_models_and_their_confidence_agree_with_what_is_expected(accuracy):
    """The first is asked how sure it is, too: below the threshold it is escalated whatever the checker says."""
    n = 2_000
    mine = experiment(n=n)
    for name, scores, cost, sure in (
        ("weak", (1, 0, 0.5, 0), 1, (0.9, 0.9, 0.2, None)),
        ("best", (1, 1, 1, 0), 50, (None,)),
    ):
        mine.recorded[name] = RecordedModel(
            name,
            {
                task.id: RecordedAnswer("x", float(scores[i % 4]), Decimal(cost), confidence=sure[i % len(sure)])
                for i, task in enumerate(mine.tasks)
            },
        )
    routing = {"use": "cascade", "models": ["weak", "strong", "best"]}
    three = arm(routing, among=("weak", "strong", "best"), checker=accuracy)
    got = list(recorded_outcomes(mine, three))
    exact = expected(mine, three)
    by_hand = {}
    for i in range(4):
        w, s, b = ((1, 1, 1), (0, 1, 1), (0.5, 0, 1), (0, 1, 0))[i]
        first = 1.0 if i == 2 else accuracy * (1 - w) + (1 - accuracy) * w
        second = accuracy * (1 - s) + (1 - accuracy) * s
        by_hand[f"t{i}"] = (
            (1 - first) * w + first * ((1 - second) * s + second * b),
            1 + first * (float(STRONG) + second * 50),
        )
    for task, (score, cost) in by_hand.items():
        assert exact[task] == (pytest.approx(score), pytest.approx(cost))
    assert sum(one.recorded_score for one in got) / n == pytest.approx(
        sum(score for score, _ in by_hand.values()) / 4, abs=4 * 0.5 / math.sqrt(n)
    )
    assert float(sum(one.cost for one in got)) / n == pytest.approx(
        sum(cost for _, cost in by_hand.values()) / 4, abs=4 * 25 / math.sqrt(n)
    )


class Endless(Longest):
    """A policy that tries the same model again and again."""

    def escalate(self, request, models, tried):
        return self.choose(request, models)


def test_a_policy_that_never_ends_is_told(monkeypatch):
    endless = Endless(("weak", "strong"), 0)
    monkeypatch.setattr(Longest, "read", classmethod(lambda cls, value: endless))
    for run in (lambda arm: list(recorded_outcomes(experiment(), arm)), lambda arm: expected(experiment(), arm)):
        with pytest.raises(ConfigError, match="the policy chose 'strong' a second time for the task 't0'"):
            run(arm("longest", checker=0.5))


def test_the_curve_over_checkers_saves_at_the_quality_of_the_strong_model_alone():
    """A checker right 3 times in 4: escalated are 1 - a of what the weak one got right, a of what it got wrong."""
    costs, qualities = [], []
    for accuracy in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        exact = expected(experiment(n=2_000), arm("cascade", checker=accuracy))
        qualities.append(sum(score for score, _ in exact.values()) / 2_000)
        costs.append(sum(cost for _, cost in exact.values()) / 2_000)
    assert qualities == pytest.approx([0.625, 0.7, 0.775, 0.85, 0.925, 1.0])
    assert costs == pytest.approx([0.011] * 6)  # half of the weak answers are right: always half are escalated
    strong_alone = 0.75
    assert min(cost for cost, quality in zip(costs, qualities, strict=True) if quality >= strong_alone) < float(STRONG)


def test_draws_depend_on_seed_task_repeat_and_model_alone():
    one = outcomes(arm("cascade", checker=0.6), n=200, repeats=2)
    fewer = {outcome.cell: outcome for outcome in outcomes(arm("cascade", checker=0.6), n=20)}
    assert all(fewer[outcome.cell] == outcome for outcome in one if outcome.cell in fewer)
    assert [outcome.escalated for outcome in one[:200]] != [outcome.escalated for outcome in one[200:]]
    other = outcomes(arm("cascade", checker=0.6), n=200, seed=1)
    assert [outcome.escalated for outcome in one[:200]] != [outcome.escalated for outcome in other]
    better = outcomes(arm("cascade", checker=0.8), n=200)
    for low, high in zip(one, better, strict=False):  # a better checker errs nowhere else: the draws are the same
        right = low.escalated == (low.cell.task in {f"t{i}" for i in range(200) if i % 4 in (1, 3)})
        if right:
            assert high.escalated == low.escalated


def test_draws_are_evenly_spread():
    draws = sorted(uniform(0, f"t{i}", 1, "weak") for i in range(2_000))
    assert 0 <= draws[0] <= draws[-1] < 1
    furthest = max(abs(draw - (i + 0.5) / 2_000) for i, draw in enumerate(draws))
    assert furthest < 1.63 / math.sqrt(2_000)  # Kolmogorov-Smirnov at 1 %
    assert uniform(7, "a", 1, "b") != uniform(7, "b", 1, "a")


def test_a_cascade_goes_by_the_confidence_that_is_on_file():
    sure = experiment()
    answers = {
        task.id: RecordedAnswer("x", 1.0, WEAK, confidence=confidence)
        for task, confidence in zip(sure.tasks, (0.9, 0.2, None, 0.7), strict=True)
    }
    sure.recorded["weak"] = RecordedModel("weak", answers)
    got = list(recorded_outcomes(sure, arm({"use": "cascade", "threshold": 0.7})))
    assert [outcome.escalated for outcome in got] == [0, 1, 0, 0]


def test_what_an_answer_costs_is_not_known_where_a_part_is_not():
    partly = experiment()
    partly.recorded["strong"] = RecordedModel(
        "strong", {name: RecordedAnswer("x", 1.0) for name in partly.recorded["strong"].answers}
    )
    got = list(recorded_outcomes(partly, arm("cascade", checker=1.0)))
    assert [outcome.cost for outcome in got] == [WEAK, None, WEAK, None]
    assert [outcome.latency for outcome in got] == [2, None, 2, None]
    assert next(iter(expected(partly, arm("cascade", checker=0.9)).values()))[1] is None


def test_nothing_is_expected_of_what_is_no_cascade():
    with pytest.raises(ConfigError, match="no cascade with a checker"):
        expected(experiment(), arm("fixed:weak"))


# Baselines


def test_baselines_of_arms():
    arms = {
        "a": Results([1, 0, 1, 0.5], [1, 1, 1, 1]),
        "b": Results([0, 1, 1, 0.5], [2, 2, 2, None]),
        "c": Results([0, 0, 0, 0], [0, 0, 0, 0]),
    }
    best, chance, oracle = baselines_of(arms)
    assert (best.name, best.of, best.quality) == ("best single", ("a",), (1, 0, 1, 0.5))
    assert (chance.of, chance.cost) == (("a", "b", "c"), (1, 1, 1, None))
    assert chance.quality == pytest.approx([1 / 3, 1 / 3, 2 / 3, 1 / 3])
    assert (oracle.quality, oracle.cost) == ((1, 1, 1, 0.5), (1, 2, 1, 1))


def test_of_equally_good_arms_the_cheapest_is_the_best_single_one():
    arms = {"a": Results([1], [None]), "b": Results([1], [2]), "c": Results([1], [1]), "d": Results([1], [1])}
    assert baselines_of(arms)[0].of == ("c",)


def test_baselines_need_the_same_tasks_of_all():
    for arms in ({}, {"a": Results([], [])}, {"a": Results([1], [1]), "b": Results([1, 1], [1, 1])}):
        with pytest.raises(UsageError, match="equally many tasks"):
            baselines_of(arms)


def test_the_oracle_of_two_arms_is_the_top_of_the_oracles_curve():
    weak, strong = [1, 0, 1, 0, 0.5], [1, 1, 0, 0, 0.75]
    costs = [1.0] * 5
    oracle = baselines_of({"weak": Results(weak, costs), "strong": Results(strong, costs)})[2]
    curve = curve_of([b - a for a, b in zip(weak, strong, strict=True)], weak, strong)
    assert max(point.quality for point in curve.points) == pytest.approx(sum(oracle.quality) / 5)


def test_longest_is_written_as_it_is_read():
    policy = Longest(("weak", "strong"), 30)
    assert Longest.read(policy.to_json()) == policy
    assert Longest.read("fixed:weak") is None
