"""Do intervals cover what they say, and does nothing look different where nothing is? By simulated experiments, and for
single scores exactly. The large runs are heavy; small ones with wider bounds always run."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from executor.experiments.curves import apgr_samples, curve_of
from executor.experiments.stats import (
    Resampled,
    bca,
    difference_intervals,
    holm,
    ratio,
    score_intervals,
    sign_flip_p,
)

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
Scores = NDArray[np.float64]


def simulated(
    seed: int, runs: int, tasks: int, repeats: int, rates: tuple[float, ...], alike: float = 1.0
) -> list[Scores]:
    """Task means of each arm, runs by tasks; tasks differ in difficulty, for all arms alike."""
    draw = np.random.default_rng(seed)
    difficulty = alike * draw.standard_normal((runs, tasks))
    width = (1 + alike**2) ** 0.5
    return [
        draw.binomial(repeats, scipy_stats.norm.cdf(width * scipy_stats.norm.ppf(rate) - difficulty)) / repeats
        for rate in rates
    ]


def covered_means(runs: int, tasks: int, repeats: int, rate: float, alike: float = 1.0) -> float:
    (means,) = simulated(round(1000 * rate) + tasks + repeats, runs, tasks, repeats, (rate,), alike)
    _, low, high = score_intervals(means, tasks * repeats, binary=True)
    return float(((low <= rate) & (rate <= high)).mean())


def covered_differences(runs: int, tasks: int, repeats: int, rates: tuple[float, float], alike: float = 1.0) -> float:
    one, two = simulated(round(1000 * rates[0]) + tasks + repeats, runs, tasks, repeats, rates, alike)
    _, low, high = difference_intervals(one - two, 1 / repeats)
    truth = rates[0] - rates[1]
    return float(((low <= truth) & (truth <= high)).mean())


def called_different(runs: int, tasks: int, repeats: int, arms: int = 5, seed: int = 11) -> float:
    """The share of experiments with arms of one quality in which any pair is called different."""
    made = simulated(seed, runs, tasks, repeats, (0.7,) * arms)
    called = 0
    for run in range(runs):
        p_values = [sign_flip_p((made[i][run] - made[j][run]).tolist()) for i, j in combinations(range(arms), 2)]
        called += min(holm(p_values)) < 0.05
    return called / runs


@pytest.mark.parametrize("tasks", [100, 200, 500, 1319])
def test_single_scores_are_covered_exactly_so_often(tasks: int) -> None:
    """All outcomes counted, no simulation: every rate from 0.1 to 0.9."""
    right = np.arange(tasks + 1)
    means = np.arange(tasks)[None, :] < right[:, None]
    _, low, high = score_intervals(means.astype(float), tasks, binary=True)
    for rate in np.linspace(0.1, 0.9, 161):
        chances = scipy_stats.binom.pmf(right, tasks, rate)
        assert 0.93 <= chances[(low <= rate) & (rate <= high)].sum() <= 0.97, rate


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_means_are_covered(rate: float, repeats: int) -> None:
    assert 0.925 <= covered_means(2_000, 100, repeats, rate) <= 0.975


@pytest.mark.parametrize("repeats", [1, 3])
def test_differences_are_covered(repeats: int) -> None:
    assert 0.925 <= covered_differences(2_000, 100, repeats, (0.64, 0.86)) <= 0.975


def test_no_difference_is_seldom_called_one() -> None:
    assert called_different(300, 100, 1) <= 0.08


def test_repeats_taken_for_tasks_would_not_cover() -> None:
    """What goes wrong without clusters, so that the tests above can be seen to test something."""
    (means,) = simulated(1, 2_000, 100, 3, (0.5,), alike=2.0)
    spread = np.sqrt(means.mean(axis=1) * (1 - means.mean(axis=1)) / 300)
    assert (np.abs(means.mean(axis=1) - 0.5) <= 1.96 * spread).mean() < 0.9


@pytest.mark.heavy
@pytest.mark.parametrize("alike", [0.5, 2.0])
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("tasks", [100, 200, 500])
def test_means_are_covered_in_2000_experiments(tasks: int, repeats: int, alike: float) -> None:
    found = {rate: covered_means(2_000, tasks, repeats, rate, alike) for rate in RATES}
    assert all(0.93 <= share <= 0.97 for share in found.values()), found


@pytest.mark.heavy
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("tasks", [100, 200, 500])
def test_differences_are_covered_in_2000_experiments(tasks: int, repeats: int) -> None:
    pairs = [(rate, other) for rate in RATES for other in (rate, rate + 0.05, 0.9) if other <= 0.9]
    found = {pair: covered_differences(2_000, tasks, repeats, pair) for pair in dict.fromkeys(pairs)}
    assert all(0.93 <= share <= 0.97 for share in found.values()), found


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("tasks", "repeats"), [(100, 1), (200, 3)])
def test_no_difference_is_called_one_in_at_most_6_of_100_experiments(tasks: int, repeats: int) -> None:
    assert called_different(2_000, tasks, repeats) <= 0.06


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_cost_ratios_are_covered() -> None:
    draw = np.random.default_rng(21)
    covered = 0
    drawn = Resampled(150, seed=1, resamples=2_000)
    for _ in range(1_000):
        first, second = draw.lognormal(0, 0.6, 150), draw.lognormal(0.5, 0.6, 150)
        _, low, high = drawn.interval([first.tolist(), second.tolist()], ratio)
        covered += low <= np.exp(-0.5) <= high
    assert 0.93 <= covered / 1_000 <= 0.97


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_apgr_is_covered() -> None:
    draw = np.random.default_rng(22)

    def tasks(count: int) -> tuple[Scores, Scores, Scores]:
        difficulty = draw.standard_normal(count)
        score = difficulty + draw.standard_normal(count)
        weak = (draw.random(count) < scipy_stats.norm.cdf(0.4 - difficulty)).astype(float)
        strong = (draw.random(count) < scipy_stats.norm.cdf(1.4 - 0.4 * difficulty)).astype(float)
        return score, weak, strong

    truth = curve_of(*(column.tolist() for column in tasks(400_000))).apgr
    assert truth is not None
    drawn, without = Resampled(300, seed=1, resamples=1_000), 1 - np.eye(300)
    covered = 0
    for _ in range(400):
        score, weak, strong = (column.tolist() for column in tasks(300))
        value = curve_of(score, weak, strong).apgr
        assert value is not None
        samples = apgr_samples(score, weak, strong, drawn.counts)
        _, low, high = bca(value, samples, apgr_samples(score, weak, strong, without))
        covered += low <= truth <= high
    assert 0.92 <= covered / 400 <= 0.98
