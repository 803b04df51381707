"""What takes over while a model's provider is out. It never happens inside a model: a caller starts again on the next
one, and says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .context import caller
from .errors import LLMError

if TYPE_CHECKING:
    from .llm import LLM
    from .models import ModelRegistry

T = TypeVar("T")

OUTAGES = frozenset({"connection", "timeout", "overloaded", "rate_limit", "provider_error"})
"""Codes of errors that say that the provider is out, once a model's own tries are used up. Not among them: what another
provider would be asked in vain (bad_request, context_length, refusal, budget_exceeded), and what the operator must put
right (auth, quota)."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """One change of model: from which to which (their registered names), the outage's code, and in which role."""

    model: str
    to: str
    error: str
    where: str

    def to_json(self) -> dict[str, str]:
        """The change as plain JSON data, which is the payload of the `fallback` event too."""
        return {"from": self.model, "to": self.to, "error": self.error, "where": self.where}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fallback:
        """Reads what `to_json` wrote."""
        return cls(data["from"], data["to"], data["error"], data["where"])


Told: TypeAlias = Callable[[Fallback], object]
"""Hears of each change of model."""


def is_outage(error: BaseException) -> bool:
    """Whether an error that a call ended with means that the provider is out."""
    return isinstance(error, LLMError) and error.code in OUTAGES


def alternatives(models: ModelRegistry | LLM | None, llm: LLM) -> tuple[LLM, ...]:
    """The models that take over for this one, in order; none where it is not registered in `models`.

    Raises UsageError where one of them is not registered: at the start, not in the middle of an outage.
    """
    from .models import ModelRegistry

    if not isinstance(models, ModelRegistry):
        return ()
    name = models.name_of(llm)
    return tuple(models.get(other) for other in models.fallbacks(name)) if name in models else ()


async def with_fallback(
    models: ModelRegistry | LLM | None, llm: LLM, call: Callable[[LLM], Awaitable[T]], told: Told | None = None
) -> T:
    """What `call(llm)` gives; while a provider is out, what the call gives with the next model of the chain.

    `told` hears of each change before the next call. Raises what the last call raised; other errors than outages are
    raised at once. Nothing is taken over from a call that failed.
    """
    chain = (llm, *alternatives(models, llm))
    for model, successor in pairwise(chain):
        try:
            return await call(model)
        except LLMError as error:
            if not is_outage(error):
                raise
            change = change_of(models, model, successor, error.code)
        if told is not None:
            told(change)
    return await call(chain[-1])


def change_of(models: ModelRegistry | LLM | None, model: LLM, to: LLM, error: str) -> Fallback:
    """A change of model in the role that is calling now."""
    from .models import ModelRegistry

    def name(llm: LLM) -> str:
        return models.name_of(llm) if isinstance(models, ModelRegistry) else llm.name

    return Fallback(name(model), name(to), error, caller().role)
