"""Statistics of experiments: how sure a mean, a difference, a ratio is. The task is the unit: what is repeated on one
task is not independent, so that repeats make a task's score more exact and never make more tasks of it.

The sources:
- Brown, Cai & DasGupta (2001), Interval estimation for a binomial proportion, Statistical Science 16(2): Jeffreys'
  interval (section 4.1.2).
- Korn & Graubard (1998), Confidence intervals for proportions with small expected number of positive counts estimated
  from survey data, Survey Methodology 24(2): the effective sample size, with its correction by degrees of freedom.
- Franco, Little, Louis & Slud (2019), Comparative study of confidence intervals for proportions in complex sample
  surveys, J. Survey Statistics and Methodology 7(3): both together.
- Bonett & Price (2012), Adjusted Wald confidence interval for a difference of binomial proportions based on paired
  data, J. Educational and Behavioral Statistics 37(4). Clopper & Pearson (1934), Biometrika 26.
- McNemar (1947), Psychometrika 12(2); Fisher's sign-flip test; Phipson & Smyth (2010), Permutation P-values should
  never be zero, Statistical Applications in Genetics and Molecular Biology 9(1): (b + 1) / (m + 1).
- Holm (1979), A simple sequentially rejective multiple test procedure, Scandinavian J. Statistics 6(2).
- Efron (1987), Better bootstrap confidence intervals, JASA 82: BCa.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .needs import needed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

LEVEL = 0.95
SIGNIFICANT = 0.05
FLIPS = 9_999
"""Sign flips drawn where they can't all be counted."""
RESAMPLES = 4_000
"""Of a bootstrap: the ends of a 95 % interval then vary by about a fiftieth of its width."""
GRID = 60
"""Scores that are multiples of 1/k for a k up to this are counted exactly."""
_COUNTED = 100_000
"""How many values the sum of sign-flipped differences may have to be counted exactly."""


class Estimate(NamedTuple):
    """A figure with its interval."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """By name."""
        return self._asdict()


def mean_interval(scores: Sequence[Sequence[float]], level: float = LEVEL) -> Estimate:
    """Mean score (0 to 1) with its interval; `scores` holds each task's repeats. Each task counts alike, however often
    it was repeated. Raises ValueError without a task.

    Jeffreys' interval with the effective number of tasks. It covers 93 to 97 % from 100 tasks on with rates of 0.1 to
    0.9; with few tasks whose scores are neither 0 nor 1 it may cover less, as any interval of a mean does.
    """
    np = needed("numpy")
    means = np.array([math.fsum(task) / len(task) for task in scores], dtype=float)
    binary = all(score in (0, 1) for task in scores for score in task)
    mean, low, high = score_intervals(means, sum(map(len, scores)), binary=binary, level=level)
    return Estimate(float(mean), float(low), float(high))


def score_intervals(means: Array, cells: int, *, binary: bool, level: float = LEVEL) -> tuple[Any, Any, Any]:
    """Mean and interval along the last axis, that of the tasks; `cells`: scores in all, repeats among them; `binary`:
    each of them is 0 or 1.

    The effective number of tasks is that for which a share of 0/1 scores would vary as the tasks' means do. 0/1 scores
    are worth at least one per task and at most one per cell. Where nothing varies, nothing is known of how it would:
    each task counts once.
    """
    np, beta = needed("numpy"), needed("scipy.stats").beta
    tasks = means.shape[-1]
    if not tasks:
        raise ValueError("there is no task")
    mean = np.clip(means.mean(axis=-1), 0.0, 1.0)
    size = _effective(means, mean, cells, binary=binary, level=level)
    tail = (1 - level) / 2
    hits, misses = mean * size, (1 - mean) * size
    low = np.where(hits <= 0, 0.0, beta.ppf(tail, hits + 0.5, misses + 0.5))
    high = np.where(misses <= 0, 1.0, beta.ppf(1 - tail, hits + 0.5, misses + 0.5))
    return mean, np.minimum(low, mean), np.maximum(high, mean)


def _effective(means: Array, mean: Any, cells: int, *, binary: bool, level: float) -> Any:
    np, stats = needed("numpy"), needed("scipy.stats")
    tasks = means.shape[-1]
    if tasks == 1 or (binary and cells == tasks):
        return np.full(mean.shape, float(tasks))
    variance = means.var(axis=-1, ddof=1) / tasks
    varies = variance > 1e-18
    size = np.where(varies, mean * (1 - mean) / np.where(varies, variance, 1.0), float(tasks))
    # the variance is an estimate of tasks - 1 degrees of freedom
    tail = (1 + level) / 2
    size = np.where(varies, size * (stats.norm.ppf(tail) / stats.t.ppf(tail, tasks - 1)) ** 2, size)
    return np.clip(size, tasks, cells) if binary else size


def difference_interval(differences: Sequence[float], step: float | None = None, level: float = LEVEL) -> Estimate:
    """Mean of the tasks' differences, with its interval; see `difference_intervals`."""
    np = needed("numpy")
    mean, low, high = difference_intervals(np.array(differences, dtype=float), step, level=level)
    return Estimate(float(mean), float(low), float(high))


