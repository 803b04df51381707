"""The log in memory: every reader sees one history, in order, without a gap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.events import INTERNAL_CHANNELS
from executor.log import memory
from executor.log.memory import MemoryLog
from registry.messages import Event

STEPS = st.sampled_from([None, "a", "b"])
DELTA = st.tuples(st.just("delta"), st.text("xyz ", max_size=4), STEPS)
OTHER = st.tuples(st.just("event"), st.sampled_from(["step", "phase", "call", "note"]), STEPS)
TICK = st.tuples(st.just("tick"), st.integers(1, 4), st.none())
READ = st.tuples(st.just("read"), st.integers(-2, 30), st.booleans())
FLUSH = st.tuples(st.just("flush"), st.none(), st.none())
DEEDS = st.lists(st.one_of(DELTA, DELTA, DELTA, OTHER, TICK, TICK, READ, FLUSH), max_size=40)


async def collect(log: MemoryLog, after: int, internal: bool, pause: bool) -> list[Event]:
    seen = []
    async for event in log.read(after, internal=internal):
        seen.append(event)
        if pause:
            await asyncio.sleep(0)
    return seen


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval of merging ends with the next turns of the loop."""
    monkeypatch.setattr(memory.MemoryLog, "merge_seconds", 0.0)


@pytest.mark.usefixtures("_no_waiting")
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DEEDS)
async def test_all_readers_see_one_history(deeds: list[tuple[str, Any, Any]]) -> None:
    observed: list[Event] = []
    log = MemoryLog("job", on_event=observed.append)
    said: list[tuple[str, str, str | None]] = []  # (channel, text or number, step), deltas one by one
    readers = []
    for number, (kind, what, extra) in enumerate(deeds):
        if kind == "delta":
            log.append("answer", {"status": "delta", "content": what}, extra)
            said.append(("answer", what, extra))
        elif kind == "event":
            log.append(what, {"number": number}, extra)
            said.append((what, str(number), extra))
        elif kind == "tick":
            for _ in range(what):
                await asyncio.sleep(0)
        elif kind == "flush":
            log.flush()
        else:
            pause = number % 2 == 0
            readers.append((what, extra, asyncio.create_task(collect(log, what, extra, pause))))
    for after in (0, 3):
        readers.append((after, True, asyncio.create_task(collect(log, after, True, False))))
    log.close()
    log.append("step", {"late": True})

    history = log.events
    assert [event.seq for event in history] == list(range(1, len(history) + 1))
    assert {event.job_id for event in history} <= {"job"}
    assert told(history) == merged(said)
    assert observed == [event for event in history if event.channel not in INTERNAL_CHANNELS]
    for after, internal, task in readers:
        async with asyncio.timeout(5):
            seen = await task
        wanted = [event for event in history if event.seq > after]
        assert seen == [event for event in wanted if internal or event.channel not in INTERNAL_CHANNELS]
    assert await collect(log, 0, True, False) == list(history)


def merged(said: list[tuple[str, str, str | None]]) -> list[tuple[str, str, str | None]]:
    """Neighbouring answer pieces of one writer as one text."""
    out: list[tuple[str, str, str | None]] = []
    for channel, text, step in said:
        if channel == "answer" and out and (out[-1][0], out[-1][2]) == (channel, step):
            out[-1] = (channel, out[-1][1] + text, step)
        else:
            out.append((channel, text, step))
    return out


def told(history: tuple[Event, ...]) -> list[tuple[str, str, str | None]]:
    """The history in the same words."""
    return merged(
        [
            (event.channel, event.payload.get("content", str(event.payload.get("number"))), event.step_id)
            for event in history
        ]
    )


async def test_a_burst_becomes_few_events() -> None:
    log = MemoryLog("job")
    for _ in range(100):
        log.append("answer", {"status": "delta", "content": "x"})
    assert [event.payload["content"] for event in log.events] == ["x"]  # the first goes out at once
    await asyncio.sleep(3 * memory.MemoryLog.merge_seconds)
    assert [len(event.payload["content"]) for event in log.events] == [1, 99]
    log.close()
