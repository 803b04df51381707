"""Public twins for tests: a scripted model and a clock that does not wait. They pass through the same template
as real models: retries, limits, refusals, records and budgets behave alike."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from .clock import SYSTEM_CLOCK, Clock
from .errors import UsageError
from .llm import LLM
from .llm_types import ChatRequest, Prepared
from .messages import FinishReason, LLMResult, Message, StreamChunk, ToolCall, Usage
from .prices import Price
from .tokens import estimate_messages, estimate_text

Reply: TypeAlias = str | Message | LLMResult | BaseException | Sequence[ToolCall]


class ScriptedLLM(LLM):
    """A model that answers from a list, or from a (sync or async) function of the request.

    A reply is a text, a Message, an LLMResult, an exception to raise, or a list of ToolCalls. `requests` records every
    request in order. Without `abilities` it has them all. A list that is used up is a UsageError. `chunk_size` is the
    number of characters per streamed piece.
    """

    dialect = "scripted"

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[ChatRequest], Any],
        *,
        abilities: Mapping[str, bool] | None = None,
        context_size: int = 128_000,
        max_output_tokens: int = 4_096,
        model_id: str = "scripted",
        price: Price | None = None,
        clock: Clock = SYSTEM_CLOCK,
        chunk_size: int = 16,
    ) -> None:
        if abilities is None:
            abilities = {"tool_call": True, "tool_choice": True, "json_mode": True, "streaming": True}
        super().__init__(
            model_id,
            abilities=abilities,
            context_size=context_size,
            max_output_tokens=max_output_tokens,
            price=price,
            clock=clock,
        )
        self.requests: list[ChatRequest] = []
        self._reply = replies if callable(replies) else None
        self._script = [] if callable(replies) else list(replies)
        self._chunk_size = chunk_size
        self._call_ids: list[int] = []

    def prepare(self, request: ChatRequest) -> Prepared:
        """The body is what the request says, as JSON; the output bound is the limit that was asked for."""
        messages = b",".join(map(_wire, request.messages))
        asked = {
            "model": self.model_id,
            "max_tokens": request.max_tokens,
            "tools": [[tool.name, tool.description, tool.parameters] for tool in request.tools],
            "tool_choice": request.tool_choice,
            "response_format": request.response_format,
        }
        rest = json.dumps({key: value for key, value in asked.items() if value}, default=str).encode()
        return Prepared(request, b'{"messages":[' + messages + b"]," + rest[1:], request.max_tokens)

    async def send(self, prepared: Prepared) -> Any:
        """The next reply of the script; an exception in it is raised."""
        self.requests.append(prepared.request)
        await asyncio.sleep(0)
        if self._reply is not None:
            reply = self._reply(prepared.request)
            if inspect.isawaitable(reply):
                reply = await reply
        elif self._script:
            reply = self._script.pop(0)
        else:
            raise UsageError(f"the script of {self.model_id!r} has no reply left for call {len(self.requests)}")
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def parse(self, reply: Any, prepared: Prepared) -> LLMResult:
        """The reply as a result, with estimated usage where the script gives none."""
        if isinstance(reply, LLMResult):
            return replace(reply, model=reply.model or self.model_id)
        if isinstance(reply, str):
            message = Message.assistant(reply)
        elif isinstance(reply, Message):
            message = reply
        elif isinstance(reply, ToolCall):
            message = Message.assistant(tool_calls=[reply])
        else:
            message = Message.assistant(tool_calls=[self._call(call) for call in reply])
        output = max(1, estimate_text(message.content))
        usage = Usage(estimate_messages(prepared.request.messages), min(output, (prepared.output_bound or 1 << 60) - 1))
        finish: FinishReason = "tool_calls" if message.tool_calls else "stop"
        return LLMResult(message, usage, finish, self.model_id)

    def _call(self, call: Any) -> ToolCall:
        if isinstance(call, ToolCall):
            return call
        name, arguments = call  # ("search", {"q": "x"}) for short
        self._call_ids.append(len(self._call_ids) + 1)
        return ToolCall(f"call_{self._call_ids[-1]}", name, arguments, json.dumps(arguments))

    async def open_stream(self, prepared: Prepared) -> AsyncGenerator[StreamChunk, None]:
        """The reply in pieces of `chunk_size` characters."""
        result = self.parse(await self.send(prepared), prepared)
        text = result.message.content
        for start in range(0, len(text), self._chunk_size):
            yield StreamChunk(text[start : start + self._chunk_size])
            await asyncio.sleep(0)
        yield StreamChunk(result=result)


def _wire(message: Message) -> bytes:
    """A message's JSON; memoised on the message."""
    known = message.wire.get("scripted")
    if known is None:
        text = json.dumps(message.to_json(), ensure_ascii=False, default=str)
        known = message.wire["scripted"] = text.encode("utf-8", "replace")
    return bytes(known)


class FakeClock:
    """A clock that jumps: `sleep` moves it on at once and notes the wait in `sleeps`."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.now = start
        self.sleeps: list[float] = []

    def time(self) -> float:
        """The fake time."""
        return self.now

    def monotonic(self) -> float:
        """The fake time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Moves the time on by `seconds`, lets others run once."""
        self.sleeps.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)
