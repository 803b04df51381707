"""A worker that is told to end hands its jobs over: nothing new begins, what is under way may end, nothing is told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from executor.store.database import Database
from executor.store.jobs import JobStore
from registry.errors import OverloadedError
from registry.messages import ToolCall
from registry.models import ModelRegistry
from registry.prices import Price
from registry.testing import ScriptedLLM
from registry.tools import tool
from tests.support.processes import until
from tests.support.stored_jobs import Brain, events_of, new_job, row_of, told, workshop
from tests.support.workers import queue, worker

LINE = [{"id": "a", "task": "x", "dependencies": []}, {"id": "b", "task": "y", "dependencies": ["a"]}]
WIDE = [{"id": name, "task": name, "dependencies": []} for name in "ab"]


class Held:
    """Replies of steps that the test holds back."""

    def __init__(self, reply: Any = "step result") -> None:
        self.reply, self.waiting, self.go = reply, 0, asyncio.Event()

    async def __call__(self, request: Any) -> Any:
        self.waiting += 1
        await self.go.wait()
        return self.reply(request) if callable(self.reply) else self.reply


def priced(brain: Brain) -> ModelRegistry:
    """Its calls' cost is known."""
    models = ModelRegistry()
    models.register("scripted", ScriptedLLM(brain, price=Price(1, 1)), roles=["general"])
    return models


async def over(database: Database, *jobs: str) -> bool:
    return all([(await row_of(database, job))["ended_at"] is not None for job in jobs])


async def handed_over(database: Database, job: str) -> list[dict[str, Any]]:
    """Its history, as it is left: nobody's, queued, without a word of its parting."""
    row, events = await row_of(database, job), await events_of(database, job)
    assert (row["owner"], row["ended_at"], await queue(database)) == (None, None, {job: "queued"})
    assert [event["seq"] for event in events] == list(range(1, row["seq"] + 1))
    assert "cancelled" not in {change["status"] for change in told(events, "step_progress")}
    return events


async def test_a_reply_under_way_is_used_and_nothing_new_begins(database: Database) -> None:
    held, job = Held(), await new_job(database)
    brain = Brain(held, LINE)
    async with worker(database, workshop(priced(brain))) as engine:
        await until(lambda: held.waiting == 1)
        engine.stop(60.0)
        await asyncio.sleep(0.5)
        held.go.set()
    events = await handed_over(database, job)
    assert brain.kinds == ["make_plan", "step"]
    assert [turn["error"] for turn in told(events, "turn")] == [None, None]
    async with worker(database, workshop(priced(brain))):
        await until(lambda: over(database, job))
    assert brain.kinds == ["make_plan", "step", "step", "judge_result", "synthesis"]
    row = await row_of(database, job)
    assert (row["status"], row["summary"]["usage"]["calls"]) == ("completed", 5)
    assert row["summary"]["usage"]["partial"] is False


async def test_a_job_that_needs_nothing_more_ends(database: Database) -> None:
    """The reply under way is the last one."""
    asked, go, job = asyncio.Event(), asyncio.Event(), await new_job(database, mode="react")

    async def step(request: Any) -> Any:
        asked.set()
        await go.wait()
        return "the answer"

    async with worker(database, workshop(Brain(synthesis=step))) as engine:
        await asked.wait()
        engine.stop(60.0)
        go.set()
    row = await row_of(database, job)
    assert (row["status"], await queue(database)) == ("completed", {})


