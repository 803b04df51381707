"""What readers of one job share: every one gets everything once, in order, and the answer's text as it is."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from executor.log.front import is_public
from executor.log.stored import StoredLog
from executor.service import feed as module
from executor.service.feed import Feed, event_bytes, page_of
from registry.messages import Event
from tests.support.sse import Answer, Parser, Sent

SIZES = st.lists(st.integers(0, 7), max_size=12)


def row(event: Event, found: int, last: int, *, ended: bool = False) -> dict[str, Any]:
    return {
        "seq": event.seq, "ts": event.ts, "channel": event.channel, "step_id": event.step_id,
        "payload": event.payload, "found": found, "last": last, "ended": ended,
    }  # fmt: skip


def publish(feed: Feed, stored: list[Event]) -> None:
    """What the hub fetches of what is stored, in pages of four."""
    while True:
        found = [event for event in stored if event.seq > feed.seq and is_public(event.channel)][:4]
        last = stored[-1].seq if stored else 0
        rows = [row(event, len(found), last) for event in found]
        page = page_of(rows or [{"seq": None, "found": 0, "last": last, "ended": False}], 4)
        feed.publish(page)
        if not page.full:
            return


def parsed(data: bytes) -> list[Sent]:
    return list(Parser().feed(data))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SIZES, st.lists(st.tuples(st.integers(0, 11), st.integers(0, 40)), max_size=6), st.integers(1, 9))
def test_readers_get_what_lies_behind_their_position_once(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], readers: list[tuple[int, int]], room: int
) -> None:
    monkeypatch.setattr(module, "RING", (room, 700))
    monkeypatch.setattr(module, "CHUNK", 250)
    feed, stored = Feed("job", 0), list[Event]()
    positions = [[when, after, 0] for when, after in readers]
    got: list[list[int]] = [[] for _ in readers]
    for turn, size in enumerate(sizes):
        for _ in range(size):
            channel = "turn" if len(stored) % 3 == 2 else "step"
            stored.append(Event("job", len(stored) + 1, 1.0, channel, "s1", {"x": "y" * len(stored)}))
        publish(feed, stored)
        public = [event.seq for event in stored if is_public(event.channel)]
        held = [seq for seq in public if seq > feed.base]
        assert len(held) <= room
        for reader, seen in zip(positions, got, strict=True):
            if reader[0] > turn:
                continue
            while True:
                if reader[1] < feed.base:  # as the hub does: a page out of the database
                    older = [seq for seq in public if seq > reader[1]][:3]
                    seen.extend(older)
                    reader[1] = older[-1]
                    continue
                data, reader[1], reader[2] = feed.chunk(reader[1], reader[2])
                if not data:
                    break
                seen.extend(event.id or 0 for event in parsed(data))
    for (when, after), seen in zip(readers, got, strict=True):
        if when < len(sizes):
            assert seen == [event.seq for event in stored if is_public(event.channel) and event.seq > after]


WORDS = st.text("ab \u00e9\U0001f600", min_size=1, max_size=4)
OTHER = st.sampled_from(["reset", "start", "done", "flush", "store", "read", "drop", "move", "other"])
TEXT = st.tuples(st.just("text"), WORDS)
DEEDS = st.lists(st.one_of(TEXT, TEXT, st.tuples(OTHER, st.just(""))), max_size=40)


class Client:
    """A client that goes from server to server; only the first one hears live pieces."""

    def __init__(self, feeds: list[Feed]) -> None:
        self.feeds, self.at, self.seq, self.piece = feeds, 0, 0, 0
        self.answer, self.ids = Answer(), list[int]()

    def read(self) -> None:
        while True:
            data, seq, self.piece = self.feeds[self.at].chunk(self.seq, self.piece)
            if not data:
                return
            for event in parsed(data):
                self.answer.take(event)
                if event.id is not None:
                    self.ids.append(event.id)
            self.seq = seq

    def come_back(self, at: int) -> None:
        """With nothing but the last id."""
        self.at, self.seq, self.piece = at, self.ids[-1] if self.ids else 0, 0


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DEEDS)
@example([("text", "a"), ("text", "b"), ("store", "")])
@example([("text", "a"), ("text", "b"), ("read", ""), ("reset", ""), ("text", "b"), ("store", ""), ("text", "a")])
async def test_text_out_of_live_and_stored_pieces_is_the_answer(
    monkeypatch: pytest.MonkeyPatch, deeds: list[tuple[str, str]]
) -> None:
    feeds = [Feed("job", 0), Feed("job", 0)]
    log = StoredLog("job", None, uuid4(), live=lambda _, *piece: feeds[0].live(*piece))  # type: ignore[arg-type]
    log.merge_seconds = 1e6
    log._keep = log._new.append  # type: ignore[method-assign]
    client, latecomer, parts = Client(feeds), Client(feeds), [""]
    for deed, text in deeds:
        if deed == "text":
            log.append("answer", {"status": "delta", "content": text})
            parts[-1] += text
        elif deed in ("reset", "start", "done"):
            log.append("answer", {"status": deed})
            if deed != "done" and parts[-1]:
                parts.append("")
        elif deed == "other":
            log.append("phase", {"phase": "synthesizing"})
        elif deed == "flush":
            log.flush()
        elif deed == "store":
            for feed in feeds:
                publish(feed, log._new)
        elif deed == "read":
            client.read()
        else:
            client.come_back(client.at if deed == "drop" else 1 - client.at)
        assert parts[client.answer.part].startswith(client.answer.text)
    client.read()
    if parts[-1] and not {"drop", "move"} & dict(deeds).keys():  # nothing need be stored for it
        assert (client.answer.part, client.answer.text) == (len(parts) - 1, parts[-1])
    log.append("done", {"status": "completed"})
    for feed in feeds:
        publish(feed, log._new)
    for reader in (client, latecomer):
        reader.read()
        assert (reader.answer.part, reader.answer.text) == (len(parts) - 1, parts[-1])
        assert reader.ids == [event.seq for event in log._new]
    if log._timer is not None:
        log._timer.cancel()


def test_live_pieces_of_a_worker_that_died_give_way_to_what_is_stored() -> None:
    answer = Answer()
    answer.take(Sent(None, "answer", {"status": "delta", "part": 0, "offset": 0, "content": "what was lost"}))
    assert answer.text == "what was lost"
    answer.take(Sent(5, "answer", {"status": "delta", "part": 0, "offset": 0, "content": "what is"}))
    assert answer.text == "what is"
    answer.take(Sent(6, "answer", {"status": "delta", "part": 0, "offset": 7, "content": " stored"}))
    assert answer.text == "what is stored"


def test_a_piece_told_anew_replaces_the_ones_before() -> None:
    feed = Feed("job", 0)
    for offset, text in ((0, "one "), (4, "two "), (0, "uno "), (4, "due ")):
        assert feed.live(0, offset, text)
    data, _, _ = feed.chunk(0, 0)
    assert [event.data["content"] for event in parsed(data)] == ["uno ", "due "]


def test_live_pieces_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVE_BYTES", 1_000)
    feed = Feed("job", 0)
    for number in range(1_000):
        feed.live(0, number, "x")
    data, _, piece = feed.chunk(0, 0)
    assert 0 < len(data) <= 1_000
    assert parsed(data)[-1].data["offset"] == 999
    assert feed.chunk(0, piece)[0] == b""


def test_an_event_larger_than_the_ring_is_for_the_database() -> None:
    feed = Feed("job", 0)
    events = [Event("job", 1, 1.0, "step", None, {"x": "y" * 2_000_000}), Event("job", 2, 1.0, "step", None, {})]
    publish(feed, events)
    assert feed.base == 1
    assert [event.id for event in parsed(feed.chunk(1, 0)[0])] == [2]


def test_the_head_is_never_the_payloads() -> None:
    data = event_bytes(7, 1.5, "step", "s1", {"seq": 1, "ts": 2, "step_id": "s9", "text": "a\r\nb\u2028\n\nid: 9"})
    (event,) = parsed(data)
    assert event == Sent(7, "step", {"seq": 7, "ts": 1.5, "step_id": "s1", "text": "a\r\nb\u2028\n\nid: 9"})
    assert data.count(b"\n") == 4


def test_bytes_that_come_in_pieces_give_the_same_events() -> None:
    data = event_bytes(1, 1.0, "answer", None, {"text": "grün"}) + b": keep-alive\n\n" + b"retry: 5\n\n"
    parser = Parser()
    got = [event for byte in data for event in parser.feed(bytes([byte]))]
    assert got == [Sent(1, "answer", {"seq": 1, "ts": 1.0, "text": "grün"})]
    assert (parser.comments, parser.retry) == (["keep-alive"], 5)
