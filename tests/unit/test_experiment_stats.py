"""Statistics of experiments against known answers; by simulation in test_experiment_coverage.py."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from executor.experiments.stats import (
    Resampled,
    difference_interval,
    holm,
    mean_interval,
    ratio,
    same,
    sign_flip_p,
    tasks_needed,
)


def hits(right: int, tasks: int) -> list[list[float]]:
    return [[float(i < right)] for i in range(tasks)]


@pytest.mark.parametrize(("right", "tasks"), [(8, 10), (1, 29), (50, 100), (137, 200)])
def test_single_scores_have_jeffreys_interval(right: int, tasks: int) -> None:
    mean, low, high = mean_interval(hits(right, tasks))
    posterior = scipy_stats.beta(right + 0.5, tasks - right + 0.5)
    assert mean == pytest.approx(right / tasks)
    assert (low, high) == pytest.approx(posterior.interval(0.95))


def test_nothing_right_or_everything_has_an_open_end() -> None:
    assert mean_interval(hits(0, 20))[:2] == (0.0, 0.0)
    mean, low, high = mean_interval(hits(20, 20))
    assert (mean, high) == (1.0, 1.0)
    assert 0.8 < low < 0.9  # the rule of three says 0.85


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_few_tasks_have_wide_intervals_that_hold_the_mean(tasks: int) -> None:
    for right in range(tasks + 1):
        mean, low, high = mean_interval(hits(right, tasks))
        assert 0 <= low <= mean <= high <= 1
        assert high - low > 0.5
    for score in (0.3, 0.5):
        mean, low, high = mean_interval([[score]] * tasks)
        assert low < mean < high


def test_no_task_is_an_error() -> None:
    with pytest.raises(ValueError, match="no task"):
        mean_interval([])
    with pytest.raises(ValueError, match="no task"):
        difference_interval([])


def test_repeats_that_always_agree_are_worth_no_more_than_one() -> None:
    once, thrice = mean_interval(hits(30, 100)), mean_interval([row * 3 for row in hits(30, 100)])
    assert thrice.high - thrice.low == pytest.approx(once.high - once.low, rel=0.03)


def test_repeats_that_are_independent_are_worth_nearly_as_much_as_tasks() -> None:
    draw = np.random.default_rng(5)
    scores = (draw.random((300, 3)) < 0.4).astype(float)
    apart = mean_interval([[score] for score in scores.flat])
    by_task = mean_interval(scores.tolist())
    assert by_task.high - by_task.low == pytest.approx(apart.high - apart.low, rel=0.1)


def test_scores_of_any_size_have_an_interval_like_students() -> None:
    scores = np.random.default_rng(6).beta(8, 8, 400)
    mean, low, high = mean_interval([[score] for score in scores])
    student = scipy_stats.t.interval(0.95, 399, scores.mean(), scores.std(ddof=1) / 20)
    assert mean == pytest.approx(scores.mean())
    assert (low, high) == pytest.approx(student, abs=0.001)


def test_difference_of_agrestis_voters() -> None:
    """Agresti, Categorical Data Analysis (2002), section 10.1: 1,600 people asked twice; 150 changed from approval, 86
    to approval: -0.04, 95 % interval -0.06 to -0.02."""
    differences = [-1.0] * 150 + [1.0] * 86 + [0.0] * (794 + 570)
    mean, low, high = difference_interval(differences, 1.0)
    assert (round(mean, 3), round(low, 2), round(high, 2)) == (-0.04, -0.06, -0.02)


def test_no_difference_seen_is_no_proof_of_none() -> None:
    """Clopper and Pearson's bound for none of 100: 1 - 0.025 ** 0.01."""
    bound = scipy_stats.binomtest(0, 100).proportion_ci(0.95, "exact").high
    assert difference_interval([0.0] * 100, 1.0) == pytest.approx((0.0, -bound, bound))
    assert difference_interval([0.0] * 100, None) == pytest.approx((0.0, -bound, bound))


def test_few_differences_never_have_an_empty_interval() -> None:
    for count, tasks in product((1, 2, 3), (3, 10, 200)):
        mean, low, high = difference_interval([1.0] * count + [0.0] * (tasks - count), 1.0)
        assert low < mean < high or high == 1.0


def test_differences_of_any_size_are_students() -> None:
    differences = np.random.default_rng(7).normal(0.05, 0.2, 150)
    mean, low, high = difference_interval(differences.tolist())
    student = scipy_stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (mean, low, high) == pytest.approx((differences.mean(), student.low, student.high))


