"""One try of a call: its span, its time, and what the scope is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import telemetry
from .context import caller
from .errors import AbandonedError, LLMConnectionError, LLMError, LLMTimeoutError
from .llm_types import CallRecord, Prepared
from .messages import LLMResult, Usage
from .replies import Lease

if TYPE_CHECKING:
    from .llm import LLM


class Attempt:
    """One try of a call, from its reservation to its record: exactly one of `ended`, `failed`, `given_up` is called."""

    __slots__ = ("answered", "clock0", "lease", "llm", "number", "prepared", "sent", "span", "started")

    def __init__(self, llm: LLM, prepared: Prepared, number: int) -> None:
        self.llm, self.prepared, self.number = llm, prepared, number
        self.sent = self.answered = False
        self.lease: Lease | None = None
        self.started, self.clock0 = llm.clock.time(), llm.clock.monotonic()
        self.span = telemetry.chat(llm, prepared, number)

    async def known(self) -> LLMResult | None:
        """The reply, where the cache of replies has it, or is about to: then nothing is sent."""
        if self.llm.replies is None:
            return None
        self.lease = await self.llm.replies.lease(self.llm, self.prepared)
        self.started, self.clock0 = self.llm.clock.time(), self.llm.clock.monotonic()
        if self.lease.known is not None:
            self.span.set({"dagwright.cached": True})
        return self.lease.known

    async def goes_out(self) -> None:
        """It is sent now; a wait at the gate is no time of the model's."""
        if self.llm.scope is not None:
            await self.llm.scope.sending(self.llm, self.prepared)
        self.sent = True
        self.started, self.clock0 = self.llm.clock.time(), self.llm.clock.monotonic()

    async def ended(self, result: LLMResult) -> None:
        """It came to a result, which others may have once it is written down."""
        self.span.answered(result)
        try:
            if self.llm.scope is not None:
                await self.llm.scope.record(self._note(result, None))
            if self.lease is not None:
                await self.lease.keep(result)
        finally:
            if self.lease is not None:
                self.lease.end()

    async def failed(self, error: LLMError) -> None:
        """It came to an error; where a gate kept it outside it was never sent."""
        self.span.failed(error)
        if self.lease is not None:
            self.lease.give_up()
        if self.llm.scope is None:
            return
        if self.sent:
            await self.llm.scope.record(self._note(None, error))
        else:
            self.llm.scope.released(self.prepared)

    def given_up(self) -> None:
        """It was cancelled, or broke in a way nobody foresaw: if it was sent, nobody knows what it cost."""
        self.span.given_up()
        if self.lease is not None:
            self.lease.give_up()
        if self.llm.scope is None:
            return
        if self.sent:
            self.llm.scope.abandoned(self._note(None, AbandonedError()))
        else:
            self.llm.scope.released(self.prepared)

    def _note(self, result: LLMResult | None, error: LLMError | None) -> CallRecord:
        llm = self.llm
        usage = result.usage if result is not None else llm.priced(_failed_usage(error, answered=self.answered))
        elapsed = llm.clock.monotonic() - self.clock0
        lease = self.lease
        return CallRecord(
            caller(), llm.name, llm.model_id, self.prepared.request, result, error, usage,
            self.number, self.started, elapsed, self.prepared,
            lease is not None and lease.known is not None, None if lease is None else lease.key,
        )  # fmt: skip


def _failed_usage(error: LLMError | None, *, answered: bool) -> Usage | None:
    """What a failed try cost: what the provider said; unknown where it may have worked unseen, or had begun to answer;
    else nothing."""
    if error is not None and error.usage is not None:
        usage: Usage = error.usage
        return usage
    unknown = (LLMConnectionError, LLMTimeoutError, AbandonedError)
    return None if answered or isinstance(error, unknown) else Usage.zero()