def difference_intervals(
    differences: Array, step: float | None = None, *, level: float = LEVEL
) -> tuple[Any, Any, Any]:
    """Mean and interval along the last axis, that of the tasks: Student's, of the tasks' differences.

    `step`: the least that one cell can change a task's difference, where scores are 0 or 1: 1 / repeats; None: scores
    of any size. With a step a task is added, half of it a step up and half a step down: half of what Bonett & Price
    add, whose interval covers up to 99 % of 100 tasks where few differ; Student's alone covers less than 93 % there.
    Where no difference varies, as many tasks as Clopper & Pearson's bound allows may yet differ, either way:
    1 - (tail) ** (1 / tasks), known as the rule of three.
    """
    np, t = needed("numpy"), needed("scipy.stats").t
    tasks = differences.shape[-1]
    if not tasks:
        raise ValueError("there is no task")
    mean, tail = differences.mean(axis=-1), (1 - level) / 2
    total, squares = differences.sum(axis=-1), (differences**2).sum(axis=-1)
    size = tasks if step is None else tasks + 1
    middle = total / size
    variance = (squares + (step or 0.0) ** 2 - size * middle**2) / max(size - 1, 1)
    half = t.ppf(1 - tail, max(size - 1, 1)) * np.sqrt(np.maximum(variance, 0.0) / size)
    still = squares - total**2 / tasks <= 1e-12
    middle, half = np.where(still, mean, middle), np.where(still, 1 - tail ** (1 / tasks), half)
    low, high = np.maximum(middle - half, -1.0), np.minimum(middle + half, 1.0)
    return mean, np.minimum(low, mean), np.maximum(high, mean)


def spread(differences: Sequence[float]) -> float:
    """Standard deviation of the tasks' differences."""
    np = needed("numpy")
    return float(np.std(differences, ddof=1)) if len(differences) > 1 else math.nan


def sign_flip_p(differences: Sequence[float], *, seed: int = 0, flips: int = FLIPS) -> float:
    """Two-sided p-value of no difference: how often the differences' sum would be as far from 0 if each task's sign
    were a coin's. For 0/1 scores without repeats this is McNemar's exact test.

    Exact where the differences are multiples of a fraction (scores 0/1, however often repeated); else by `flips` drawn
    with `seed`, where at least 1 / (flips + 1) comes out.
    """
    sizes = [difference for difference in differences if abs(difference) > 1e-12]
    if not sizes:
        return 1.0
    whole = _whole(sizes)
    if whole is None:
        return _drawn_p(sizes, seed, flips)
    if len(set(map(abs, whole))) == 1:
        binom = needed("scipy.stats").binom
        ups = sum(size > 0 for size in whole)
        return min(1.0, 2 * float(binom.cdf(min(ups, len(whole) - ups), len(whole), 0.5)))
    return _counted_p(whole)


