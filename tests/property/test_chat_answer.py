"""Whatever comes live, late, twice or never: a chat client reads each answer once, and the last one to its end."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from executor.service.chat.answer import VOID, ChatAnswer
from registry.messages import Event

USAGE = {"input_tokens": 1, "output_tokens": 1, "calls": 1, "cost_usd": None, "partial": False, "unpriced_calls": 1}
PIECES = st.lists(st.text("abc", min_size=1, max_size=4), max_size=6)
PARTS = st.lists(PIECES, min_size=1, max_size=4)


def stored(parts: list[list[str]], cuts: list[bool]) -> list[dict[str, Any]]:
    """The answers as the log stores them: pieces merged as the cuts say, a reset between two answers."""
    payloads: list[dict[str, Any]] = []
    number, cutting = 0, iter(cuts * 10)
    for place, pieces in enumerate(parts):
        payloads.append({"status": "reset" if place else "start"})
        offset, held = 0, ""
        for piece in pieces:
            held += piece
            if next(cutting, True):
                payloads.append({"status": "delta", "content": held, "offset": offset, "part": number})
                offset, held = offset + len(held), ""
        if held:
            payloads.append({"status": "delta", "content": held, "offset": offset, "part": number})
        number += bool(pieces)
    return payloads


def live(parts: list[list[str]]) -> list[tuple[int, int, str]]:
    """The same as pieces ahead of their storage."""
    found, number = [], 0
    for pieces in parts:
        offset = 0
        for piece in pieces:
            found.append((number, offset, piece))
            offset += len(piece)
        number += bool(pieces)
    return found


@given(PARTS, st.lists(st.booleans(), min_size=1, max_size=8), st.data(), st.booleans())
def test_each_answer_is_read_once(
    parts: list[list[str]], cuts: list[bool], data: st.DataObject, streamed: bool
) -> None:
    events, ahead = stored(parts, cuts), live(parts)
    taken = data.draw(st.lists(st.sampled_from(["event", "live", "lost", "again"]), max_size=40))
    answer, said, seq, passed = ChatAnswer("job_1"), "", 0, 0
    for what in [*taken, *["event"] * len(events)]:
        pieces: list[Any] = []
        if what == "event" and seq < len(events):
            pieces = list(answer.event(Event("job_1", seq + 1, 0.0, "answer", None, events[seq])))
            seq += 1
        elif what == "live" and passed < len(ahead):
            pieces = list(answer.live(*ahead[passed]))
            passed += 1
        elif what == "again" and passed:  # a worker tells it anew
            pieces = list(answer.live(*ahead[passed - 1]))
        elif what == "lost" and passed < len(ahead):
            passed += 1
        said += "".join(piece.content for piece in pieces)
    last = "".join(parts[-1]) if streamed else "another answer"
    done = {"answer": last, "status": "completed", "usage": USAGE, "elapsed": 1.0}
    said += "".join(piece.content for piece in answer.event(Event("job_1", 99, 0.0, "done", None, done)))
    texts = ["".join(pieces) for pieces in parts if pieces]
    shown = said.split(VOID)
    assert shown[-1] == last or (not last and shown[-1] == (texts or [""])[-1])
    assert len(shown) <= len(texts) + 1
    for text in shown[:-1]:
        assert any(whole.startswith(text) for whole in texts)


def test_that_the_answer_is_written_is_no_news_where_it_is_there() -> None:
    def phase(name: str) -> Event:
        return Event("j", 1, 1.0, "phase", None, {"phase": name})

    early, late = ChatAnswer("j"), ChatAnswer("j")
    assert [piece.reasoning for piece in early.event(phase("synthesizing"))] == ["synthesizing\n"]
    assert [piece.content for piece in late.live(0, 0, "The ans")] == ["The ans"]
    assert list(late.event(phase("synthesizing"))) == []
    assert [piece.reasoning for piece in late.event(phase("planning"))] == ["planning\n"]  # it begins anew
