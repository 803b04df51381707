"""Replies that are known already: what a cache of them is to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .llm import LLM
    from .llm_types import Prepared
    from .messages import LLMResult


class Lease(Protocol):
    """What the cache says to one call: the reply, or that this call is the one that gets it. Either `end` or `give_up`
    is called, once."""

    known: LLMResult | None
    """The reply that there is."""
    key: str
    """By which the cache knows it again."""

    async def keep(self, result: LLMResult) -> None:
        """Takes over a reply that has come."""

    def end(self) -> None:
        """The call has its reply."""

    def give_up(self) -> None:
        """The call has none: the next one that asks the same has to get it."""


class Replies(Protocol):
    """A cache of replies, as one job sees it."""

    async def lease(self, llm: LLM, prepared: Prepared) -> Lease:
        """What is known of a call; waits for another one that asks the same at the moment."""
