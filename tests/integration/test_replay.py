"""Replay: jobs of every kind come out the same from their logs alone, and a log that was changed departs just there."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from agent.past import OWN_ROLES
from executor.job_handle import start_job
from executor.log.stored import stored_events
from executor.replay.run import NotReplayableError, replay
from executor.results import StepResult
from executor.settings_model import Settings
from executor.store.database import Database
from executor.store.fold import job_json
from executor.store.jobs import JobStore
from executor.workers.handover import HandOver
from executor.workers.inbox import Inbox
from executor.workers.stored_job import run_stored_job
from executor.workers.workshop import Workshop
from registry import OpenAIChatLLM
from registry.messages import Event, ToolCall
from registry.testing import ScriptedLLM
from registry.toolbox import default_tools
from registry.tools import ToolRegistry, tool
from tests.fakes import ProviderFake
from tests.fakes.brain import brain
from tests.property.test_recovery import SCENARIOS
from tests.support.cuts import run as again
from tests.support.recorded_jobs import World, recorded
from tests.support.stored_jobs import Brain, look_up, new_job, note, row_of, with_tools, workshop


async def test_a_hundred_jobs_replay_the_same_without_a_call() -> None:
    ends, told = set[str](), set[str]()
    for seed in range(100):
        job = await recorded(seed)
        ends |= {job.job.status, job.job.mode}
        told |= {_kind(event) for event in job.events}
        did = dict(job.did)
        outcome = await replay(job.events, job.tools if seed % 2 else ())  # tools need not even be known
        assert [one.to_json() for one in outcome.departures] == [], seed
        assert outcome.same
        assert job.did == did, "something was called or run"
        again = outcome.job
        assert again is not None
        assert (again.status, again.answer, again.mode) == (job.job.status, job.job.answer, job.job.mode), seed
        assert again.plan == job.job.plan
        assert again.steps.keys() == job.job.steps.keys()
        assert all(_alike(again.steps[name], step) for name, step in job.job.steps.items()), seed
    assert ends == {"dag", "react", "completed", "partial", "failed", "cancelled", "budget_exceeded"}
    assert told >= EVERYTHING, "the generator has lost a kind of job"


EVERYTHING = {
    "fallback", "plan_diff", "verdict", "route", "inject", "compacted", "budget refused", "approval approved",
    "approval rejected", "call rejected", "letter message", "letter stop", "letter cancel_step", "turn check",
    "timeout", "waiting", "skipped", "cancelled", "a turn that failed",
}  # fmt: skip
"""What the hundred have among them."""


def _kind(event: Event) -> str:
    told = event.payload
    match event.channel:
        case "note":
            return f"{told['kind']} {told.get('letter', '')}"
        case "step_progress":
            return str("timeout" if told["error_code"] == "timeout" else told["status"])
        case "turn":
            return "a turn that failed" if told["result"] is None else f"turn {told['role']}"
        case "budget":
            return f"budget {told['reason']}"
        case "approval" | "call":
            return f"{event.channel} {told['status']}"
    return event.channel


def _alike(one: StepResult, other: StepResult) -> bool:
    names = ["status", "error", "error_code", "root_cause"]
    if one.status != "cancelled" and one.error_code != "timeout":  # how far one that was cut off came is chance
        names += ["output", "model"]
    return all(getattr(one, name) == getattr(other, name) for name in names)


async def run(answers: Brain, *tools: Any, **options: Any) -> tuple[tuple[Event, ...], ToolRegistry]:
    """A job's log, and its tools."""
    registry = ToolRegistry(tools)
    handle = start_job("sum it up", ScriptedLLM(answers), tools=registry, **options)
    await handle.result()
    return handle.log.events, registry


def altered(events: tuple[Event, ...], seq: int, change: Callable[[dict[str, Any]], None]) -> list[Event]:
    """The log with another reply in one place."""
    event = events[seq - 1]
    assert event.channel == "turn"
    payload = copy.deepcopy(dict(event.payload))
    change(payload["result"]["message"])
    return [replace(one, payload=payload) if one is event else one for one in events]


def turn(events: tuple[Event, ...], role: str, step: str | None = None, number: int = 0) -> int:
    """The seq of a reply."""
    found = [e.seq for e in events if e.channel == "turn" and e.payload["role"] == role and e.step_id == step]
    return found[number]


def first(events: tuple[Event, ...], channel: str, step: str | None = None, **payload: Any) -> int:
    """The seq of the first event like this."""
    return next(
        e.seq for e in events
        if e.channel == channel and e.step_id == step and payload.items() <= e.payload.items()
    )  # fmt: skip


def in_call(**arguments: Any) -> Callable[[dict[str, Any]], None]:
    """Other arguments in a reply's first call."""

    def change(message: dict[str, Any]) -> None:
        call = message["tool_calls"][0]
        call["arguments"] = {**call["arguments"], **arguments}
        call["raw"] = None

    return change


def text(words: str) -> Callable[[dict[str, Any]], None]:
    def change(message: dict[str, Any]) -> None:
        message["content"] = words
        message["tool_calls"] = []

    return change


