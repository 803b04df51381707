"""What readers of one job share: its newest events as bytes, made once for all, and text that is not stored yet."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from fastapi.sse import format_sse_event
from pydantic_core import to_json

from executor.json_lines import one_line

RING = (1_000, 1_000_000)
"""Events and bytes of a job's newest history that are kept in memory while somebody reads it."""
LIVE_BYTES = 256_000
"""Bytes of live pieces that are kept: they go when the text is stored, the oldest where storage takes long."""
LAST = 2**63 - 1
"""The highest seq there can be."""
CHUNK = 64 * 1024
"""Bytes after which what is sent at once is cut, between events: a server's buffer holds about as much."""


@dataclass(frozen=True, slots=True)
class Page:
    """Events after a position: their seqs and bytes; `position` is the seq up to which nothing is left out.

    `full`: there is more. `ended`: the job has ended, and this is the last of it.
    """

    seqs: Sequence[int]
    datas: Sequence[bytes]
    position: int
    full: bool
    ended: bool
    stored_text: tuple[int, int] = (0, 0)
    """Part and offset up to which the answer's text is stored, as far as this page knows."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the answer that runs ahead of its storage."""

    number: int
    part: int
    end: int
    data: bytes


def event_bytes(seq: int, ts: float, channel: str, step_id: str | None, payload: Mapping[str, Any]) -> bytes:
    """A stored event as it goes over the wire. The head's names are never the payload's."""
    head: dict[str, Any] = {"seq": seq, "ts": ts} | ({} if step_id is None else {"step_id": step_id})
    body = {name: value for name, value in payload.items() if name not in ("seq", "ts", "step_id")}
    return format_sse_event(data_str=one_line(to_json(head | body)).decode(), event=channel, id=str(seq))


def piece_bytes(part: int, offset: int, text: str) -> bytes:
    """A live piece as it goes over the wire: without an id, since it is not stored."""
    data = one_line(to_json({"status": "delta", "content": text, "offset": offset, "part": part}))
    return format_sse_event(data_str=data.decode(), event="answer")


def page_of(rows: Sequence[Any], limit: int) -> Page:
    """What the statement events.page gave. No rows: the job is gone, so nothing comes any more."""
    if not rows:
        return Page((), (), LAST, full=False, ended=True)
    events = [row for row in rows if row["seq"] is not None]
    full = rows[0]["found"] == limit or rows[0]["found"] > len(events)
    return Page(
        [row["seq"] for row in events],
        [event_bytes(row["seq"], row["ts"], row["channel"], row["step_id"], row["payload"]) for row in events],
        events[-1]["seq"] if full else rows[0]["last"],
        full=full,
        ended=rows[0]["ended"] and not full,
        stored_text=max((_text_end(row) for row in events), default=(0, 0)),
    )


def _text_end(row: Any) -> tuple[int, int]:
    payload = row["payload"]
    if row["channel"] != "answer" or "offset" not in payload:
        return 0, 0
    return payload.get("part", 0), payload["offset"] + len(payload.get("content", ""))


class Feed:
    """The newest part of a job's history. Readers hold positions in it, so a slow one costs nothing.

    Nothing after `base` and up to `seq` is missing; who is further behind reads from the database.
    """

    def __init__(self, job_id: str, base: int) -> None:
        self.job_id, self.base, self.seq = job_id, base, base
        self.ended = False
        self.events_came = self.bytes_came = 0
        """What was published in all, by which a reader's backlog is reckoned."""
        self._seqs: list[int] = []
        self._datas: list[bytes] = []
        self._size = 0
        self._pieces: deque[Piece] = deque()
        self._pieces_size = 0
        self._stored_text = (0, 0)
        self._numbers = count(1)
        self._last_number = 0
        self._chunk: tuple[tuple[int, int], tuple[bytes, int, int]] | None = None

    def publish(self, page: Page) -> None:
        """Takes the events over that were stored after `seq`."""
        self._chunk = None
        self._seqs.extend(page.seqs)
        self._datas.extend(page.datas)
        size = sum(map(len, page.datas))
        self._size += size
        self.events_came += len(page.seqs)
        self.bytes_came += size
        self.seq = max(self.seq, page.position)
        self.ended = page.ended
        self._evict()
        self._stored_text = max(self._stored_text, page.stored_text)
        while self._pieces and (self.ended or (self._pieces[0].part, self._pieces[0].end) <= self._stored_text):
            self._forget_piece()

    def live(self, part: int, offset: int, text: str) -> bool:
        """Takes a live piece; whether there is anything new in it."""
        end = offset + len(text)
        if self.ended or (part, end) <= self._stored_text:
            return False
        self._chunk = None
        if self._pieces and (part, offset) < (self._pieces[-1].part, self._pieces[-1].end):
            while self._pieces:  # another worker tells it anew
                self._forget_piece()
        self._last_number = next(self._numbers)
        piece = Piece(self._last_number, part, end, piece_bytes(part, offset, text))
        self._pieces.append(piece)
        self._pieces_size += len(piece.data)
        while self._pieces_size > LIVE_BYTES:
            self._forget_piece()
        return True

    def chunk(self, seq: int, piece: int) -> tuple[bytes, int, int]:
        """What follows the positions, from `base` on, and the positions after it: stored events, then live pieces."""
        if self._chunk is None or self._chunk[0] != (seq, piece):
            self._chunk = (seq, piece), self._join(seq, piece)
        return self._chunk[1]

    def _join(self, seq: int, piece: int) -> tuple[bytes, int, int]:
        first = bisect_right(self._seqs, seq)
        found: list[bytes] = []
        size = 0
        for index in range(first, len(self._seqs)):
            found.append(self._datas[index])
            size += len(self._datas[index])
            if size >= CHUNK and index + 1 < len(self._seqs):
                return b"".join(found), self._seqs[index], piece
        found.extend(each.data for each in self._pieces if each.number > piece)
        return b"".join(found), max(seq, self.seq), self._last_number

    def _evict(self) -> None:
        gone = 0
        while len(self._seqs) - gone > RING[0] or self._size > RING[1]:
            self._size -= len(self._datas[gone])
            gone += 1
        if gone:
            self.base = self._seqs[gone - 1]
            del self._seqs[:gone], self._datas[:gone]

    def _forget_piece(self) -> None:
        self._pieces_size -= len(self._pieces.popleft().data)
