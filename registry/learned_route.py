"""The policy `learned`: how much a task gains by the stronger model, judged by its text and kind before any call.

`dagwright experiment fit` makes the file of one. Two logistic models say how likely the weak and the strong model are
right, from the words, some counts about the text and the kind of task (`registry.route_features`); the score is the
difference. The strong model does what scores at least the threshold. Plain arithmetic, no library.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import UsageError
from .route_features import NAMES, features_of
from .route_features import VERSION as FEATURES
from .routing import Choice, RouteRequest, RoutingPolicy, named
from .whole_files import put_whole

if TYPE_CHECKING:
    from .models import ModelRegistry

VERSION = 1
"""Of the file."""
WHAT = "dagwright learned routing policy"
"""What the file says that it is."""
MAX_BYTES = 4_000_000
"""A policy's file is no larger; one that is fitted here has less than 300 kB."""
MOST, LEAST = 1e9, 1e-9
"""Numbers in a file are no larger, and deviations no smaller: sums of them stay finite."""
SHAPE_SCALE = 0.1
"""What a count one standard deviation off the mean comes to beside the words, whose squares sum to 1. Small, so that
the penalty on the weights, which is the same for all, holds the counts more than the words."""


@dataclass(frozen=True, slots=True)
class RouteModel:
    """Two logistic models over the same features. Each pair is of the weak and the strong model.

    `shape`: mean and standard deviation of each count where the model was fitted, and its weights, in the order of
    `route_features.NAMES`. `kinds`: weights of each kind; one that is not there weighs nothing. `words`: how rare a
    word was (its inverse document frequency), and its weights.
    """

    bias: tuple[float, float]
    shape: tuple[tuple[float, float, float, float], ...]
    kinds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    words: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)

    def right(self, text: str, kind: str | None = None) -> tuple[float, float]:
        """How likely the weak and the strong model are right, by the model."""
        seen = features_of(text)
        weak, strong = self.bias
        for value, (mean, deviation, for_weak, for_strong) in zip(seen.shape, self.shape, strict=True):
            scaled = SHAPE_SCALE * (value - mean) / deviation
            weak += scaled * for_weak
            strong += scaled * for_strong
        for_weak, for_strong = self.kinds.get(kind or "", (0.0, 0.0))
        by_words = self._by_words(seen.words)
        return logistic(weak + for_weak + by_words[0]), logistic(strong + for_strong + by_words[1])

    def _by_words(self, words: Mapping[str, int]) -> tuple[float, float]:
        squares = weak = strong = 0.0
        for word, count in words.items():
            known = self.words.get(word)
            if known is not None:
                value = weight_of(count) * known[0]
                squares += value * value
                weak += value * known[1]
                strong += value * known[2]
        length = math.sqrt(squares) or 1.0
        return weak / length, strong / length

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "bias": list(self.bias),
            "shape": {name: list(row) for name, row in zip(NAMES, self.shape, strict=True)},
            "kinds": {kind: list(row) for kind, row in self.kinds.items()},
            "words": {word: list(row) for word, row in self.words.items()},
        }


