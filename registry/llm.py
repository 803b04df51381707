"""The one way to a model: prepare, reserve, gate, send, settle, record, for every call of every kind.

An adapter knows its provider and nothing else; what all calls share stands here once.
"""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from .attempt import Attempt
from .clock import SYSTEM_CLOCK, Clock
from .errors import ContentFilterError, LLMConnectionError, LLMError, RefusalError
from .gate import Gate, ProviderGate
from .gate_limits import NO_LIMITS, Limits
from .llm_types import INHERIT, Abilities, CallRecord, ChatRequest, Prepared, tool_choice_of, tool_specs
from .messages import LLMResult, Message, StreamChunk, Usage
from .prices import Price
from .redaction import outgoing
from .replies import Replies
from .retry import RetryPolicy, Tries

MAX_LESSONS = 4
"""Refused parameters a call may drop or rename before the refusal stands."""


class Scope(Protocol):
    """What a job wants to know and to say about its calls: the budget's and the ledger's place."""

    def recall(self, llm: LLM) -> LLMResult | None:
        """The reply to this call where the job had it already, before its worker changed: it is not paid for again."""

    async def reserve(self, llm: LLM, prepared: Prepared) -> Prepared:
        """Sets aside what the call may cost at most; may lower its output bound; raises BudgetExceededError."""

    async def sending(self, llm: LLM, prepared: Prepared) -> None:
        """Returns when a call that was let in may go out: it is sent right after."""

    def released(self, prepared: Prepared) -> None:
        """Takes back what was set aside for a call that was never sent. Must not wait."""

    async def record(self, record: CallRecord) -> None:
        """Takes note of a try, paid for or not, before its result is used."""

    def abandoned(self, record: CallRecord) -> None:
        """Takes note of a try that was cancelled on its way. Must not wait: the caller is being cancelled."""


@dataclass(slots=True)
class Taught:
    """What a model's server taught by refusing: abilities it lacks, and its context's size in tokens."""

    refused: set[str] = field(default_factory=set)
    context_size: int | None = None


