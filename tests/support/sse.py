"""A reader of a job's event stream, as a client would write it: parse, resume, put the answer together."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2


@dataclass(frozen=True)
class Sent:
    """One event: its id (None: a live piece, or the server's last word), its channel, its data."""

    id: int | None
    channel: str
    data: dict[str, Any]


@dataclass
class Parser:
    """Takes bytes as they come and gives the events that are whole (WHATWG HTML, 9.2.6). `comments` counts those."""

    comments: list[str] = field(default_factory=list)
    retry: int | None = None
    _rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[Sent]:
        """The events that these bytes complete."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        for block in blocks:
            fields: dict[str, list[str]] = {}
            for line in block.decode().split("\n"):
                name, _, value = line.partition(":")
                fields.setdefault(name, []).append(value.removeprefix(" "))
            self.comments += fields.get("", [])
            if "retry" in fields:
                self.retry = int(fields["retry"][-1])
            if "data" in fields:
                number = int(fields["id"][-1]) if "id" in fields else None
                yield Sent(number, fields.get("event", ["message"])[-1], json.loads("\n".join(fields["data"])))


class Answer:
    """The text of a job's answer so far, out of live pieces and stored deltas, in whatever order they come.

    `part` counts the answers that were void before; `offset` counts Unicode characters. What is stored is right: a
    live piece that says otherwise came from a worker that has died since.
    """

    def __init__(self) -> None:
        self.part = 0
        self.text = ""
        self._stored_part = 0
        self._stored = 0
        """Characters of the last stored part that are known to be stored."""
        self._early: dict[int, str] = {}
        """Live pieces whose beginning has not come yet."""

    def take(self, event: Sent) -> None:
        """Takes an event of the stream over; those that are not about the answer change nothing."""
        data = event.data
        if event.channel != "answer" or "step_id" in data:
            return
        if data["status"] == "delta":
            if event.id is None:
                self._live(data["part"], data["offset"], data["content"])
            else:
                self._kept(data["part"], data["offset"], data["content"])
        elif data["status"] in ("start", "reset") and self._stored:
            self._stored_part, self._stored = self._stored_part + 1, 0
            self._turn_to(self._stored_part)

    def _live(self, part: int, offset: int, text: str) -> None:
        self._turn_to(part)
        if part == self.part and offset + len(text) > len(self.text):
            self._early[offset] = text
            self._join()

    def _kept(self, part: int, offset: int, text: str) -> None:
        self._turn_to(part)
        self._stored_part, self._stored = part, offset + len(text)
        if part != self.part:
            return
        assert offset <= len(self.text), "stored deltas come in order and without a gap, from the first event on"
        if self.text[offset : self._stored] != text[: len(self.text) - offset]:
            self.text = self.text[:offset]
            self._early.clear()
        self.text += text[len(self.text) - offset :]
        self._join()

    def _join(self) -> None:
        for offset in sorted(self._early):
            if offset > len(self.text):
                break
            self.text += self._early.pop(offset)[len(self.text) - offset :]

    def _turn_to(self, part: int) -> None:
        if part > self.part:
            self.part, self.text = part, ""
            self._early.clear()


async def sent(chunks: AsyncIterable[bytes], parser: Parser | None = None) -> AsyncIterator[Sent]:
    """The events of a stream of bytes."""
    parser = parser or Parser()
    async for chunk in chunks:
        for event in parser.feed(chunk):
            yield event


async def read(
    client: httpx2.AsyncClient, job_id: str, last: int | None = None, *, until: int | None = None
) -> list[Sent]:
    """The stored events after `last`, live ones left out: all until the stream ends, or the first `until`."""
    found: list[Sent] = []
    headers = {} if last is None else {"last-event-id": str(last)}
    async with client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for event in sent(response.aiter_raw()):
            if event.id is not None:
                found.append(event)
                if len(found) == until:
                    break
    return found
