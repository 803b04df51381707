"""What an agent's records mean: effects nobody knows, masked arguments, deadlines that go on, agents that ended."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from agent.effects import masked, verified
from agent.past import SAID, AgentPast, EndedThereError
from agent.waits import ApprovalRequest, Decision, PendingCall
from executor.waits import JobWaits
from registry import tool
from registry.context import calling
from registry.errors import UsageError
from registry.messages import Event
from registry.redaction import MASK, know_secret
from registry.testing import FakeClock
from tests.support.agent_world import Setting, Turn, World, calls_by, crashed

Payload: TypeAlias = dict[str, Any]
POSTS = (Turn("calls", ("post b",)), Turn("final"))
ASKS = (Turn("calls", ("ask e",)), Turn("final"))


async def after(setting: Setting, channel: str, status: str, **more: Any) -> tuple[World, Any]:
    """The world and the result of the process that goes on after the first one died right behind this event."""
    whole = World(setting, **more)
    await whole.run()
    again = crashed(whole, 1 + place_of(whole, channel, status))
    return again, await again.run()


def place_of(world: World, channel: str, status: str) -> int:
    return next(
        place
        for place, event in enumerate(world.log)
        if event.channel == channel and event.payload.get("status") == status
    )


def observation(result: Any) -> str:
    return str(next(message.content for message in result.messages if message.role == "tool"))


def statuses(world: World) -> list[str]:
    return [event.payload["status"] for event in world.log if event.channel == "approval"]


async def test_what_the_model_was_told_then_stands_whatever_prompts_say_now() -> None:
    whole = World(Setting((Turn("calls", ("look a",)), Turn("calls", ("look b",)), Turn("final"))))
    await whole.run()
    place = next(place for place, event in enumerate(whole.log) if event.payload.get("kind") == "reflect")
    told = whole.log[place]
    whole.log[place] = replace(told, payload={**told.payload, "content": "an older text"})
    result = await crashed(whole, len(whole.log)).run()
    assert "an older text" in [message.content for message in result.messages]


# Effects


@pytest.mark.parametrize("verify", ["none", "raises", "odd"])
async def test_a_call_that_nobody_knows_the_end_of_is_uncertain(verify: str) -> None:
    again, result = await after(Setting(POSTS, verify=verify), "call", "start")
    assert not again.ran
    (call,) = result.uncertain
    assert (call.call_id, call.tool_name, call.tool_args) == ("j/s/1/1/1", "post", {"text": "b 0.0 seen"})
    assert (call.uncertain, call.step_id) == (True, "s")
    assert "approve if it took effect" in call.request.reason
    assert observation(result).startswith("The outcome of this call of post is not known")
    assert result.tool_calls[0].is_error
    assert result.stop_reason == "final_answer"
    (told,) = calls_by(again.log, "uncertain").values()
    assert told.payload["observation"] == observation(result)
    assert not calls_by(again.log, "end")


async def test_a_tool_that_knows_its_effect_settles_the_call() -> None:
    again, result = await after(Setting(POSTS, verify="yes"), "call", "start")
    assert not again.ran
    assert result.uncertain == ()
    assert observation(result).startswith("This call of post took effect")
    (settled,) = calls_by(again.log, "settled").values()
    assert (settled.payload["took_effect"], settled.payload["by"]) == (True, "verify")
    assert not calls_by(again.log, "end")["j/s/1/1/1"].payload["is_error"]


async def test_a_call_without_effect_is_run_with_the_same_key() -> None:
    again, result = await after(Setting(POSTS, verify="no"), "call", "start")
    assert dict(again.ran) == {"j/s/1/1/1": 1}
    assert (
        len([event for event in again.log if event.payload.get("status") == "start" and event.channel == "call"]) == 1
    )
    assert "post got b" in observation(result)
    assert result.uncertain == ()


async def test_a_settled_call_is_not_asked_about_again() -> None:
    again, _ = await after(Setting(POSTS), "call", "start")
    again.append("call", {"status": "settled", "key": "j/s/1/1/1", "took_effect": True, "by": "ada"}, "s")
    third = crashed(again, len(again.log))
    result = await third.run()
    assert result.uncertain == ()
    assert observation(result).startswith("The outcome of this call")  # what the model was told stands
    assert AgentPast.read(third.log)["s", 1, 1].uncertain == ()
    assert len(AgentPast.read(again.log[:-1])["s", 1, 1].uncertain) == 1


async def test_what_a_verify_may_be() -> None:
    def of(verify: Any) -> Any:
        @tool(verify=verify, timeout=0.2)
        def act() -> str:
            """Acts."""
            return "done"

        return act

    async def later(key: str) -> bool:
        await asyncio.sleep(0)
        return key == "k"

    def plain(key: str) -> Any:
        return later(key)

    async def never(key: str) -> bool:
        await asyncio.Event().wait()
        return True

    def ends(key: str) -> bool:
        raise SystemExit(3)

    assert await verified(of(lambda key: key == "k"), "k") is True
    assert await verified(of(later), "k") is True
    assert await verified(of(plain), "other") is False
    for bad in (None, never, ends, lambda key: 1, lambda key: None, lambda key: "True"):
        assert await verified(of(bad), "k") is None


async def test_a_call_whose_tool_is_gone_is_uncertain() -> None:
    whole = World(Setting(POSTS, verify="no"))
    await whole.run()
    again = crashed(whole, 1 + place_of(whole, "call", "start"))
    all_of_them = again.tools()
    again.tools = lambda: [one for one in all_of_them if one.name != "post"]  # type: ignore[method-assign]
    result = await again.run()
    assert [call.tool_name for call in result.uncertain] == ["post"]


# Secrets


SECRET = "correct-horse-battery-staple"


def test_masks_are_seen_wherever_they_stand() -> None:
    assert all(masked(value) for value in (MASK, f"a {MASK}", {"a": [1, {"b": MASK}]}, {MASK: 1}, (MASK,)))
    assert not any(masked(value) for value in ("**", {"a": [1, None, {"b": "*"}]}, 3, None))


@pytest.mark.parametrize(("channel", "status"), [("step", "done"), ("approval", "waiting"), ("call", "start")])
async def test_masked_arguments_are_never_run(channel: str, status: str) -> None:
    know_secret(SECRET)
    name = "ask" if channel == "approval" else "save"
    setting = Setting((Turn("calls", (f"{name} {SECRET}",)), Turn("final")))
    again, result = await after(setting, channel, status)
    assert not again.ran
    assert result.uncertain == ()
    assert f"masked as a secret ({MASK})" in observation(result)
    assert result.tool_calls[0].is_error
    if channel == "approval":
        assert [event.payload["status"] for event in again.log if event.channel == "approval"] == [
            "waiting",
            "cancelled",
        ]
    third = crashed(again, len(again.log))
    assert observation(await third.run()) == observation(result)


async def test_a_mask_that_the_model_writes_itself_is_no_matter() -> None:
    world = World(Setting((Turn("calls", (f"save {MASK}",)), Turn("final"))))
    result = await world.run()
    assert sum(world.ran.values()) == 1
    assert not result.tool_calls[0].is_error


# Waits


def asked(call_id: str = "k", deadline: float = 100.0) -> PendingCall:
    return PendingCall(call_id, "ask", {"text": "x"}, ApprovalRequest("why", deadline), "s")


def waits(clock: FakeClock, told: list[Payload], **more: Any) -> JobWaits:
    return JobWaits(lambda payload, step_id: told.append(payload), World(Setting(())).parked, clock=clock, **more)


def approval(status: str, ts: float, **payload: Any) -> Event:
    return Event("j", 1, ts, "approval", "s", {"call_id": "k", "status": status, "deadline": 100.0, **payload})


async def test_a_wait_that_was_told_goes_on_untold_and_its_deadline_too() -> None:
    clock, told = FakeClock(), list[Payload]()
    again = waits(clock, told, open_to_decisions=True)
    again.restore([approval("waiting", clock.time() - 60)])
    parked = asyncio.create_task(again.park(asked()))
    await asyncio.sleep(0)
    assert told == []
    assert [call.call_id for call in again.pending] == ["k"]
    assert again.due == pytest.approx(40.0)
    again.decide("k", True, "yes", "ada")
    assert await parked == Decision(True, "yes", "ada")
    assert [payload["status"] for payload in told] == ["approved"]


@pytest.mark.parametrize("uncertain", [False, True])
async def test_a_deadline_that_passed_meanwhile_has_passed(uncertain: bool) -> None:
    clock, told = FakeClock(), list[Payload]()
    again = waits(clock, told, open_to_decisions=True)
    again.restore([approval("uncertain" if uncertain else "waiting", clock.time() - 101)])
    said = await (again.settle(asked()) if uncertain else again.park(asked()))
    assert [payload["status"] for payload in told] == ["expired"]
    assert said is None if uncertain else (said is not None and said.decided_by == "deadline")


async def test_a_decision_stands() -> None:
    clock, told = FakeClock(), list[Payload]()
    again = waits(clock, told)
    again.restore([approval("waiting", 1.0), approval("rejected", 2.0, reason="no", decided_by="ada")])
    assert await again.park(asked()) == Decision(False, "no", "ada")
    again.restore([approval("uncertain", 3.0), approval("approved", 4.0, reason="", decided_by="bob")])
    assert await again.settle(asked()) == Decision(True, "", "bob")
    assert await again.park(asked()) == Decision(False, "no", "ada")
    assert told == []


async def test_a_decision_may_come_before_its_call_waits_again() -> None:
    clock, told = FakeClock(), list[Payload]()
    again = waits(clock, told, open_to_decisions=True)
    again.restore([approval("waiting", clock.time())])
    with pytest.raises(UsageError):
        again.decide("other", True)
    again.decide("k", True)
    with pytest.raises(UsageError):
        again.decide("k", False)
    assert (await again.park(asked())).approve
    again.known("l", Decision(False, "no", "ada"))
    assert await again.park(asked("l")) == Decision(False, "no", "ada")
    assert [payload["status"] for payload in told] == ["approved", "waiting", "rejected"]


async def test_a_human_says_whether_a_call_took_effect() -> None:
    clock, told = FakeClock(), list[Payload]()
    job = waits(clock, told, open_to_decisions=True)
    for approve in (True, False):
        settled = asyncio.create_task(job.settle(replace(asked(f"k{approve}"), uncertain=True)))
        await asyncio.sleep(0)
        assert [call.uncertain for call in job.pending] == [True]
        job.decide(f"k{approve}", approve, "I looked", "ada")
        assert await settled == Decision(approve, "I looked", "ada")
        assert await job.settle(asked(f"k{approve}")) == Decision(approve, "I looked", "ada")  # not asked again
    assert [payload["status"] for payload in told] == ["uncertain", "approved", "uncertain", "rejected"]


async def test_where_nobody_says_anything_nothing_is_settled() -> None:
    clock, told = FakeClock(), list[Payload]()
    assert await waits(clock, told).settle(asked()) is None
    assert told == []
    job = waits(clock, told, open_to_decisions=True)
    assert await job.settle(asked(deadline=0.01)) is None
    settled = asyncio.create_task(job.settle(asked("l")))
    await asyncio.sleep(0)
    job.reject_all("the job is being stopped")
    assert await settled is None
    assert await job.settle(asked("m")) is None
    assert [payload["status"] for payload in told] == ["uncertain", "expired", "uncertain", "cancelled"]

    async def broken(call: PendingCall) -> Decision:
        raise OSError("no terminal")

    assert await waits(clock, told, approve=broken).settle(asked("n")) is None


async def test_an_agent_waits_again_and_is_decided() -> None:
    again, result = await after(Setting(ASKS), "approval", "waiting")
    assert statuses(again) == ["waiting", "approved"]
    assert again.hooked["pre e 0.0"] == 0
    assert dict(again.ran) == {"j/s/1/1/1": 1}
    assert "ask got e" in observation(result)


# Agents that ended


async def test_an_agent_that_an_error_ended_ends_so_again_without_a_call() -> None:
    whole = World(Setting((Turn("calls", ("look a",)), Turn("error"))))
    first = await whole.run()
    again = crashed(whole, len(whole.log))
    result = await again.run()
    assert (again.requests, len(again.log)) == (0, again.begun)
    assert (result.stop_reason, result.error, result.error_message) == ("llm_error", "auth", "the key was refused")
    assert result == replace(first, messages=result.messages)


async def test_what_fitted_then_is_not_made_to_fit_now() -> None:
    whole = World(Setting((Turn("calls", ("look long", "look long")), Turn("calls", ("look long",)), Turn("final"))))
    first = await whole.run()
    again = crashed(whole, len(whole.log))
    again.setting = replace(whole.setting, context=4_000)
    assert (await again.run()).messages == first.messages
    assert (again.requests, len(again.log)) == (0, again.begun)


async def test_agents_of_a_step_are_told_apart_and_only_the_last_one_goes_on() -> None:
    first = World(Setting((Turn("calls", ("look a",)), Turn("final"))))
    await first.run()
    second = World(first.setting)
    with calling(attempt=2):
        await second.run()
    cut = 1 + place_of(first, "step", "done")
    log = [*first.log[:cut], *second.log]
    pasts = AgentPast.read(log)
    assert set(pasts) == {("s", 1, 1), ("s", 1, 2)}
    assert [past.superseded for past in pasts.values()] == [True, False]
    assert set(pasts["s", 1, 2].calls) == {"j/s/2/1/1"}
    again = World(first.setting, log)
    again.known = 1
    with pytest.raises(EndedThereError):
        await again.run()
    assert (again.requests, len(again.log)) == (0, again.begun)


async def test_what_is_no_agents_is_left_alone() -> None:
    others = [
        Event("j", 1, 0.0, "phase", None, {"phase": "planning"}),
        Event("j", 2, 0.0, "note", "s", {"kind": "attempt", "content": "", "attempt": 2}),
        Event("j", 3, 0.0, "note", None, {"kind": "letter", "content": "", "letter": "stop"}),
        Event("j", 4, 0.0, "answer", None, {"status": "delta", "content": "x"}),
        Event("j", 5, 0.0, "approval", "s", {"call_id": "k", "status": "waiting"}),
        Event("j", 6, 0.0, "step", "s", {"type": "iteration", "status": "start", "tool_name": "a", "iteration": 1}),
    ]
    assert AgentPast.read(others) == {}


def test_an_agent_of_thousands_of_calls_is_read_in_its_time() -> None:
    """A worker has nothing else to give signs of life with meanwhile: looking through all calls for each took it
    minutes."""
    turns, side_by_side = 80, 100
    told: list[tuple[str, Payload]] = [("note", {"kind": "opening", "round": 1, "attempt": 1, "role": "step"})]
    for turn in range(1, turns + 1):
        told.append(("turn", {"role": "step", "step_attempt": 1, "call_id": None, "result": {}, "usage": None}))
        for number in range(side_by_side):
            call: Payload = {"key": f"j/s/1/{turn}/{number}", "tool_name": "look"}
            public: Payload = {"type": "iteration", "iteration": turn, "tool_name": "look"}
            told += [("call", {**call, "status": "start"}), ("step", {**public, "status": "start"})]
            told += [("call", {**call, "status": "end"}), ("step", {**public, "status": "done"})]
    events = [Event("j", seq, 0.0, channel, "s", payload) for seq, (channel, payload) in enumerate(told, 1)]
    begun = time.perf_counter()
    agent = AgentPast.read(events)["s", 1, 1]
    assert time.perf_counter() - begun < 10  # a fifth of a second; it took more than a minute
    assert len(agent.calls) == turns * side_by_side
    assert all(call.told == {"start", "end", "iteration start", "iteration done"} for call in agent.calls.values())


async def test_notes_of_others_do_not_keep_a_waiting_message_from_being_heard() -> None:
    whole = World(Setting((Turn("calls", ("look a",)), Turn("final"))))
    await whole.run()
    again = crashed(whole, 1 + place_of(whole, "step", "done"))
    again.append("note", {"kind": "letter", "content": "", "letter": "message"}, "s")
    again.inbox.put("do that, too")
    result = await again.run()
    assert any("do that, too" in message.content for message in result.messages)


def test_every_note_of_the_loop_is_known_to_its_records() -> None:
    source = (Path(__file__).parents[2] / "agent" / "loop.py").read_text()
    assert set(re.findall(r'_note\(\s*"(\w+)"', source)) == SAID
