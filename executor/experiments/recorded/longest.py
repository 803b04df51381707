"""The routing policy that any other must beat: the longest texts to the strong model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from registry.errors import UsageError
from registry.models import ModelRegistry
from registry.routing import Choice, RouteRequest, RoutingPolicy, named


@dataclass(frozen=True, slots=True)
class Longest(RoutingPolicy):
    """Texts of at least `threshold` characters to the strong model, of `models` (weak, strong): a baseline that knows
    nothing of the tasks."""

    name: ClassVar[str] = "longest"
    models: tuple[str, str]
    threshold: float

    @classmethod
    def read(cls, value: Any) -> Longest | None:
        """The policy where `routing` names it; None where it is another one. Raises UsageError."""
        if value == cls.name:
            value = {"use": cls.name}
        if not isinstance(value, Mapping) or value.get("use") != cls.name:
            return None
        if unknown := sorted(str(key) for key in value if key not in ("use", "models", "threshold")):
            raise UsageError(f'routing "longest" has no {unknown[0]!r}: there are models and threshold')
        models, threshold = value.get("models", ["fast", "reasoning"]), value.get("threshold")
        if (
            not isinstance(models, list | tuple)
            or len(models) != 2
            or not all(isinstance(name, str) for name in models)
        ):
            raise UsageError(f'routing "longest": models = {models!r}: must be the weak and the strong one')
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not math.isfinite(threshold):
            raise UsageError(
                f'routing "longest": threshold = {threshold!r}: must be a number of characters; texts '
                "of at least so many go to the strong model"
            )
        return cls((models[0], models[1]), threshold)

    def score(self, request: RouteRequest) -> float:
        """The text's length in characters."""
        return float(len(request.task))

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The strong model for a long text."""
        score = self.score(request)
        strong = score >= self.threshold
        told = f"{score:.0f} characters, {'at least' if strong else 'less than'} {self.threshold:g}"
        return Choice(named(models, self.models[strong]), told, score)

    def check(self, models: ModelRegistry) -> None:
        """Raises UsageError where one of the two models is not there."""
        for name in self.models:
            named(models, name)

    def to_json(self) -> Mapping[str, Any]:
        """The policy as an arm's `routing` has it."""
        return {"use": self.name, "models": list(self.models), "threshold": self.threshold}
