"""A process that dies after any event of an agent: another one goes on, and nobody could tell from what comes out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import Phase, example, given, note, settings
from hypothesis import strategies as st

from agent import AgentResult
from registry.messages import Message
from tests.support.agent_world import (
    QUERY,
    Setting,
    Turn,
    World,
    answer_of,
    calls_by,
    crashed,
    of_calls,
    ordered,
    own_turn,
    without,
)

WRITING = ["post b", "post b", "post guarded", "save c", "save c", "save guarded no", "ask e", "ask no"]
TOOLS = st.sampled_from(["look a", "look a", "look long", "look tells", "look blocked", "fail d", *WRITING])
CALLS = st.lists(TOOLS, min_size=1, max_size=3).map(tuple)
OTHERS = ["same", "same", "unknown", "wrong", "final", "final", "empty", "cut", "cut calls", "garbage"]


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    kind = draw(st.sampled_from(["calls"] * 8 + OTHERS))
    calls = draw(CALLS) if kind in ("calls", "cut calls") else ()
    said = draw(st.sampled_from(["", "", "", "", "and do that too"]))
    return Turn(kind, calls, said, finish=draw(st.integers(0, 11)) == 0)


@st.composite
def worlds(draw: st.DrawFn) -> Setting:
    script = draw(st.lists(turns(), min_size=1, max_size=6))
    if draw(st.integers(0, 5)) == 0:
        script.append(Turn("error"))
    small = draw(st.integers(0, 3)) == 0
    history = (Message.user("earlier " * 1_200), Message.assistant("yes")) if draw(st.integers(0, 4)) == 0 else ()
    return Setting(
        tuple(script),
        native=draw(st.sampled_from([True, True, False])),
        direct=draw(st.integers(0, 2)) == 0,
        many_tools=draw(st.integers(0, 4)) == 0,
        refuses_tools=draw(st.integers(0, 5)) == 0,
        refuses_schemas=draw(st.integers(0, 3)) == 0,
        too_long=4_500 if draw(st.integers(0, 3)) == 0 else 1 << 30,
        says_size=draw(st.booleans()),
        context=draw(st.sampled_from([4_000, 9_000])) if small else 100_000,
        verify=draw(st.sampled_from(["none", "none", "yes", "no", "raises", "odd"])),
        max_iterations=draw(st.sampled_from([1, 4, 9, 9])),
        query=draw(st.sampled_from([QUERY, QUERY, QUERY, "long " * 400])),
        history=history,
    )


def lone(*script: Turn, **more: Any) -> Setting:
    return Setting(script, **more)


ALL = -1
TWO_LONG = (Turn("calls", ("look long", "look long")), Turn("calls", ("look long", "post b")), Turn("final"))


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(worlds(), st.integers(0, 20))
@example(lone(Turn("calls", ("post b", "save c", "ask e"), "more"), Turn("calls", ("ask no",)), Turn("final")), ALL)
@example(lone(Turn("calls", ("post b", "post b")), Turn("final"), verify="yes"), ALL)
@example(lone(Turn("calls", ("post b", "save c")), Turn("final"), verify="no", native=False), ALL)
@example(
    lone(Turn("calls", ("look tells",), "and that"), Turn("calls", ("look tells",)), Turn("final"), native=False), ALL
)
@example(lone(*TWO_LONG, context=4_000), ALL)
@example(lone(*TWO_LONG, too_long=2_500), ALL)
@example(lone(*TWO_LONG[:1], *TWO_LONG[:1], *TWO_LONG, context=9_000, too_long=4_500, says_size=False), ALL)
@example(lone(Turn("calls", ("look a",)), Turn("error"), direct=True), ALL)
@example(lone(Turn("calls", ("look a",)), Turn("cut"), Turn("final"), direct=True, refuses_tools=True), ALL)
@example(lone(Turn("calls", ("look a", "post b")), Turn("final"), refuses_tools=True, refuses_schemas=True), ALL)
@example(lone(Turn("same"), Turn("same"), Turn("same"), Turn("same"), Turn("same"), Turn("same"), Turn("same")), ALL)
@example(lone(Turn("calls", ("look a",)), Turn("calls", ("look a",), "", True), Turn("calls", ("post b",))), ALL)
@example(lone(Turn("calls", ("look a",), "one", True), Turn("final"), many_tools=True, query="long " * 400), ALL)
def test_an_agent_goes_on_wherever_its_process_dies(setting: Setting, offset: int) -> None:
    """Random worlds are left at some of the places, chosen by `offset`, the examples at all."""
    note(str(setting))
    asyncio.run(every_crash(setting, offset))


async def every_crash(setting: Setting, offset: int) -> None:
    whole = World(setting)
    result = await whole.run()
    places = range(len(whole.log) + 1)
    some = places if offset == ALL else places[offset % 8 :: 8]
    left = 3
    for place in some:
        again = crashed(whole, place)
        after = await again.run()
        compare(whole, result, again, after, place)
        if left and (place >= len(whole.log) // 2 or calls_by(again.new, "uncertain")):
            left -= 1
            await once_more(again, after)


async def once_more(whole: World, result: AgentResult) -> None:
    """The second process dies, too."""
    for place in range(whole.begun, len(whole.log) + 1, 3):
        again = crashed(whole, place)
        compare(whole, result, again, await again.run(), place)


def compare(whole: World, result: AgentResult, again: World, after: AgentResult, place: int) -> None:
    past = whole.log[:place]
    nothing_is_done_twice(whole, again, past)
    if diverged(whole, again):
        uncertain_calls_are_told(again, after, past)
        return
    plain = replace(result, tool_calls=(), messages=())
    assert replace(after, tool_calls=(), messages=()) == plain
    assert [message.to_json() for message in after.messages] == [message.to_json() for message in result.messages]
    assert after.tool_calls == result.tool_calls
    beside = ("answer", "turn")  # a broken answer begins anew; tries that failed may be made again
    assert ordered(without(again.log, *beside)) == ordered(without(whole.log, *beside))
    assert of_calls(again.log) == of_calls(whole.log)
    assert replies(again) == replies(whole)
    assert answer_of(again.log) == answer_of(whole.log)
    done = [event.payload["status"] for event in again.log if event.channel == "answer"]
    assert done.count("done") == (1 if whole.setting.direct else 0)


def replies(world: World) -> list[Any]:
    return [event.payload["result"] for event in world.log if own_turn(event)]


def nothing_is_done_twice(whole: World, again: World, past: list[Any]) -> None:
    begun, ended = calls_by(past, "start"), calls_by(past, "end")
    for key, event in begun.items():
        name, text = event.payload["tool_name"], event.payload["tool_args"]["text"]
        verified = name == "post" and whole.setting.verify == "no"
        may = (
            key not in ended
            and key not in calls_by(past, "uncertain")
            and (name in ("look", "save", "fail") or verified)
        )
        assert again.ran[key] == may, key
        if not text.startswith("again"):  # the same words in several calls
            assert again.hooked[f"pre {text.removesuffix(' seen')}"] == 0, key
            assert again.hooked[f"post {text}"] == may, key
        assert again.asked[key] == 0, key
    for key in calls_by(past, "rejected"):
        turn, number = (int(part) - 1 for part in key.split("/")[-2:])
        assert not any(again.hooked[text] for text in again.hooked if f" {turn}.{number}" in text), key
    for event in past:
        if event.channel == "approval":
            assert again.hooked[f"pre {event.payload['tool_args']['text'].removesuffix(' seen')}"] == 0
            if event.payload["status"] in ("approved", "rejected"):
                assert again.asked[event.payload["call_id"]] == 0
        if event.channel == "note" and event.payload["kind"] == "opening":
            assert again.hooked["start"] == 0
    assert again.requests == sum(event.channel == "turn" for event in again.new)
    successes = [event for event in again.log if own_turn(event)]
    assert len({event.payload["result"]["usage"]["input_tokens"] for event in successes}) == len(successes)


def diverged(whole: World, again: World) -> bool:
    """Whether a call was under way whose end nobody knows, or knows only from its tool."""
    known = set(calls_by(whole.log, "uncertain")) | set(calls_by(whole.log, "settled"))
    return bool((set(calls_by(again.log, "uncertain")) | set(calls_by(again.log, "settled"))) - known)


def uncertain_calls_are_told(again: World, after: AgentResult, past: list[Any]) -> None:
    for key, event in calls_by(again.new, "uncertain").items():
        assert key in calls_by(past, "start")
        assert key not in calls_by(past, "end")
        assert event.payload["tool_name"] in ("post", "ask")
        assert key in {call.call_id for call in after.uncertain}
        assert any("is not known" in message.content for message in after.messages)
    for key in calls_by(again.new, "settled"):
        assert key not in {call.call_id for call in after.uncertain}
        assert calls_by(again.new, "end")[key].payload["own"]
    uncertain = {call.call_id for call in after.uncertain}
    assert uncertain == set(calls_by(again.log, "uncertain"))