def test_darwins_plants() -> None:
    """Fisher, The Design of Experiments (1935), section 21: 15 pairs of plants, differences in eighths of an inch; of
    the 32,768 ways to give them signs 863 have at least this sum: 5.267 % both ways."""
    plants = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert sign_flip_p(plants) == 2 * 863 / 2**15


@pytest.mark.parametrize(("ups", "downs"), [(10, 3), (1, 1), (0, 6), (25, 25), (86, 150)])
def test_single_0_1_scores_have_mcnemars_exact_test(ups: int, downs: int) -> None:
    expected = scipy_stats.binomtest(ups, ups + downs).pvalue
    assert sign_flip_p([1.0] * ups + [-1.0] * downs + [0.0] * 40) == pytest.approx(expected)


def test_repeated_scores_are_counted_exactly() -> None:
    differences = [1 / 3, 2 / 3, -1 / 3, 1.0, 1 / 3, 0.0, -2 / 3, 1 / 3]
    sums = [sum(sign * abs(size) for sign, size in zip(signs, differences, strict=True))
            for signs in product((-1, 1), repeat=len(differences))]  # fmt: skip
    beyond = sum(abs(one) >= abs(sum(differences)) - 1e-9 for one in sums) / len(sums)
    assert sign_flip_p(differences) == pytest.approx(beyond)


def test_other_scores_are_drawn_and_agree_with_scipy() -> None:
    differences = np.random.default_rng(8).normal(0.1, 0.5, 60)
    ours = sign_flip_p(differences.tolist(), seed=1)
    theirs = scipy_stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(2)
    ).pvalue
    assert ours == pytest.approx(theirs, abs=0.02)
    assert ours == sign_flip_p(differences.tolist(), seed=1)
    assert sign_flip_p([0.1234567 + i / 997 for i in range(80)]) == 1 / 10_000  # never 0


def test_no_differences_at_all_are_no_evidence() -> None:
    assert sign_flip_p([]) == sign_flip_p([0.0, 0.0]) == 1.0


def test_holms_steps() -> None:
    """The example of R's p.adjust and of the usual textbooks: four tests."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])


def test_bca_of_efrons_spatial_test() -> None:
    """Efron & Tibshirani, An Introduction to the Bootstrap (1993), table 14.2: the variance of 26 children's results is
    171.5, its 90 % BCa interval 115.8 to 259.6, by 2,000 samples."""
    results = [48, 36, 20, 29, 42, 42, 20, 42, 22, 41, 45, 14, 6, 0, 33, 28, 34, 4, 32, 24, 47, 41, 24, 26, 30, 41]
    drawn = Resampled(26, seed=1, resamples=20_000)
    variance, low, high = drawn.interval(
        [results, [one**2 for one in results]], lambda mean, square: square - mean**2, level=0.9
    )
    assert variance == pytest.approx(171.5, abs=0.1)
    assert (low, high) == pytest.approx((115.8, 259.6), abs=4)


def test_ratio_agrees_with_scipys_bootstrap() -> None:
    draw = np.random.default_rng(9)
    first, second = draw.lognormal(0, 0.8, 120), draw.lognormal(0.3, 0.8, 120)
    ours = Resampled(120, seed=1, resamples=10_000).interval([first.tolist(), second.tolist()], ratio)
    theirs = scipy_stats.bootstrap(
        (first, second), lambda a, b, axis: a.mean(axis=axis) / b.mean(axis=axis), paired=True, vectorized=True,
        rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    assert ours.mean == pytest.approx(first.mean() / second.mean())
    assert ours[1:] == pytest.approx((theirs.low, theirs.high), rel=0.02)


def test_what_does_not_vary_has_no_width_and_one_task_says_nothing() -> None:
    drawn = Resampled(50)
    assert drawn.interval([[0.1] * 50, [0.4] * 50], ratio) == pytest.approx((0.25, 0.25, 0.25))
    mean, low, high = Resampled(1).interval([[0.3]], same)
    assert mean == 0.3
    assert math.isnan(low)
    assert math.isnan(high)


def test_samples_are_those_of_the_seed() -> None:
    assert (Resampled(30, seed=4).counts == Resampled(30, seed=4).counts).all()
    assert (Resampled(30, seed=4).counts != Resampled(30, seed=5).counts).any()


def test_tasks_needed_for_a_gap() -> None:
    """((1.96 + 0.84) / 0.5) squared is 31.4: any table of sample sizes for paired tests."""
    assert tasks_needed(1.0, 0.5) == 32
    assert tasks_needed(0.0, 0.1) is None
    assert tasks_needed(1.0, 0.0) is None
