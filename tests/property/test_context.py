"""The context guard under random conversations and budgets."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from agent import ContextGuard
from agent.context import KEEP_NEWEST, MAX_MESSAGE_CHARS, SUMMARY
from registry.errors import BadRequestError
from registry.messages import Message, ToolCall
from registry.testing import ScriptedLLM
from registry.tokens import estimate_messages

SMALLEST = 200
"""Texts are cut down to this many characters, not further."""

texts = st.builds(
    lambda unit, size: unit * size,
    st.sampled_from(["x", "word ", "漢字", "Ünï "]),
    st.sampled_from([1, 30, 150, 800, 3_000, 30_000]),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """System, users, turns with up to three calls; results may be missing, doubled, late, or of no call at all.

    Each text begins with its place, so that a message can be found again after a cut.
    """
    out: list[Message] = []

    def text() -> str:
        return f"#{len(out)}# {draw(texts)}"

    if draw(st.booleans()):
        out.append(Message.system("#0# rules"))
    pinned_before = False
    known = ["nobody"]
    for number in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["user", "user", "turn", "turn", "turn", "stray"]))
        if kind == "user":
            pinned = draw(st.booleans()) if pinned_before else True
            pinned_before = True
            out.append(Message.user(text(), pinned=pinned))
        elif kind == "stray":
            out.append(Message.tool(draw(st.sampled_from(known)), text()))
        else:
            ids = [f"c{number}_{place}" for place in range(draw(st.integers(0, 3)))]
            calls = tuple(ToolCall(call_id, "look_up", {"key": draw(texts)[:300]}) for call_id in ids)
            said = f"#{len(out)}# {draw(texts)[:3_000]}"
            known += ids
            out.append(Message("assistant", said, calls, reasoning=draw(texts)[:500] or None))
            for call_id in ids:
                if draw(st.integers(0, 9)):
                    out.append(Message.tool(call_id, text()))
                if not draw(st.integers(0, 9)):
                    out.append(Message.user(text()))
    return out


def place(message: Message) -> int | None:
    """The place in the input that a message came from; None for the summary."""
    return None if message.content.startswith(SUMMARY) else int(message.content.split("#", 2)[1])


def owners(messages: Sequence[Message]) -> dict[int, list[int]]:
    """For each turn with calls, by place, the places of its results: the first per call, up to the next turn."""
    found: dict[int, list[int]] = {}
    turn, waiting = -1, set[str]()
    for number, message in enumerate(messages):
        if message.role == "assistant":
            turn, waiting = number, {call.id for call in message.tool_calls}
            found[turn] = []
        elif message.role == "tool" and message.tool_call_id in waiting:
            waiting.discard(message.tool_call_id)
            found[turn].append(number)
    return found


def in_place(messages: Sequence[Message], results: dict[int, list[int]]) -> list[int]:
    """The places of all messages that belong somewhere, with results directly after their turns."""
    order: list[int] = []
    for number, message in enumerate(messages):
        if message.role != "tool":
            order += [number, *results.get(number, ())]
    return order


REPLIES = st.sampled_from(["the gist", "a long summary " * 400, "", BadRequestError("no")])


@settings(deadline=None, max_examples=200)
@given(conversations(), st.integers(100, 12_000), REPLIES)
async def test_a_fitted_conversation_keeps_the_rules(
    messages: list[Message], budget: int, reply: str | BadRequestError
) -> None:
    llm = ScriptedLLM(lambda _: reply, context_size=2 * budget, max_output_tokens=budget)
    guard = ContextGuard()
    assert guard.budget(llm) == budget
    before = [message.to_json() for message in messages]

    fitted = await guard.fit(messages, llm)
    out = fitted.messages

    assert [message.to_json() for message in messages] == before  # the input is never changed in place
    if not fitted.compacted:
        check_uncompacted(messages, out, budget)
        return
    places = [place(message) for message in out]
    kept = [number for number in places if number is not None]
    results = owners(messages)
    owned = {number for numbers in results.values() for number in numbers}

    check_fit(out, budget)
    check_order(messages, out, results)
    check_pinned(messages, out, budget)
    assert set(in_place(messages, results)[-KEEP_NEWEST:]) <= set(kept)
    if messages[0].role == "system":
        assert out[0] is messages[0]
    for message, number in zip(out, places, strict=True):
        if number is not None and message.role in ("assistant", "system"):
            assert message is messages[number]  # neither calls nor thinking nor what was said is cut
    heads = [message for message in out if message.role != "system"]
    if None in places:
        assert place(heads[0]) is None  # the summary opens the conversation, never a turn or a result
        assert places.count(None) == 1
    if set(range(len(messages))) - set(kept) - {n for n, m in enumerate(messages) if m.role == "tool"} - owned:
        assert None in places  # nothing vanishes without a summary


def check_uncompacted(messages: list[Message], out: Sequence[Message], budget: int) -> None:
    assert estimate_messages(out) <= budget
    assert len(out) == len(messages)
    query = next((message for message in messages if message.pinned), None)
    for old, new in zip(messages, out, strict=True):
        long = len(old.content) > MAX_MESSAGE_CHARS and old.role in ("user", "tool") and old is not query
        assert (len(new.content) <= MAX_MESSAGE_CHARS and "[Truncated]" in new.content) if long else new is old


def check_fit(out: Sequence[Message], budget: int) -> None:
    """It fits, or there is nothing left that may be cut."""
    cuttable = [message for message in out if message.role in ("user", "tool") and len(message.content) > SMALLEST]
    assert estimate_messages(out) <= budget or not cuttable


def check_order(messages: list[Message], out: Sequence[Message], results: dict[int, list[int]]) -> None:
    """Turns are followed by all their results and nothing else's; the rest stands in its old order."""
    number = 0
    others = []
    while number < len(out):
        here = place(out[number])
        number += 1
        if here is None:
            continue
        assert out[number - 1].role != "tool", "a result without its turn"
        others.append(here)
        for expected in results.get(here, ()):
            assert place(out[number]) == expected
            number += 1
    assert others == sorted(others)
    assert len(set(others)) == len(others)


def check_pinned(messages: list[Message], out: Sequence[Message], budget: int) -> None:
    pinned = [number for number, message in enumerate(messages) if message.pinned]
    still = [number for message in out if message.pinned and (number := place(message)) is not None]
    if pinned:
        assert pinned[0] in still  # the query is never given up
    freed = pinned[1:][: len(pinned) - len(still)]
    assert [pinned[:1], pinned[1 + len(freed) :]] == [still[:1], still[1:]]  # the oldest interrupts go first
    if freed:
        assert estimate_messages(messages[number] for number in pinned) > budget // 2


async def test_a_long_interrupt_is_cut_and_the_query_is_not() -> None:
    query, interrupt = Message.user("q" * 60_000, pinned=True), Message.user("i" * 60_000, pinned=True)
    fitted = await ContextGuard().fit([query, interrupt], ScriptedLLM([]))
    assert fitted.messages[0] is query
    assert len(fitted.messages[1].content) <= MAX_MESSAGE_CHARS
    assert fitted.messages[1].pinned