async def test_another_plan_departs_at_the_plan() -> None:
    events, tools = await run(Brain(), mode="auto")
    steps = [{"id": "a", "task": "find y", "dependencies": []}]
    outcome = await replay(altered(events, turn(events, "planner"), in_call(steps=steps)), tools)
    departure = outcome.departures[0]
    assert (outcome.same, departure.kind, departure.seq) == (False, "told", first(events, "plan"))
    assert "plan" in departure.message


async def test_another_route_departs_at_the_route() -> None:
    events, tools = await run(Brain(), mode="auto")
    outcome = await replay(altered(events, turn(events, "router"), in_call(mode="react")), tools)
    assert (outcome.departures[0].seq, outcome.departures[0].found) == (first(events, "route"), {"mode": "react"})


async def test_another_verdict_departs_at_the_verdict() -> None:
    events, tools = await run(Brain(), mode="dag")
    outcome = await replay(altered(events, turn(events, "analyzer"), in_call(confidence=0.2)), tools)
    departure = outcome.departures[0]
    assert (departure.seq, departure.expected, departure.found) == (
        first(events, "verdict"), {"confidence": 0.9}, {"confidence": 0.2},
    )  # fmt: skip


async def test_another_answer_departs_at_the_end() -> None:
    events, tools = await run(Brain(), mode="dag")
    outcome = await replay(altered(events, turn(events, "synthesis"), text("another answer")), tools)
    departure = outcome.departures[0]
    assert (departure.kind, departure.seq, departure.expected, departure.found) == (
        "end", len(events), {"answer": "the written answer"}, {"answer": "another answer"},
    )  # fmt: skip


async def test_another_result_departs_at_that_steps_end() -> None:
    events, tools = await run(Brain(), mode="dag")
    outcome = await replay(altered(events, turn(events, "step", "c"), text("halved")), tools)
    departure = outcome.departures[0]
    assert (departure.seq, departure.step_id) == (first(events, "step_progress", "c", status="completed"), "c")
    assert (departure.expected, departure.found) == ({"result": "step result"}, {"result": "halved"})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("mode", ["dag", "react"])
async def test_another_call_departs_at_the_call(mode: str, known: bool) -> None:
    events, tools = await run(Brain(with_tools), look_up, note, mode=mode)
    step, role = ("a", "step") if mode == "dag" else (None, "agent")
    key = events[first(events, "call", step, status="start") - 1].payload["key"]
    outcome = await replay(altered(events, turn(events, role, step), in_call(key="z")), tools if known else ())
    (departure,) = outcome.departures
    assert (departure.kind, departure.seq, departure.step_id, departure.attempt, departure.role, departure.call) == (
        "call", first(events, "call", step, key=key), step, 1, role, key,
    )  # fmt: skip
    assert (departure.expected, departure.found) == ({"key": "x"}, {"key": "z"})


async def test_a_call_that_is_not_in_the_log_is_not_made() -> None:
    events, tools = await run(Brain(with_tools), look_up, note, mode="dag")

    def calls_again(message: dict[str, Any]) -> None:
        message["tool_calls"] = [ToolCall("c9", "note", {"text": "more"}).to_json()]
        message["content"] = ""

    outcome = await replay(altered(events, turn(events, "step", "b", -1), calls_again), tools)
    departure = outcome.departures[0]
    assert (departure.kind, departure.step_id, departure.round, departure.attempt, departure.role) == (
        "call", "b", 1, 1, "tool",
    )  # fmt: skip
    assert departure.call is not None
    assert departure.call.endswith("/b/1/5/1")
    assert "'note'" in departure.message


async def test_a_reply_that_is_not_in_the_log_is_not_asked_for() -> None:
    events, tools = await run(Brain(), mode="dag")
    missing = turn(events, "analyzer")
    outcome = await replay([event for event in events if event.seq != missing], tools)
    departure = outcome.departures[0]
    assert (departure.kind, departure.role, departure.step_id, departure.attempt) == ("reply", "analyzer", None, 1)


async def test_changed_words_anywhere_depart_at_what_they_change() -> None:
    """A reply's text is changed, in whatever role it was given: the first difference stands where it must show."""
    shown = 0
    for seed in range(200, 240):
        job = await recorded(seed)
        rng = Random(seed)
        turns = [e for e in job.events if e.channel == "turn" and e.payload["result"] is not None
                 and e.payload["role"] in (*OWN_ROLES, "synthesis") and not _calls(e.payload)]  # fmt: skip
        if not turns:
            continue
        chosen = rng.choice(turns)

        def change(message: dict[str, Any]) -> None:
            message["content"] = f"{message['content']} (changed)"

        outcome = await replay(altered(job.events, chosen.seq, change), job.tools)
        assert all(one.seq is None or one.seq > chosen.seq for one in outcome.departures), seed
        if outcome.same:  # a text that was void, or worked over
            continue
        shown += 1
        departure = outcome.departures[0]
        if chosen.step_id is not None and departure.kind == "told":
            assert departure.step_id == chosen.step_id, seed
    assert shown >= 15


