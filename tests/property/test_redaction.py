"""Secrets in texts that come in pieces: however a text is cut, what is shown is what the whole text redacted is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from executor.log import memory
from executor.log.memory import MemoryLog
from registry.redaction import StreamRedactor, know_secret, redact, redact_data

KNOWN = ("zq-Known/Secret+1", "zq-Known/Secret+1-and-longer", "zqzqzqzqzqA", 'zq"quoted\\one"9', "zq ä with spaces 7")
SHAPED = (
    "sk-proj-a1b2c3d4e5f6g7h8i9j0k1",
    "sk_live_0123456789abcdefghijklmn",
    "gsk_abcdefghijklmnopqrstu1vwxyz",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_abcdefghij0123456789abcdefghij012345",
    "github_pat_11ABCDEFG0abcdefghijkl_mnop",
    "xoxb-123456789012-abcdefghijkl",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
)
BEARER = "abc.def-ghi_jkl~mno+pqr1="
PASSWORD = "pa55:w@rd%20x"
PEM_BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\nggSjAgEAAoIBAQC7VJTUt9Us8cKj"
SECRETS = (*KNOWN, *SHAPED, BEARER, PASSWORD, PEM_BODY)
HOLDERS = (
    *KNOWN,
    *SHAPED,
    f"Authorization: Bearer {BEARER}",
    f"bearer   {BEARER},",
    f"postgres://user:{PASSWORD}@db.example:5432/x",
    f"https://{SHAPED[4]}:x@github.com/a",
    f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----",
)
"""Texts with a secret in each."""
INNOCENT = (
    "", " ", "\n", "s", "sk", "sk-", "k-", "sk-learn", "task-force-1", "AKIA", "xox", "Bearer", "Bearer ", "bearer of",
    "earer ", "://", "http://", "https://example.com:8080/path?a=b#c", "mail@example.com", "@", ":", "//", "-----",
    "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "PRIVATE KEY-----\n", "zq", "zq-Known", "zq-Known/Secret+", "zqzq",
    "gh", "ghp_", "ghp_1", "eyJ", "1", "a", "Z", "_", "-", "word", "ä", "😀", "0123456789",
)  # fmt: skip
"""Pieces of secrets, heads without a token, and whatever may stand around."""

TEXTS = st.lists(st.sampled_from([*INNOCENT, *HOLDERS]), max_size=12).map("".join)
SPACED = st.lists(st.sampled_from([*INNOCENT, *HOLDERS]), max_size=12).map("  ".join)
CUTS = st.lists(st.integers(0, 60), max_size=60)


@pytest.fixture(autouse=True)
def _known_secrets(_secrets_of_this_test: None) -> None:
    for secret in KNOWN:
        know_secret(secret)


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text cut into pieces of these lengths; the last one is the rest."""
    out = []
    for length in cuts:
        out.append(text[:length])
        text = text[length:]
    return [*out, text]


@settings(deadline=None, max_examples=300)
@given(st.one_of(TEXTS, SPACED), CUTS)
@example("".join(HOLDERS), [1] * 60)
@example("zq-Known/Secret+1-and-longe", [3, 3])
def test_a_text_in_pieces_is_shown_as_the_whole_one(text: str, cuts: list[int]) -> None:
    stream = StreamRedactor()
    shown = "".join([stream.feed(piece) for piece in pieces(text, cuts)]) + stream.end()
    assert shown == redact(text)


@settings(deadline=None, max_examples=200)
@given(st.text(), st.text(), st.sampled_from(KNOWN))
def test_a_known_secret_is_masked_in_any_text(before: str, after: str, secret: str) -> None:
    assert secret not in redact(before + secret + after)


@settings(deadline=None, max_examples=300)
@given(SPACED, CUTS)
def test_no_secret_is_left(text: str, cuts: list[int]) -> None:
    stream = StreamRedactor()
    shown = "".join([stream.feed(piece) for piece in pieces(text, cuts)]) + stream.end()
    assert [secret for secret in SECRETS if secret in shown] == []


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet=st.characters(exclude_characters="zsgxATeh:-"), max_size=400), CUTS)
def test_a_text_without_secrets_is_shown_at_once_and_unchanged(text: str, cuts: list[int]) -> None:
    stream = StreamRedactor()
    for piece in pieces(text, cuts):
        assert stream.feed(piece) == piece
    assert stream.end() == ""
    assert redact(text) is text


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(["sk-", "Bearer ", "://", "a", "-", "zq-Known", "-----BEGIN PRIVATE KEY-----", " "])))
def test_what_is_held_back_is_bounded(parts: list[str]) -> None:
    stream, sent, shown = StreamRedactor(), 0, 0
    for part in parts * 40:
        sent += len(part)
        shown += len(stream.feed(part))
        assert sent - shown < 700  # none of these parts make up a secret: nothing is lost to masks
    stream.end()


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from([*INNOCENT, *HOLDERS])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from([*INNOCENT, *KNOWN]), inner, max_size=4)
    ),
    max_leaves=12,
)


def texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts_in(part)]
    return [text for item in value for text in texts_in(item)] if isinstance(value, list) else []


@settings(deadline=None, max_examples=200)
@given(JSON)
def test_data_keeps_its_shape_and_loses_its_secrets(data: Any) -> None:
    shown = redact_data(data)
    assert type(shown) is type(data)
    assert [secret for text in texts_in(shown) for secret in SECRETS if secret in text] == []
    if all(redact(text) is text for text in texts_in(data)):
        assert shown is data
    if isinstance(data, list):
        assert len(shown) == len(data)


WRITERS = st.sampled_from([None, "a"])
DEED = st.one_of(
    st.tuples(st.just("delta"), st.integers(1, 25), WRITERS),
    st.tuples(st.just("delta"), st.integers(1, 25), WRITERS),
    st.tuples(st.just("event"), st.sampled_from(["step", "turn", "phase"]), st.none()),
    st.tuples(st.just("tick"), st.integers(1, 3), st.none()),
    st.tuples(st.just("flush"), st.just(0), st.none()),
)


@settings(deadline=None, max_examples=300)
@given(SPACED, SPACED, st.lists(DEED, max_size=60), st.sampled_from(["done", "close", "job"]))
async def test_the_log_never_holds_a_secret_that_came_in_deltas(
    one: str, other: str, deeds: list[tuple[str, Any, Any]], ending: str
) -> None:
    left = {None: one, "a": other}
    log = MemoryLog("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory.MemoryLog, "merge_seconds", 0.0)
        for kind, what, writer in [*deeds, ("delta", 10_000, None), ("delta", 10_000, "a")]:
            if kind == "delta":
                piece, left[writer] = left[writer][:what], left[writer][what:]
                log.append("answer", {"status": "delta", "content": piece}, writer)
            elif kind == "event":
                log.append(what, {"text": f"seen: {one}"})
            elif kind == "flush":
                log.flush()
            else:
                for _ in range(what):
                    await asyncio.sleep(0)
        if ending == "done":
            log.append("answer", {"status": "done"})
            log.append("answer", {"status": "done"}, "a")
        elif ending == "job":
            log.append("done", {"answer": one})
            assert log.events[-1].channel == "done"
        log.close()
    for writer, text in ((None, one), ("a", other)):
        deltas = [
            event.payload["content"]
            for event in log.events
            if event.channel == "answer" and event.payload["status"] == "delta" and event.step_id == writer
        ]
        assert "".join(deltas) == redact(text)
    everything = [text for event in log.events for text in texts_in(dict(event.payload))]
    assert [secret for text in everything for secret in SECRETS if secret in text] == []
