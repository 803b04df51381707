"""The second phase: the trace of a run becomes the reader's answer, streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import structlog

from registry.context import calling
from registry.errors import LLMError
from registry.fallback import alternatives, change_of, is_outage
from registry.llm import LLM
from registry.messages import Message, Usage
from registry.models import ModelRegistry
from registry.text import cut_middle, load_prompt, marked, unforgeable_marker

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
    """What the synthesis model is asked; the work stands between lines that it can't forge, however it was cut."""
    work = marked(trace, "the work", unforgeable_marker([query, trace]))
    prompt = load_prompt("agent", "synthesis_input").substitute(query=query, trace=work)
    return [Message.system(load_prompt("agent", "synthesis").substitute()), Message.user(prompt)]


async def stream_synthesis(
    llm: LLM,
    messages: Sequence[Message],
    fallback: str,
    emit: Emit,
    spent: list[Usage] | None = None,
    *,
    models: ModelRegistry | None = None,
) -> AsyncGenerator[AnswerDelta, None]:
    """Streams the answer to `messages`. While a provider is out, the next model of its chain in `models` writes it;
    where that fails too, or nothing readable comes, the fallback text stands. A reset voids pieces already sent.

    Every piece is an `answer` event too, every change of model a `fallback` event. `spent` collects the usage. Raises
    nothing of the provider's; a cancellation passes through.
    """
    emit("answer", status="start")
    chain = (llm, *alternatives(models, llm))
    writer = _Writer(emit, spent)
    with calling(role="synthesis"):
        for model, successor in zip(chain, (*chain[1:], None), strict=True):
            async with aclosing(writer.stream(model, messages)) as deltas:
                async for delta in deltas:
                    yield delta
            if successor is None or writer.failed is None or not is_outage(writer.failed):
                break
            emit("fallback", **change_of(models, model, successor, writer.failed.code).to_json())
            if writer.voids():
                yield AnswerDelta(reset=True)
    if writer.failed is not None or not writer.text.strip():
        if writer.voids():
            yield AnswerDelta(reset=True)
        if fallback:
            emit("answer", status="delta", content=fallback)
            yield AnswerDelta(fallback)
    emit("answer", status="done")


class _Writer:
    """What is written of an answer so far: `text` since the last reset, and the error that the model ended with."""

    def __init__(self, emit: Emit, spent: list[Usage] | None) -> None:
        self.emit, self.spent = emit, spent
        self.text = ""
        self.failed: LLMError | None = None

    async def stream(self, llm: LLM, messages: Sequence[Message]) -> AsyncGenerator[AnswerDelta, None]:
        """One model's answer, piece by piece; what it fails with is noted."""
        self.failed = None
        try:
            async with aclosing(llm.stream_chat(messages)) as chunks:
                async for chunk in chunks:
                    if chunk.reset:
                        self.text = ""
                        self.emit("answer", status="reset")
                        yield AnswerDelta(reset=True)
                    elif chunk.text:
                        self.text += chunk.text
                        self.emit("answer", status="delta", content=chunk.text)
                        yield AnswerDelta(chunk.text)
                    if chunk.result is not None:
                        self._paid(chunk.result.usage or Usage.unknown())
        except LLMError as error:
            log.warning("synthesis_failed", model=llm.name, error=str(error), code=error.code)
            self._paid(error.usage)
            self.failed = error

    def voids(self) -> bool:
        """Whether pieces were sent; they are void from now on."""
        if not self.text:
            return False
        self.text = ""
        self.emit("answer", status="reset")
        return True

    def _paid(self, usage: Usage | None) -> None:
        if self.spent is not None and usage is not None:
            self.spent.append(usage)
