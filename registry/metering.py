"""What a part of a job costs: a meter between a model and the scope behind it."""

from __future__ import annotations

from .llm import LLM, Scope
from .llm_types import CallRecord, Prepared
from .messages import LLMResult, Usage

_NOTHING = Usage.zero()


class Meter:
    """Adds up what the calls of one step, or of one tool call, cost, whatever becomes of them, and passes them on to
    the scope behind it."""

    def __init__(self) -> None:
        self.usage = _NOTHING

    def metered(self, llm: LLM) -> LLM:
        """The same model, its calls counted here too."""
        return llm.scoped(_MeteredScope(self, llm.scope))

    def add(self, usage: Usage | None) -> None:
        """One call; None: nobody knows what it cost."""
        self.usage += Usage.unknown() if usage is None else usage


class _MeteredScope:
    def __init__(self, meter: Meter, behind: Scope | None) -> None:
        self.meter, self.behind = meter, behind

    def recall(self, llm: LLM) -> LLMResult | None:
        return None if self.behind is None else self.behind.recall(llm)

    async def reserve(self, llm: LLM, prepared: Prepared) -> Prepared:
        return prepared if self.behind is None else await self.behind.reserve(llm, prepared)

    async def sending(self, llm: LLM, prepared: Prepared) -> None:
        if self.behind is not None:
            await self.behind.sending(llm, prepared)

    def released(self, prepared: Prepared) -> None:
        if self.behind is not None:
            self.behind.released(prepared)

    async def record(self, record: CallRecord) -> None:
        self.meter.add(record.usage)
        if self.behind is not None:
            await self.behind.record(record)

    def abandoned(self, record: CallRecord) -> None:
        self.meter.add(record.usage)
        if self.behind is not None:
            self.behind.abandoned(record)
