"""Fits the two logistic models of a learned policy, with scikit-learn, over the features that it sees at run time."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.experiments.needs import needed
from registry.learned_route import SHAPE_SCALE, RouteModel, logistic, weight_of
from registry.route_features import NAMES, Features, features_of

if TYPE_CHECKING:
    from .data import FitData

MOST_WORDS = 4_000
"""Words that a policy knows at the most, the most frequent ones: its file stays below 300 kB."""
LEAST_TASKS = 2
"""A word counts when so many tasks have it."""
DIGITS = 4
"""Significant digits of what is written."""
ITERATIONS = 1_000
FLAT = 1e-6
"""A count whose standard deviation is smaller is the same in all tasks: it weighs nothing."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The features of tasks, made once for all fits."""

    features: Sequence[Features]
    kinds: Sequence[str | None]

    @classmethod
    def of(cls, data: FitData) -> Seen:
        """Those of these tasks."""
        return cls([features_of(text) for text in data.texts], data.kinds)

    def part(self, places: Sequence[int]) -> Seen:
        """Those of some of them."""
        return Seen([self.features[i] for i in places], [self.kinds[i] for i in places])


class Space:
    """The numbers that a task becomes, by what there is in the tasks to fit on."""

    def __init__(self, seen: Seen) -> None:
        np = needed("numpy")
        self._np = np
        tasks = Counter(word for one in seen.features for word in one.words)
        frequent = sorted((word for word in tasks if tasks[word] >= LEAST_TASKS), key=lambda word: (-tasks[word], word))
        n = len(seen.features)
        self.words = {
            word: rounded(1 + math.log((1 + n) / (1 + tasks[word]))) for word in sorted(frequent[:MOST_WORDS])
        }
        """How rare each word is: 1 + ln((1 + tasks) / (1 + tasks with it)), the smoothed inverse document frequency."""
        self.kinds = sorted({kind for kind in seen.kinds if kind})
        shape = np.array([one.shape for one in seen.features])
        deviations = shape.std(axis=0)
        self.means = [rounded(float(mean)) for mean in shape.mean(axis=0)]
        self.deviations = [rounded(float(one)) if one > FLAT else 1.0 for one in deviations]
        self.flat = [bool(one <= FLAT) for one in deviations]

    def matrix(self, seen: Seen) -> Any:
        """A row for each task: words, counts, kinds."""
        np, sparse = self._np, needed("scipy.sparse")
        places = {word: place for place, word in enumerate(self.words)}
        rows, columns, values = [], [], []
        for row, one in enumerate(seen.features):
            found = [
                (places[word], weight_of(count) * self.words[word])
                for word, count in one.words.items()
                if word in places
            ]
            length = math.sqrt(math.fsum(value * value for _, value in found)) or 1.0
            for place, value in found:
                rows.append(row)
                columns.append(place)
                values.append(value / length)
        words = sparse.csr_matrix((values, (rows, columns)), shape=(len(seen.features), len(self.words)))
        shape = (np.array([one.shape for one in seen.features]) - self.means) / self.deviations * SHAPE_SCALE
        shape[:, self.flat] = 0.0
        kinds = np.array([[float(kind == known) for known in self.kinds] for kind in seen.kinds])
        return sparse.hstack([words, shape, kinds.reshape(len(seen.features), -1)]).tocsr()


def fitted(space: Space, matrix: Any, weak: Sequence[float], strong: Sequence[float], penalty: float) -> RouteModel:
    """The policy's model: weights rounded to what is written. `penalty`: the inverse strength C of the penalty on their
    squares."""
    heads = [_head(matrix, scores, penalty) for scores in (weak, strong)]
    bias, pairs = (
        [rounded(head[0]) for head in heads],
        list(zip(*(map(rounded, head[1]) for head in heads), strict=True)),
    )
    at, n_words = iter(pairs), len(space.words)
    words = {word: (rare, *next(at)) for (word, rare) in space.words.items()}
    shape = tuple(
        (mean, deviation, *((0.0, 0.0) if flat else pair))
        for mean, deviation, flat, pair in zip(
            space.means, space.deviations, space.flat, pairs[n_words : n_words + len(NAMES)], strict=True
        )
    )
    kinds = dict(zip(space.kinds, pairs[n_words + len(NAMES) :], strict=True))
    return RouteModel((bias[0], bias[1]), shape, kinds, words)


def gains(matrix: Any, weak: Sequence[float], strong: Sequence[float], penalty: float, other: Any) -> list[float]:
    """The scores of other tasks by a fit on these, without making a policy of it."""
    sides = []
    for scores in (weak, strong):
        bias, weights = _head(matrix, scores, penalty)
        sides.append([logistic(bias + float(value)) for value in other @ weights])
    return [right - wrong for wrong, right in zip(*sides, strict=True)]


def _head(matrix: Any, scores: Sequence[float], penalty: float) -> tuple[float, Any]:
    """Bias and weights of a logistic model of these scores. A score between 0 and 1 counts in part as right."""
    np, sparse, linear = needed("numpy"), needed("scipy.sparse"), needed("sklearn.linear_model")
    right = np.clip(np.asarray(scores, dtype=float), 0.0, 1.0)
    total = float(right.sum())
    if total in (0.0, float(len(right))):  # always or never right: no task tells more than another
        share = (total + 0.5) / (len(right) + 1)
        return math.log(share / (1 - share)), np.zeros(matrix.shape[1])
    model = linear.LogisticRegression(C=penalty, max_iter=ITERATIONS)
    with warnings.catch_warnings():
        # a fit that stops at its limit is judged like any other
        warnings.simplefilter("ignore", needed("sklearn.exceptions").ConvergenceWarning)
        if ((right == 0) | (right == 1)).all():
            model.fit(matrix, right.astype(int))
        else:
            twice = sparse.vstack([matrix, matrix]).tocsr()
            sides = np.r_[np.ones(len(right), dtype=int), np.zeros(len(right), dtype=int)]
            model.fit(twice, sides, sample_weight=np.r_[right, 1 - right])
    return float(model.intercept_[0]), model.coef_[0]


def rounded(value: float) -> float:
    """With `DIGITS` significant digits, as it is written."""
    return float(f"{value:.{DIGITS}g}")