@dataclass(frozen=True, slots=True)
class LearnedPolicy(RoutingPolicy):
    """Strong where a task scores at least the threshold. `weak` and `strong`: names or roles. `about`: what it was
    fitted on and how it did there, as data. `file`: where it stands, None: nowhere yet."""

    name: ClassVar[str] = "learned"
    weak: str
    strong: str
    threshold: float
    model: RouteModel
    about: Mapping[str, Any] = field(default_factory=dict)
    file: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise UsageError(f"the threshold of a learned policy must be a finite number, not {self.threshold!r}")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, threshold: float | None = None) -> LearnedPolicy:
        """The policy of a file, with another threshold where one is given. Raises UsageError, which says what is wrong
        with the file."""
        name = os.fspath(path)
        policy = _at(name, *_version(name))
        return replace(policy, file=name, threshold=policy.threshold if threshold is None else threshold)

    @classmethod
    def read(cls, data: Any, where: str = "the policy") -> LearnedPolicy:
        """The policy of a file's data. Raises UsageError."""
        data = _table(data, where)
        if data.get("what") != WHAT:
            raise UsageError(f"{where} is no learned routing policy: `dagwright experiment fit` writes one")
        for key, known in (("version", VERSION), ("features", FEATURES)):
            if data.get(key) != known:
                raise UsageError(f"{where}: {key} is {data.get(key)!r}, this program knows {known}: fit it again")
        return cls(
            _name(data, "weak", where),
            _name(data, "strong", where),
            _row([data.get("threshold")], 1, f"{where}: threshold")[0],
            _model(_table(data.get("model"), f"{where}: model"), where),
            _table(data.get("about", {}), f"{where}: about"),
        )

    def save(self, path: str | os.PathLike[str]) -> LearnedPolicy:
        """Writes the file, which is there as a whole or as it was; the policy that stands there. Raises UsageError."""
        try:
            put_whole(Path(path), self.text().encode())
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror or error}") from None
        return replace(self, file=os.fspath(path))

    def text(self) -> str:
        """What stands in the file: JSON, a line for each word, kind and count."""
        data = {
            "what": WHAT, "version": VERSION, "features": FEATURES, "weak": self.weak, "strong": self.strong,
            "threshold": self.threshold, "about": dict(self.about), "model": self.model.to_json(),
        }  # fmt: skip
        return f"{_written(data)}\n"

    def score(self, request: RouteRequest) -> float:
        """How much likelier the strong model is to be right than the weak one, -1 to 1."""
        weak, strong = self.model.right(request.task, request.kind)
        return strong - weak

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The strong model where the score is at least the threshold, else the weak one."""
        score = self.score(request)
        strong = score >= self.threshold
        told = f"learned: gain {score:.3f}, {'at least' if strong else 'below'} the threshold {self.threshold:.3g}"
        return Choice(named(models, self.strong if strong else self.weak), told, score)

    def check(self, models: ModelRegistry) -> None:
        """Both its models must be there."""
        named(models, self.weak)
        named(models, self.strong)

    def to_json(self) -> Mapping[str, Any]:
        """The policy as `policy_of` reads it. Raises UsageError where it stands in no file."""
        if self.file is None:
            raise UsageError("this learned policy stands in no file yet: save it first")
        return {"use": self.name, "file": self.file, "threshold": self.threshold}


def logistic(value: float) -> float:
    """1 / (1 + e^-value), without overflow."""
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    power = math.exp(value)
    return power / (1 + power)


def weight_of(count: int) -> float:
    """What a word counts that occurs so often: repeats count less and less."""
    return 1 + math.log(count)


# Writing and reading


def _written(value: Any) -> str:
    """JSON, a line for each key of an object, a list in one line."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    rows = (f"{json.dumps(str(key), ensure_ascii=False)}: {_written(item)}" for key, item in value.items())
    return "{\n" + ",\n".join(rows) + "\n}"


def _version(name: str) -> tuple[int, int]:
    """What changes when a file does."""
    try:
        found = Path(name).expanduser().stat()
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=8)
def _at(name: str, changed: int, size: int) -> LearnedPolicy:
    """A file's policy, kept: each job asks for it, and reading it takes as long as some hundred scores."""
    return LearnedPolicy.read(_data(name), name)


def _data(name: str) -> Any:
    try:
        with Path(name).expanduser().open("rb") as file:
            found = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    if len(found) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES:,} bytes: no learned routing policy")
    try:
        return json.loads(found)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no JSON: {error}") from None


def _model(data: Mapping[str, Any], where: str) -> RouteModel:
    shape = _table(data.get("shape"), f"{where}: model.shape")
    if set(shape) != set(NAMES):
        raise UsageError(f"{where}: model.shape must have {', '.join(NAMES)}")
    rows = tuple(_row(shape[name], 4, f"{where}: model.shape[{name!r}]") for name in NAMES)
    if any(row[1] < LEAST for row in rows):
        raise UsageError(f"{where}: model.shape: the second number of a row, a deviation, must be at least {LEAST:g}")
    return RouteModel(
        _row(data.get("bias"), 2, f"{where}: model.bias"),  # type: ignore[arg-type]
        rows,  # type: ignore[arg-type]
        _rows(data, "kinds", 2, where),
        _rows(data, "words", 3, where),
    )


def _rows(data: Mapping[str, Any], key: str, width: int, where: str) -> Any:
    table = _table(data.get(key), f"{where}: model.{key}")
    return {name: _row(row, width, f"{where}: model.{key}[{name!r}]") for name, row in table.items()}


def _row(value: Any, width: int, where: str) -> tuple[float, ...]:
    """So many finite numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != width:
        raise UsageError(f"{where} must be {width} numbers")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not -MOST <= number <= MOST:
            raise UsageError(f"{where}: {number!r} is no finite number from -{MOST:g} to {MOST:g}")
    return tuple(map(float, value))


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} must be an object")
    return value


def _name(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {key} must be the name or role of a model")
    return value