def _whole(sizes: Sequence[float]) -> list[int] | None:
    """The differences as whole numbers of a common unit, where there is one that is not too small."""
    unit = 1
    for size in {round(abs(size), 12) for size in sizes}:
        fraction = Fraction(size).limit_denominator(GRID)
        if abs(float(fraction) - size) > 1e-9:
            return None
        unit = math.lcm(unit, fraction.denominator)
        if unit > GRID * GRID:
            return None
    whole = [round(size * unit) for size in sizes]
    common = math.gcd(*whole)
    return [size // common for size in whole] if sum(map(abs, whole)) // common <= _COUNTED else None


def _counted_p(whole: Sequence[int]) -> float:
    """All flips counted: the distribution of the sum, task by task."""
    np = needed("numpy")
    chances = np.ones(1)
    for size in map(abs, whole):
        step = np.zeros(2 * size + 1)
        step[0] = step[-1] = 0.5
        chances = np.convolve(chances, step) if size < 8 else _shifted(chances, size)
    reach = (len(chances) - 1) // 2
    seen = abs(sum(whole))
    return min(1.0, float(chances[: reach - seen + 1].sum() + chances[reach + seen :].sum())) if seen else 1.0


def _shifted(chances: Any, size: int) -> Any:
    np = needed("numpy")
    wider = np.zeros(len(chances) + 2 * size)
    wider[: len(chances)] += chances / 2
    wider[2 * size :] += chances / 2
    return wider


def _drawn_p(sizes: Sequence[float], seed: int, flips: int) -> float:
    np = needed("numpy")
    values = np.array(sizes)
    seen = abs(values.sum())
    generator = np.random.default_rng(seed)
    beyond, batch = 0, max(1, min(flips, 4_000_000 // len(sizes)))
    for begin in range(0, flips, batch):
        signs = generator.integers(0, 2, (min(batch, flips - begin), len(sizes)), dtype=np.int8) * 2 - 1
        beyond += int((np.abs(signs @ values) >= seen - 1e-9).sum())
    return (beyond + 1) / (flips + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number by Holm's steps, in the order given."""
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = least
    return corrected


class Resampled:
    """Samples of as many tasks as there are, drawn with replacement: each task's columns stay together, and all
    intervals of one report rest on the same samples. `counts[b][i]`: how often task i is in sample b."""

    def __init__(self, tasks: int, *, seed: int = 0, resamples: int | None = None) -> None:
        np = needed("numpy")
        samples = resamples or max(300, min(RESAMPLES, 12_000_000 // tasks))
        draw = np.random.default_rng(seed)
        self.tasks = tasks
        self.counts: Any = np.empty((samples, tasks))
        for sample in range(samples):
            self.counts[sample] = np.bincount(draw.integers(0, tasks, tasks), minlength=tasks)

    def interval(
        self, columns: Sequence[Sequence[float]], function: Callable[..., Any], level: float = LEVEL
    ) -> Estimate:
        """A function of the columns' means, with its BCa interval. Where it does not vary the interval is the figure
        itself; with one task nothing is known of how it would, and the ends are not numbers."""
        np = needed("numpy")
        data = np.array(columns, dtype=float)
        if data.shape[-1] != self.tasks:
            raise ValueError(f"{data.shape[-1]} tasks where the samples are of {self.tasks}")
        means = data.mean(axis=-1)
        value = float(function(*means))
        if self.tasks == 1:
            return Estimate(value, math.nan, math.nan)
        with np.errstate(all="ignore"):
            drawn = function(*(self.counts @ data.T / self.tasks).T)
            without = function(*(data.sum(axis=-1, keepdims=True) - data) / (self.tasks - 1))
        return bca(value, drawn, without, level)


def bca(value: float, drawn: Any, without: Any, level: float = LEVEL) -> Estimate:
    """BCa interval of a figure out of its values in bootstrap samples and those without each task. Samples in which
    the figure has no value are left out."""
    np, norm = needed("numpy"), needed("scipy.stats").norm
    drawn = drawn[np.isfinite(drawn)]
    scale = 1e-9 * max(1.0, abs(value)) if len(drawn) else math.inf
    if not len(drawn) or drawn.max() - drawn.min() <= scale:
        return Estimate(value, value, value) if len(drawn) else Estimate(value, math.nan, math.nan)
    below = ((drawn < value).mean() + (drawn <= value).mean()) / 2
    shift = norm.ppf(min(max(below, 1 / len(drawn)), 1 - 1 / len(drawn)))
    gaps = without.mean() - without
    power = (gaps**2).sum() ** 1.5
    skew = float((gaps**3).sum() / (6 * power)) if power > 0 else 0.0
    ends = shift + norm.ppf([(1 - level) / 2, (1 + level) / 2])
    low, high = np.quantile(drawn, norm.cdf(shift + ends / (1 - skew * ends)))
    return Estimate(value, min(float(low), value), max(float(high), value))


class Samples:
    """The samples of one report, drawn once for each number of tasks."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._drawn: dict[int, Resampled] = {}

    def of(self, tasks: int) -> Resampled:
        """The samples of so many tasks."""
        if tasks not in self._drawn:
            self._drawn[tasks] = Resampled(tasks, seed=self._seed)
        return self._drawn[tasks]


def same(mean: Any) -> Any:
    """For `Resampled.interval`: the mean itself."""
    return mean


def ratio(first: Any, second: Any) -> Any:
    """For `Resampled.interval`: how many times the second's mean the first's is."""
    return first / second


def difference(first: Any, second: Any) -> Any:
    """For `Resampled.interval`: how much more the first's mean is than the second's."""
    return first - second


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies, by linear interpolation."""
    return float(needed("numpy").quantile(values, share))


def known_mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where one of the values is not known, or there is none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def is_shown(difference: Estimate, p_corrected: float) -> bool:
    """Whether a difference is shown: its interval excludes 0 and its corrected p-value is below 0.05."""
    return p_corrected < SIGNIFICANT and not difference.low <= 0 <= difference.high


def tasks_needed(deviation: float, gap: float, *, level: float = LEVEL, power: float = 0.8) -> int | None:
    """How many tasks tell a difference in means of `gap` from none, where the tasks' differences deviate by
    `deviation`: ((z of the level + z of the power) * deviation / gap) squared. None where it can't be said."""
    if not (deviation > 0 and gap > 0):
        return None
    norm = needed("scipy.stats").norm
    return math.ceil(float(((norm.ppf((1 + level) / 2) + norm.ppf(power)) * deviation / gap) ** 2))
