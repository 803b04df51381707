"""A scope for tests of models without a job."""

from __future__ import annotations

from registry.llm import LLM
from registry.llm_types import CallRecord, Prepared
from registry.messages import LLMResult, Usage


class Note:
    """Notes what becomes of calls."""

    def __init__(self) -> None:
        self.reserved = self.released_again = self.given_up = 0
        self.records: list[CallRecord] = []

    @property
    def usage(self) -> Usage:
        """What all calls cost."""
        costs = (Usage.unknown() if record.usage is None else record.usage for record in self.records)
        return sum(costs, Usage.zero())

    def recall(self, llm: LLM) -> LLMResult | None:
        return None

    async def reserve(self, llm: LLM, prepared: Prepared) -> Prepared:
        self.reserved += 1
        return prepared

    async def sending(self, llm: LLM, prepared: Prepared) -> None: ...

    def released(self, prepared: Prepared) -> None:
        self.released_again += 1

    async def record(self, record: CallRecord) -> None:
        self.records.append(record)

    def abandoned(self, record: CallRecord) -> None:
        self.given_up += 1