class LLM(ABC):
    """A model behind a provider. Adapters fill in `prepare`, `send`, `parse`, `open_stream`, and `learn`.

    `context_size` and `max_output_tokens` are tokens, None where unknown. `price` None means unknown. `limits`: what
    the provider is known to allow; its `gate` keeps them. Without one a model has a gate of its own.
    """

    dialect: ClassVar[str] = "neutral"

    def __init__(
        self,
        model_id: str,
        *,
        abilities: Mapping[str, bool] | None = None,
        context_size: int | None = None,
        max_output_tokens: int | None = None,
        price: Price | None = None,
        retry: RetryPolicy | None = None,
        gate: Gate | None = None,
        limits: Limits = NO_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
        name: str | None = None,
    ) -> None:
        self.model_id = model_id
        self.name = name or model_id
        self._context_size = context_size
        self._taught = Taught()
        self.max_output_tokens = max_output_tokens
        self.price = price
        self.limits = limits
        self.retry = retry or RetryPolicy()
        self.gate: Gate = gate or ProviderGate()
        self.clock = clock
        self.scope: Scope | None = None
        self.replies: Replies | None = None
        self._abilities = Abilities(**dict(abilities or {}))
        self._random = random.Random()

    @property
    def abilities(self) -> Mapping[str, bool]:
        """What the model can do, less what the server has refused so far."""
        refused = self._taught.refused
        if not refused:
            return self._abilities
        return {name: known and name not in refused for name, known in self._abilities.items()}

    def refuse(self, ability: str) -> None:
        """Remembers, for all users of this model, that the server refuses an ability."""
        self._taught.refused.add(ability)

    def refuses(self, ability: str) -> bool:
        """Whether the server has refused this ability."""
        return ability in self._taught.refused

    @property
    def context_size(self) -> int | None:
        """Tokens; the smaller of what was set and what the server said when a conversation was too long for it."""
        sizes = [size for size in (self._context_size, self._taught.context_size) if size is not None]
        return min(sizes) if sizes else None

    @context_size.setter
    def context_size(self, size: int | None) -> None:
        self._context_size = size

    def learn_context_size(self, size: int) -> None:
        """Remembers, for all users of this model, how many tokens the server says its context has."""
        self._taught.context_size = size

    def scoped(self, scope: Scope) -> LLM:
        """The same model, its calls bound to a job's budget and ledger. The client and all it learned are shared."""
        twin = copy.copy(self)
        twin.scope = scope
        return twin

    def remembering(self, replies: Replies) -> LLM:
        """The same model, whose replies are looked up in a cache first, and kept there."""
        twin = copy.copy(self)
        twin.replies = replies
        return twin

    @property
    def endpoint(self) -> str:
        """The address of the server, where it has one."""
        return ""

    def warm_up(self) -> None:  # noqa: B027 - nothing to import here
        """Imports what the first call needs, which may take seconds: it can be called in a thread. Opens nothing."""

    async def aclose(self) -> None:  # noqa: B027 - nothing to close here
        """Closes the running loop's client, where there is one."""

    # What an adapter knows of its provider

    @abstractmethod
    def prepare(self, request: ChatRequest) -> Prepared:
        """Makes the body; raises UsageError for what the provider can't be asked."""

    @abstractmethod
    async def send(self, prepared: Prepared) -> Any:
        """One HTTP exchange; raises the matching LLMError."""

    @abstractmethod
    def parse(self, reply: Any, prepared: Prepared) -> LLMResult:
        """Reads a reply. Refusals and filtered answers come back as finish reasons."""

    @abstractmethod
    def open_stream(self, prepared: Prepared) -> AsyncGenerator[StreamChunk, None]:
        """Streams a reply; the last chunk has the result. A stream without a finish reason is an LLMConnectionError."""

    def learn(self, error: LLMError, prepared: Prepared) -> bool:
        """Whether the error taught something that makes the same request worth one immediate new try."""
        return False

    # What callers use

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Any = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        reasoning_effort: Any = INHERIT,
    ) -> LLMResult:
        """One turn of the model.

        `tools`: Tool objects, a ToolRegistry, or dicts with name, description and parameters. Raises LLMError and its
        kinds; RefusalError and ContentFilterError among them.
        """
        request = self._request(
            messages, tools, tool_choice, response_format, temperature, max_tokens, reasoning_effort, stream=False
        )
        tries = Tries(self.clock.monotonic() + self.retry.total)
        while True:
            try:
                return await self._try(request, tries)
            except LLMError as error:
                wait = self._next_try(error, request, tries)
            if wait:
                await self.clock.sleep(wait)

    async def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Any = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        reasoning_effort: Any = INHERIT,
    ) -> AsyncGenerator[StreamChunk, None]:
        """One turn of the model, piece by piece; the last chunk carries the result.

        When a try breaks off after text was handed on, a chunk with `reset` says that it is void before the next try.
        Raises as `chat` does.
        """
        request = self._request(
            messages, tools, tool_choice, response_format, temperature, max_tokens, reasoning_effort, stream=True
        )
        tries = Tries(self.clock.monotonic() + self.retry.total)
        while True:
            handed_on, since = False, None
            try:
                async with aclosing(self._stream(request, tries)) as chunks:
                    async for chunk in chunks:
                        since = self.clock.monotonic() if since is None else since
                        handed_on = handed_on or bool(chunk.text or chunk.reasoning)
                        yield chunk
                return
            except LLMError as error:
                if since is not None:
                    tries.deadline += self.clock.monotonic() - since  # it worked, for so long
                wait = self._next_try(error, request, tries)
            if handed_on:
                yield StreamChunk(reset=True)
            if wait:
                await self.clock.sleep(wait)

    # The template

    def _request(
        self,
        messages: Sequence[Message],
        tools: Any,
        tool_choice: Any,
        response_format: Mapping[str, Any] | None,
        temperature: float | None,
        max_tokens: int | None,
        reasoning_effort: Any,
        *,
        stream: bool,
    ) -> ChatRequest:
        if max_tokens is None:
            max_tokens = self.max_output_tokens
        elif self.max_output_tokens is not None:
            max_tokens = min(max_tokens, self.max_output_tokens)
        return ChatRequest(
            tuple(map(outgoing, messages)),
            tool_specs(tools),
            tool_choice_of(tool_choice),
            response_format,
            temperature,
            max_tokens,
            reasoning_effort,
            stream,
        )

    async def _try(self, request: ChatRequest, tries: Tries) -> LLMResult:
        if (known := self._recalled()) is not None:
            return _usable(known)
        prepared = await self._reserved(request, tries)
        going = Attempt(self, prepared, tries.attempt)
        try:
            result = await self._looked_up(going, tries)
            if result is None:
                async with self.gate.enter(self, prepared, tries) as admission:
                    await going.goes_out()
                    reply = await self.send(prepared)
                    going.answered = True
                    result = self._settled(self.parse(reply, prepared), prepared)
                    admission.used(result.usage)
        except LLMError as error:
            await going.failed(error)
            raise
        except BaseException:
            going.given_up()
            raise
        await going.ended(result)
        return _usable(result)

    async def _stream(self, request: ChatRequest, tries: Tries) -> AsyncGenerator[StreamChunk, None]:
        if (known := self._recalled()) is not None:
            yield StreamChunk(known.message.content, known.message.reasoning or "")
            yield StreamChunk(result=_usable(known))
            return
        prepared = await self._reserved(request, tries)
        going = Attempt(self, prepared, tries.attempt)
        try:
            result = await self._looked_up(going, tries)
            if result is not None:
                yield StreamChunk(result.message.content, result.message.reasoning or "")
            else:
                async with self.gate.enter(self, prepared, tries) as admission:
                    await going.goes_out()
                    async with aclosing(self.open_stream(prepared)) as chunks:
                        async for chunk in chunks:
                            going.answered = True
                            if chunk.result is None:
                                yield chunk
                            else:
                                result = self._settled(chunk.result, prepared)
                                if chunk.text or chunk.reasoning:
                                    yield StreamChunk(chunk.text, chunk.reasoning)
                    if result is None:
                        raise LLMConnectionError("the stream ended before the model had finished")
                    admission.used(result.usage)
        except LLMError as error:
            await going.failed(error)
            raise
        except BaseException:
            going.given_up()
            raise
        await going.ended(result)
        yield StreamChunk(result=_usable(result))

    def _recalled(self) -> LLMResult | None:
        return None if self.scope is None else self.scope.recall(self)

    async def _reserved(self, request: ChatRequest, tries: Tries) -> Prepared:
        prepared = self.prepare(request)
        if self.scope is None:
            return prepared
        since = self.clock.monotonic()
        prepared = await self.scope.reserve(self, prepared)
        tries.deadline += self.clock.monotonic() - since  # a wait for the budget is no wait for the provider
        return prepared

    async def _looked_up(self, going: Attempt, tries: Tries) -> LLMResult | None:
        since = self.clock.monotonic()
        known = await going.known()
        tries.deadline += self.clock.monotonic() - since  # a wait for somebody who asks the same is none of ours
        return known

    def _settled(self, result: LLMResult, prepared: Prepared) -> LLMResult:
        """Adds the cost, and calls a reply cut that reached the output limit exactly, whatever the server says."""
        usage, finish = self.priced(result.usage), result.finish_reason
        bound = prepared.output_bound
        if usage is not None and bound and usage.output_tokens >= bound and finish in ("stop", "tool_calls"):
            finish = "length"
        return replace(result, usage=usage, finish_reason=finish)

    def priced(self, usage: Usage | None) -> Usage | None:
        """A usage with its cost, where the price is known and the provider named none."""
        if usage is None or usage.cost is not None or self.price is None:
            return usage
        return replace(usage, cost=self.price.cost(usage), unpriced_calls=0)

    def _next_try(self, error: LLMError, request: ChatRequest, tries: Tries) -> float:
        """Seconds that the caller waits by itself before the next try. Raises the error when there is none."""
        if tries.learned < MAX_LESSONS and self.learn(error, self.prepare(request)):
            tries.learned += 1  # at once, and it counts as no try
            return 0.0
        if not error.retryable or tries.over or tries.attempt >= self.retry.tries:
            raise error
        wait = self.gate.hold(error, self.retry.wait(tries.attempt, error, self._random))
        if self.clock.monotonic() + max(wait, error.retry_after or 0.0) > tries.deadline:
            raise error
        tries.attempt += 1
        return wait


def _usable(result: LLMResult) -> LLMResult:
    if result.finish_reason == "refusal":
        raise RefusalError(result.message.content, usage=result.usage)
    if result.finish_reason == "content_filter":
        raise ContentFilterError(result.message.content, usage=result.usage)
    return result