async def test_a_job_that_has_nothing_under_way_is_handed_over_at_once(database: Database) -> None:
    """Its provider fails: it waits to try again, for far longer than this test."""
    tries, job = 0, await new_job(database, mode="react")

    def step(request: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            return OverloadedError("try later", retry_after=50.0)
        return "done"

    brain = Brain(step)
    async with worker(database, workshop(brain)) as engine:
        await until(lambda: tries == 1)
        await asyncio.sleep(0.5)
        began = time.monotonic()
        engine.stop(300.0)
    assert time.monotonic() - began < 25
    await handed_over(database, job)
    async with worker(database, workshop(brain)):
        await until(lambda: over(database, job))
    assert ((await row_of(database, job))["status"], tries) == ("completed", 2)


async def test_what_does_not_end_in_time_is_cut_off(database: Database) -> None:
    held, job = Held(), await new_job(database)
    brain = Brain(held, WIDE)
    async with worker(database, workshop(priced(brain))) as engine:
        await until(lambda: held.waiting == 2)
        engine.stop(0.5)
    events = await handed_over(database, job)
    cut = [turn for turn in told(events, "turn") if turn["error"] is not None]
    assert [turn["usage"] for turn in cut] == [None, None]  # they may have cost something
    held.go.set()
    async with worker(database, workshop(priced(brain))):
        await until(lambda: over(database, job))
    row = await row_of(database, job)
    assert (row["status"], row["summary"]["usage"]["partial"]) == ("completed", True)
    assert brain.kinds.count("make_plan") == 1


async def test_a_tool_under_way_ends_with_what_models_do_for_it_and_no_other_begins(database: Database) -> None:
    begun, go, job = list[str](), asyncio.Event(), await new_job(database, mode="react")

    @tool
    async def send(text: str) -> str:
        """Sends a letter."""
        begun.append(text)
        await go.wait()
        return f"sent {text}"

    def step(request: Any) -> Any:
        done = sum(message.role == "tool" for message in request.messages)
        return [ToolCall(f"c{done}", "send", {"text": f"{done}"})] if done < 2 else "done"

    brain = Brain(step)
    async with worker(database, workshop(brain, [send])) as engine:
        await until(lambda: begun == ["0"])
        engine.stop(60.0)
        await asyncio.sleep(0.5)
        go.set()
    events = await handed_over(database, job)
    assert [call["status"] for call in told(events, "call")] == ["start", "end"]
    assert (begun, brain.kinds) == (["0"], ["step"])
    async with worker(database, workshop(brain, [send])):
        await until(lambda: over(database, job))
    assert (begun, (await row_of(database, job))["status"]) == (["0", "1"], "completed")


async def test_a_call_that_did_not_begin_leaves_no_trace(database: Database) -> None:
    """It was asked for while the worker ended: it must not look like one that may have been done."""
    held, ran = Held([ToolCall("c", "send", {"text": "x"})]), 0

    @tool
    def send(text: str) -> str:
        """Sends a letter."""
        nonlocal ran
        ran += 1
        return "sent"

    job = await new_job(database, mode="react")
    brain = Brain(lambda request: "done" if request.messages[-1].role == "tool" else held(request))
    async with worker(database, workshop(brain, [send])) as engine:
        await until(lambda: held.waiting == 1)
        engine.stop(60.0)
        await asyncio.sleep(0.3)
        held.go.set()
    assert told(await handed_over(database, job), "call") == []
    assert ran == 0
    async with worker(database, workshop(brain, [send])):
        await until(lambda: over(database, job))
    assert ((await row_of(database, job))["status"], ran, brain.kinds.count("step")) == ("completed", 1, 2)


async def test_a_job_that_waits_for_a_human_is_parked_by_a_stop(database: Database) -> None:
    @tool(requires_approval=True)
    def wipe(disk: str) -> str:
        """Wipes a disk."""
        return "wiped"

    job = await new_job(database, mode="react")
    brain = Brain(
        lambda request: "no" if request.messages[-1].role == "tool" else [ToolCall("c", "wipe", {"disk": "x"})]
    )
    async with worker(database, workshop(brain, [wipe])) as engine:

        async def asked() -> bool:
            return bool(told(await events_of(database, job), "approval"))

        await until(asked)
        engine.stop(300.0)
    row = await row_of(database, job)
    assert (row["status"], row["owner"], await queue(database)) == ("needs_decision", None, {})


async def test_a_cancel_of_a_job_that_is_being_handed_over_ends_it(database: Database) -> None:
    held, job = Held(), await new_job(database)
    brain = Brain(held, LINE)
    async with worker(database, workshop(brain)) as engine:
        await until(lambda: held.waiting == 1)
        engine.stop(300.0)
        await asyncio.sleep(0.3)
        await JobStore(database).cancel("", job)
    row = await row_of(database, job)
    assert (row["status"], await queue(database)) == ("cancelled", {})


async def test_a_rolling_restart_fails_no_job_and_asks_nothing_twice(database: Database) -> None:
    """Workers come and go under ten jobs: every reply that came was used."""
    replies = 0

    async def step(request: Any) -> Any:
        nonlocal replies
        await asyncio.sleep(0.1)
        replies += 1
        return "step result"

    brain = Brain(step, [{"id": f"s{n}", "task": "x", "dependencies": [f"s{n - 1}"] if n else []} for n in range(6)])
    jobs = [await new_job(database) for _ in range(10)]
    restarts = 0
    while not await over(database, *jobs):
        async with worker(database, workshop(brain), slots=10) as engine:
            await asyncio.sleep(0.7)
            engine.stop(30.0)
        restarts += 1
        assert restarts < 60
    rows = [await row_of(database, job) for job in jobs]
    assert {row["status"] for row in rows} == {"completed"}
    assert restarts > 1
    assert {row["summary"]["usage"]["calls"] for row in rows} == {6 + 3}
    assert replies == 10 * 6
    for job, row in zip(jobs, rows, strict=True):
        assert [event["seq"] for event in await events_of(database, job)] == list(range(1, row["seq"] + 1))
