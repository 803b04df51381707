"""The policy `cascade`: the cheap model first, a stronger one where its work did not turn out well enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import UsageError
from .routing import Choice, RouteRequest, RoutingPolicy, Trial, named

if TYPE_CHECKING:
    from .models import ModelRegistry

THRESHOLD = 0.7
"""How sure the cheap model must be of its work. Models overrate themselves: below this they have doubts by their own
account. What fits best is a matter of the models and the work; an experiment with `sweep` finds it."""


@dataclass(frozen=True, slots=True)
class Cascade(RoutingPolicy):
    """Each of `models` (names or roles, the cheapest first) is tried once, the last one as if it were alone.

    The next one begins anew when the work on one has failed, when a check found its result wrong, or when the model
    itself is less than `threshold` sure of it. 0: it is not asked. One that is asked and gives no readable answer
    counts as unsure: the cost of that is bounded (the tries before), that of an unsure result is not. `check`: results
    of all but the last get the step check even where the job does not ask for it.
    """

    name: ClassVar[str] = "cascade"
    models: tuple[str, ...] = ("fast", "reasoning")
    threshold: float = THRESHOLD
    check_results: bool = False

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise UsageError("a cascade needs two models at least, the cheapest first")
        if not (math.isfinite(self.threshold) and 0 <= self.threshold <= 1):
            raise UsageError(f"the threshold of a cascade must be from 0 to 1, not {self.threshold!r}")

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The first one."""
        names = self.names(models)
        return Choice(names[0], "cascade: the cheapest first" if len(names) > 1 else "cascade: there is but one model")

    def escalate(self, request: RouteRequest, models: ModelRegistry, tried: Trial) -> Choice | None:
        """The next one, where there is one and a reason for it."""
        names = self.names(models)
        place = names.index(tried.model) + 1 if tried.model in names else len(names)
        why = self._why(tried) if place < len(names) else None
        return None if why is None else Choice(names[place], f"cascade: {why}")

    def asks(self, request: RouteRequest, models: ModelRegistry, model: str) -> bool:
        """All but the last are asked how sure they are, unless the threshold is 0."""
        return self.threshold > 0 and self._has_next(models, model)

    def checks(self, request: RouteRequest, models: ModelRegistry, model: str) -> bool:
        """Results of all but the last are checked, where the policy says so."""
        return self.check_results and self._has_next(models, model)

    def check(self, models: ModelRegistry) -> None:
        """All its models must be there."""
        self.names(models)

    def names(self, models: ModelRegistry) -> tuple[str, ...]:
        """The models' registered names, each once: roles may come to the same model. Raises UsageError."""
        return tuple(dict.fromkeys(named(models, name) for name in self.models))

    def to_json(self) -> Mapping[str, Any]:
        """The policy as `policy_of` reads it."""
        return {
            "use": self.name,
            "models": list(self.models),
            "threshold": self.threshold,
            "check": self.check_results,
        }

    def _has_next(self, models: ModelRegistry, model: str) -> bool:
        return model in (names := self.names(models)) and model != names[-1]

    def _why(self, tried: Trial) -> str | None:
        if tried.error is not None:
            return f"{tried.model} failed: {tried.error}"
        if tried.check:
            return f"the result of {tried.model} did not pass its checks"
        if tried.confidence is not None and tried.confidence < self.threshold:
            return f"{tried.model} is {tried.confidence:.2f} sure of its result, which is less than {self.threshold:g}"
        if tried.asked and tried.confidence is None and self.threshold > 0:
            return f"{tried.model} did not say how sure it is of its result"
        return None
