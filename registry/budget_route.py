"""The policy `budget`: the best model that the rest of the job's budget allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

from .budget import HIDDEN_TOKENS, MIN_OUTPUT_TOKENS, Amount, CallBound, Room
from .errors import UsageError
from .prices import MILLION
from .routing import Choice, RouteRequest, RoutingPolicy, named

if TYPE_CHECKING:
    from .models import ModelRegistry

PRIOR = (12_000, 1_500)
"""Input and output tokens that a step is expected to take before any step of the job has ended: three turns of an
agent, each with about 4,000 tokens of instructions, tools, results and history, and 500 of reply. A guess on the safe
side: the first step that ends replaces it."""
BYTES_PER_TOKEN = 4
"""Of a request, about: a budget counts a call's input by its bytes until it knows better."""
DEFAULT = ("reasoning", "general", "fast")
"""Roles that stand for the best model, the next one and the cheapest."""


@dataclass(frozen=True, slots=True)
class BudgetPolicy(RoutingPolicy):
    """The best of `models` (names or roles, the best first) with which this step and all that are left are expected to
    fit into what the budget leaves; nothing fits: the cheapest. What the budget sets aside for a call under way, which
    is more than the call will cost, must fit in beside this step, too: the call would be refused.

    A step is expected to take what the job's ended steps took on average, before the first one has ended `tokens`. At
    list prices without caches: what is saved by a cache comes on top. Without a budget, or where no price is known, it
    is the best. Left out, `models` are those of the roles reasoning, general and fast; where these are all the same,
    all models by their price, the dearest first.
    """

    name: ClassVar[str] = "budget"
    models: tuple[str, ...] = ()
    tokens: tuple[int, int] = PRIOR

    def __post_init__(self) -> None:
        if len(self.tokens) != 2 or min(self.tokens) < 0:
            raise UsageError(f"tokens must be input and output tokens of a step, such as {list(PRIOR)}")

    def choose(self, request: RouteRequest, models: ModelRegistry) -> Choice:
        """The best that fits."""
        names, room = self.names(models), request.room
        if room is None or (room.usd is None and room.tokens is None):
            return Choice(names[0], "budget: there is none, so the best model")
        taken = self.tokens if request.tokens is None else request.tokens
        steps = max(1, request.steps_left)
        costs = {name: expected(models, name, taken) for name in names}
        if room.usd is not None and all(cost is None for cost in costs.values()):
            return Choice(names[0], "budget: no price is known, so the best model")
        for name in names:
            if _fits(models, name, taken, steps, room):
                told = _told(costs[name], taken, steps)
                return Choice(name, f"budget: {told} for {_steps(steps)} fit into {_left(room)}")
        name = _cheapest(names, costs)
        told = _told(costs[name], taken, steps)
        return Choice(name, f"budget: nothing fits into {_left(room)}, so the cheapest: {told} for {_steps(steps)}")

    def check(self, models: ModelRegistry) -> None:
        """All its models must be there."""
        self.names(models)

    def names(self, models: ModelRegistry) -> tuple[str, ...]:
        """The models' registered names, the best first. Raises UsageError."""
        if self.models:
            return tuple(dict.fromkeys(named(models, name) for name in self.models))
        names = tuple(dict.fromkeys(models.resolve_name(role) for role in DEFAULT))
        return names if len(names) > 1 else _by_price(models)

    def to_json(self) -> Mapping[str, Any]:
        """The policy as `policy_of` reads it."""
        return {"use": self.name, "models": list(self.models), "tokens": list(self.tokens)}


def expected(models: ModelRegistry, name: str, tokens: tuple[int, int]) -> Decimal | None:
    """USD that a step of so many input and output tokens is expected to cost; None: the price is not known."""
    price = models.get(name).price
    return None if price is None else (tokens[0] * price.input + tokens[1] * price.output) / MILLION


def _fits(models: ModelRegistry, name: str, tokens: tuple[int, int], steps: int, room: Room) -> bool:
    cost, price = expected(models, name, tokens), models.get(name).price
    if room.usd is not None and cost is None:
        return False
    one = Amount(cost or Decimal(0), sum(tokens))
    largest = CallBound(BYTES_PER_TOKEN * tokens[0] + HIDDEN_TOKENS, price).amount(MIN_OUTPUT_TOKENS)
    return room.holds(Amount(one.usd * steps, one.tokens * steps)) and room.holds(one + largest)


def _cheapest(names: tuple[str, ...], costs: Mapping[str, Decimal | None]) -> str:
    """The one that costs least, the better one of equals; the last where not all is known."""
    known = [(cost, name) for name in names if (cost := costs[name]) is not None]
    return min(known, key=lambda pair: pair[0])[1] if len(known) == len(names) else names[-1]


def _by_price(models: ModelRegistry) -> tuple[str, ...]:
    """All models, the dearest first; those without a price, of which nobody knows, last."""
    names = models.names()
    costs = {name: expected(models, name, PRIOR) for name in names}
    return tuple(sorted(names, key=lambda name: -1 if (cost := costs[name]) is None else cost, reverse=True))


def _told(cost: Decimal | None, tokens: tuple[int, int], steps: int) -> str:
    total = f"{sum(tokens) * steps} tokens"
    return total if cost is None else f"${cost * steps:.3g} ({total})"


def _steps(steps: int) -> str:
    return "the last step" if steps == 1 else f"{steps} steps"


def _left(room: Room) -> str:
    parts = (
        None if room.usd is None else f"${max(room.usd, Decimal(0)):.3g}",
        None if room.tokens is None else f"{max(room.tokens, 0)} tokens",
    )
    return " and ".join(part for part in parts if part)
