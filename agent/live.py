"""The direct answer mode: the loop's own turn is streamed to the reader while it is written."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

from registry.errors import LLMConnectionError
from registry.messages import LLMResult, StreamChunk

from .events import Emitter

_ANSWER = re.compile(r'"answer"\s*:\s*"')
_FINAL = re.compile(r'"type"\s*:\s*"final_answer"')


class LiveAnswer:
    """Hands on the text of turns as `answer` events; a turn that turns out not to be the answer is reset. `told`: how
    far the answer came in another process (started, done); what was shown of one that is not done is void."""

    def __init__(self, emit: Emitter, mode: str, told: Collection[str] = ()) -> None:
        self.emit, self.mode = emit, mode
        self.started, self.done = "start" in told, "done" in told
        self.shown = ""

    async def turn(self, chunks: AsyncGenerator[StreamChunk, None], begun: str = "") -> LLMResult:
        """Streams one turn, which goes on from the text `begun`; returns its result."""
        if not self.shown:
            self._show(begun)
        reader = AnswerString() if self.mode == "json" else None
        async with aclosing(chunks) as stream:
            async for chunk in stream:
                if chunk.reset:
                    self.void()
                    reader = AnswerString() if reader is not None else None
                elif chunk.text:
                    self._show(chunk.text if reader is None else reader.feed(chunk.text))
                if chunk.result is not None:
                    return chunk.result
        raise LLMConnectionError("the stream ended before the model had finished")

    def void(self) -> None:
        """What was shown is not the answer."""
        if self.shown:
            self.emit("answer", status="reset")
            self.shown = ""

    def accept(self, answer: str) -> None:
        """The run's answer stands: what is missing of it follows, what differs is replaced."""
        if self.done:
            return
        if not answer.startswith(self.shown):
            self.void()
        self._show(answer[len(self.shown) :])
        self.emit("answer", status="done")

    def _show(self, text: str) -> None:
        if not text:
            return
        if not self.started:
            self.started = True
            self.emit("answer", status="start")
        self.shown += text
        self.emit("answer", status="delta", content=text)


class AnswerString:
    """Reads the `answer` string out of a JSON action that arrives in pieces. `feed` gives what is new of it."""

    def __init__(self) -> None:
        self._text, self._start, self._read = "", -1, 0

    def feed(self, piece: str) -> str:
        """The characters of the answer that this piece completes, decoded."""
        self._text += piece
        if self._start < 0:
            found = _ANSWER.search(self._text)
            if found is None or not _FINAL.search(self._text[: found.start()]):
                return ""
            self._start = self._read = found.end()
        end = self._read
        while end < len(self._text) and self._text[end] != '"':
            if self._text[end] == "\\":
                width = 6 if self._text[end + 1 : end + 2] == "u" else 2
                pair = width == 6 and self._text[end + 2 : end + 4].lower() in ("d8", "d9", "da", "db")
                width = 12 if pair else width
                if end + width > len(self._text):
                    break
                end += width
            else:
                end += 1
        raw, self._read = self._text[self._read : end], end
        if not raw:
            return ""
        try:
            return str(json.loads(f'"{raw}"', strict=False))
        except ValueError:
            return ""