def _calls(payload: Mapping[str, Any]) -> bool:
    return bool(payload["result"]["message"].get("tool_calls"))


async def test_a_log_without_its_end_is_refused() -> None:
    events, _ = await run(Brain(), mode="dag")
    for part in (events[:-1], events[1:], ()):
        with pytest.raises(NotReplayableError):
            await replay(part)


async def test_a_log_that_goes_on_differently_is_told() -> None:
    events, tools = await run(Brain(), mode="dag")
    at = first(events, "step_progress", "d", status="running") - 1
    outcome = await replay([*events[:at], *events[at + 1 :]], tools)
    departure = outcome.departures[0]
    assert (
        departure.to_json()["message"]
        == "the log has step d completed, the replay tells step d running (status, result)"
    )


@pytest.mark.parametrize("make", SCENARIOS, ids=lambda make: make.__name__)
async def test_jobs_whose_workers_died_replay_the_same(make: Any) -> None:
    """Cut off at some places of its log, and at a second one after it went on."""
    whole = await again(make())
    rng = Random(make.__name__)
    for cut in rng.sample(range(1, len(whole.events)), min(4, len(whole.events) - 1)):
        once = await again(make(), whole.events[:cut])
        twice = await again(make(), once.events[: rng.randrange(cut, len(once.events))])
        for events in (once.events, twice.events):
            outcome = await replay(events)
            assert [one.to_json() for one in outcome.departures] == [], (cut, len(events))


@pytest.mark.parametrize("mode", ["dag", "react"])
async def test_a_job_on_a_real_provider_replays_without_it(mode: Any) -> None:
    async with ProviderFake(brain) as fake:
        llm = OpenAIChatLLM("fake-model", base_url=fake.openai_url, api_key="none")
        handle = start_job("Work out 6 times 7.", llm, tools=default_tools(None, ()), mode=mode)
        job = await handle.result()
        await llm.aclose()
        asked = len(fake.requests)
        assert (job.status, asked > 2) == ("completed", True)
        outcome = await replay(handle.log.events)
        assert ([one.to_json() for one in outcome.departures], len(fake.requests)) == ([], asked)


async def test_a_job_that_was_parked_replays_the_same(database_url: str) -> None:
    """It waits for a human without a worker; another worker goes on with it when there is a word."""

    @tool(requires_approval=True)
    def send(to: str) -> str:
        """Sends something."""
        return f"sent to {to}"

    def sends(request: Any) -> Any:
        done = any(message.role == "tool" for message in request.messages)
        return "step result" if done else [ToolCall("c", "send", {"to": "all"})]

    async with Database.open(database_url) as database, Inbox.open(database) as inbox:
        job = await new_job(database)
        work = workshop(Brain(sends), [send], inbox)
        async with asyncio.timeout(60):
            while (await row_of(database, job))["ended_at"] is None:
                async with asyncio.TaskGroup() as group:
                    going = group.create_task(run_stored_job(database, uuid4(), job, work, handover=HandOver()))
                    await asyncio.wait({going})
                for told in (await job_json(database, await row_of(database, job))).get("approvals", ()):
                    letter = {"call_id": told["call_id"], "approve": told["step_id"] != "c", "reason": "so it is"}
                    await JobStore(database).send("", job, "decide", letter)
        events = [event async for event in stored_events(database, job)]
    assert any(event.channel == "note" and event.payload["kind"] == "restored" for event in events)
    outcome = await replay(events, [send])
    assert [one.to_json() for one in outcome.departures] == []


async def test_stored_jobs_that_are_spoken_to_replay_the_same(database_url: str) -> None:
    """As above, with a log in a database, in whose order of events its own pace takes part."""
    async with Database.open(database_url) as database, Inbox.open(database) as inbox:
        for seed in range(300, 312):
            world = World(seed)
            work, mode = world.work()
            goal, plan = (work, None) if isinstance(work, str) else (work.goal, work.to_json())
            options, tools = world.options(), world.tools()
            shop = Workshop(world.models(), tools, Settings(), lambda settings, made=options: made, inbox=inbox,
                            approve=world.approve, on_event=words(world, database))  # fmt: skip
            world.job = await new_job(database, goal, mode, **({} if plan is None else {"plan": plan}))
            async with asyncio.timeout(60):
                await run_stored_job(database, uuid4(), world.job, shop)
            events = [event async for event in stored_events(database, world.job)]
            outcome = await replay(events, tools)
            assert [one.to_json() for one in outcome.departures] == [], seed


def words(world: World, database: Database) -> Callable[[Event], None]:
    """Says things to a stored job after some of its events."""
    when = {world.rng.randrange(3, 60): kind for kind in ("message", "stop", "cancel_step", "message")}
    said: set[asyncio.Task[Any]] = set()
    count = 0

    def hear(event: Event) -> None:
        nonlocal count
        count += 1
        kind = when.get(count)
        if kind is not None and world.chance(0.6):
            payload = {"message": {"text": f"also {count}"}, "stop": {}, "cancel_step": {"step_id": "s1"}}[kind]
            said.add(asyncio.create_task(JobStore(database).send("", world.job, kind, payload)))

    return hear
