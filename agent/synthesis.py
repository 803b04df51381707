"""The second phase: the trace of a run becomes the reader's answer, streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import structlog

from registry.context import calling
from registry.errors import LLMError
from registry.llm import LLM
from registry.messages import Message, Usage
from registry.text import cut_middle, load_prompt

from .events import Emit

RESULT_CHARS = 2_000
"""Characters of each tool result that the synthesis sees."""

log = structlog.get_logger(__name__)


class AnswerDelta(str):
    """A piece of the answer. One with `reset` is empty and says that all pieces before it are void."""

    __slots__ = ("reset",)
    reset: bool

    def __new__(cls, text: str = "", *, reset: bool = False) -> AnswerDelta:
        delta = super().__new__(cls, text)
        delta.reset = reset
        return delta


def format_trace(messages: Sequence[Message]) -> str:
    """The work as text: what was said, called and found; system messages are left out."""
    lines = []
    for message in messages:
        if message.role == "system":
            continue
        if message.role == "tool":
            lines.append(
                f"[result{', an error' if message.is_error else ''}] {cut_middle(message.content, RESULT_CHARS)}"
            )
            continue
        if message.content.strip():
            lines.append(f"[{message.role}] {cut_middle(message.content, RESULT_CHARS)}")
        lines += [f"[call] {call.name} {dict(call.arguments)}" for call in message.tool_calls]
    return "\n".join(lines)


def synthesis_messages(query: str, trace: str) -> list[Message]:
    """What the synthesis model is asked."""
    prompt = load_prompt("agent", "synthesis_input").substitute(query=query, trace=trace)
    return [Message.system(load_prompt("agent", "synthesis").substitute()), Message.user(prompt)]


async def stream_synthesis(
    llm: LLM, messages: Sequence[Message], fallback: str, emit: Emit, spent: list[Usage] | None = None
) -> AsyncGenerator[AnswerDelta, None]:
    """Streams the answer to `messages`; where that fails, the fallback, after a reset if pieces were already sent.

    Every piece is an `answer` event too. `spent` collects the usage. Raises nothing of the provider's; a cancellation
    passes through.
    """
    emit("answer", status="start")
    sent = False
    failed: str | None = None
    try:
        with calling(role="synthesis"):
            async with aclosing(llm.stream_chat(messages)) as chunks:
                async for chunk in chunks:
                    if chunk.reset:
                        emit("answer", status="reset")
                        sent = False
                        yield AnswerDelta(reset=True)
                    elif chunk.text:
                        sent = True
                        emit("answer", status="delta", content=chunk.text)
                        yield AnswerDelta(chunk.text)
                    if chunk.result is not None:
                        if spent is not None:
                            spent.append(chunk.result.usage or Usage.unknown())
                        if chunk.result.finish_reason == "length":
                            failed = None if sent else "cut before any text"
    except LLMError as error:
        log.warning("synthesis_failed", error=str(error), code=error.code)
        if spent is not None and error.usage is not None:
            spent.append(error.usage)
        failed = error.code
    if failed is not None or not sent:
        if sent:
            emit("answer", status="reset")
            yield AnswerDelta(reset=True)
        if fallback:
            emit("answer", status="delta", content=fallback)
            yield AnswerDelta(fallback)
    emit("answer", status="done")
