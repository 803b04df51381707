"""Jobs that wait for a human: nobody runs them meanwhile, they take no slot, and any word wakes them."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest

from agent.waits import Decision, PendingCall
from executor.hooks_config import HookEntry
from executor.store.database import Database
from executor.store.fold import end_cancelled
from executor.store.jobs import JobStore
from executor.workers.inbox import Inbox
from executor.workers.stored_job import run_stored_job
from executor.workers.workshop import Workshop
from registry.messages import ToolCall
from registry.tools import tool
from tests.support.processes import until
from tests.support.stored_jobs import Brain, events_of, new_job, row_of, told, workshop
from tests.support.workers import queue, worker

STEP = [{"id": "a", "task": "x", "dependencies": []}]


class Disk:
    """A tool that needs approval, and how often it ran."""

    def __init__(self) -> None:
        self.wiped = 0

        @tool(requires_approval=True)
        def wipe(disk: str) -> str:
            """Wipes a disk."""
            self.wiped += 1
            return f"wiped {disk}"

        self.tools = [wipe]


def wiping(request: Any) -> Any:
    asked = any(message.role == "tool" for message in request.messages)
    return "done" if asked else [ToolCall("c", "wipe", {"disk": "sda"})]


async def parked(database: Database, *jobs: str) -> bool:
    """Whether all of these wait, are nobody's, and stand in no queue."""
    rows, queued = [await row_of(database, job) for job in jobs], await queue(database)
    return all(row["status"] == "needs_decision" and row["owner"] is None for row in rows) and not queued.keys() & {
        *jobs
    }


async def over(database: Database, *jobs: str) -> bool:
    return all([(await row_of(database, job))["ended_at"] is not None for job in jobs])


async def question(database: Database, job: str) -> str:
    """The call that waits."""
    (asked,) = (told_ for told_ in told(await events_of(database, job), "approval") if told_["status"] == "waiting")
    return str(asked["call_id"])


async def decide(database: Database, job: str, *, approve: bool = True) -> None:
    letter = {"call_id": await question(database, job), "approve": approve, "reason": "since", "decided_by": "ann"}
    assert await JobStore(database).send("", job, "decide", letter)


async def test_waiting_takes_no_slot_and_a_decision_lets_the_job_go_on(database: Database) -> None:
    disk, brain = Disk(), Brain(wiping, STEP)
    waiting = [await new_job(database) for _ in range(4)]
    async with worker(database, workshop(brain, disk.tools), slots=2):
        await until(lambda: parked(database, *waiting))
        asked = len(brain.kinds)
        other = await new_job(database, plan={"steps": STEP}, tools=[])
        await until(lambda: over(database, other))  # though twice as many wait as there are slots
        before = [event["seq"] for event in await events_of(database, waiting[0])]
        for job in waiting:
            await decide(database, job)
        await until(lambda: over(database, *waiting))
    rows = [await row_of(database, job) for job in waiting]
    assert [row["status"] for row in rows] == ["completed"] * 4
    assert disk.wiped == 4
    assert [event["seq"] for event in await events_of(database, waiting[0])][: len(before)] == before
    assert len(told(await events_of(database, waiting[0]), "approval")) == 2  # asked once, decided once
    assert asked == 4 * 2  # a plan and a step each
    assert len([kind for kind in brain.kinds if kind == "make_plan"]) == 4  # nothing was asked for twice
    assert all(row["summary"]["usage"]["calls"] == 5 for row in rows)


async def test_a_rejection_and_a_message_reach_a_parked_job(database: Database) -> None:
    disk, job = Disk(), await new_job(database, mode="react")
    brain = Brain(wiping)
    async with worker(database, workshop(brain, disk.tools)):
        await until(lambda: parked(database, job))
        await JobStore(database).send("", job, "message", {"text": "in green, please"})
        await until(lambda: noted(database, job, 1))
        await until(lambda: parked(database, job))  # it waits as before, and is parked again
        await decide(database, job, approve=False)
        await until(lambda: over(database, job))
    assert (await row_of(database, job))["status"] == "completed"
    assert disk.wiped == 0
    assert "in green, please" in str(told(await events_of(database, job), "inject"))


async def noted(database: Database, job: str, count: int) -> bool:
    notes = told(await events_of(database, job), "note")
    return len([note for note in notes if note["kind"] == "letter"]) == count


async def test_a_stop_reaches_a_parked_job(database: Database) -> None:
    disk, job = Disk(), await new_job(database)
    async with worker(database, workshop(Brain(wiping, STEP), disk.tools)):
        await until(lambda: parked(database, job))
        await JobStore(database).send("", job, "stop", {})
        await until(lambda: over(database, job))
    row = await row_of(database, job)
    assert (row["status"], row["summary"]["error_code"], disk.wiped) == ("cancelled", "stopped", 0)


async def test_a_step_of_a_parked_job_is_cancelled(database: Database) -> None:
    disk, job = Disk(), await new_job(database)
    async with worker(database, workshop(Brain(wiping, STEP), disk.tools, max_replan_rounds=1)):
        await until(lambda: parked(database, job))
        await JobStore(database).send("", job, "cancel_step", {"step_id": "a"})
        await until(lambda: over(database, job))
    assert [step["status"] for step in (await row_of(database, job))["summary"]["steps"]] == ["cancelled"]
    assert disk.wiped == 0


async def test_a_parked_job_is_cancelled_without_a_worker(database: Database) -> None:
    disk, job = Disk(), await new_job(database)
    async with worker(database, workshop(Brain(wiping, STEP), disk.tools)):
        await until(lambda: parked(database, job))
    row = await JobStore(database).cancel("", job)
    assert row is not None
    assert row["owner"] is None
    ended = await end_cancelled(database, job)
    assert ended is not None
    assert (ended["status"], [step["status"] for step in ended["summary"]["steps"]]) == ("cancelled", ["cancelled"])
    async with worker(database, workshop(Brain(), disk.tools)):  # nobody runs it any more
        await asyncio.sleep(1)
    assert (await row_of(database, job))["seq"] == ended["seq"]


async def test_the_end_of_its_time_wakes_a_parked_job(database: Database) -> None:
    disk, job = Disk(), await new_job(database)
    hooks = (HookEntry("approval", {"tools": ("wipe",), "deadline": 6.0}),)
    began = time.monotonic()
    async with worker(database, workshop(Brain(wiping, STEP), disk.tools, hooks=hooks)):
        await until(lambda: parked(database, job))
        assert time.monotonic() - began < 6
        await until(lambda: over(database, job))
    assert [told_["status"] for told_ in told(await events_of(database, job), "approval")] == ["waiting", "expired"]
    assert (await row_of(database, job))["status"] == "completed"
    assert disk.wiped == 0


async def test_a_job_of_which_something_goes_on_is_not_parked(database: Database) -> None:
    disk, go, job = Disk(), asyncio.Event(), await new_job(database)

    async def step(request: Any) -> Any:
        if "wipe it" in request.messages[-1].content or request.messages[-1].role == "tool":
            return wiping(request)
        await go.wait()
        return "step result"

    plan = {"steps": [{"id": "a", "task": "wipe it", "dependencies": []}, {"id": "b", "task": "y", "dependencies": []}]}
    async with worker(database, workshop(Brain(step, make_plan=plan), disk.tools)):
        await parks_only_after(database, job, go)
    assert ((await row_of(database, job))["status"], disk.wiped) == ("completed", 1)


async def parks_only_after(database: Database, job: str, go: asyncio.Event) -> None:
    """A call waits, but the job is parked only when what goes on beside it may end; then it is decided to its end."""
    await until(lambda: asked(database, job))
    await asyncio.sleep(3)
    assert not await parked(database, job)
    go.set()
    await until(lambda: parked(database, job))
    await decide(database, job)
    await until(lambda: over(database, job))


async def asked(database: Database, job: str) -> bool:
    return bool(told(await events_of(database, job), "approval"))


async def test_a_call_beside_the_one_that_waits_is_not_cut_off(database: Database) -> None:
    """Both are of one reply: the step waits, but not all of it."""
    disk, go, begun, job = Disk(), asyncio.Event(), 0, await new_job(database, mode="react")

    @tool
    async def slow(text: str) -> str:
        """Takes its time."""
        nonlocal begun
        begun += 1
        await go.wait()
        return text

    def step(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return "done"
        return [ToolCall("c", "wipe", {"disk": "sda"}), ToolCall("d", "slow", {"text": "x"})]

    async with worker(database, workshop(Brain(step), [*disk.tools, slow])):
        await parks_only_after(database, job, go)
    assert ((await row_of(database, job))["status"], disk.wiped, begun) == ("completed", 1, 1)


async def test_who_asks_a_human_itself_parks_nothing(database: Database) -> None:
    """As the command does: somebody sits there."""
    disk, answer, job = Disk(), asyncio.Event(), await new_job(database, mode="react")

    async def approve(call: PendingCall) -> Decision:
        await answer.wait()
        return Decision(True)

    async with Inbox.open(database) as inbox:
        work = workshop(Brain(wiping), disk.tools, inbox)
        work = Workshop(work.models, work.tools, work.settings, inbox=inbox, approve=approve)
        task = asyncio.create_task(run_stored_job(database, uuid4(), job, work))
        await until(lambda: asked(database, job))
        await asyncio.sleep(2.5)
        assert (await row_of(database, job))["owner"] is not None
        answer.set()
        assert await task == "ended"
    assert disk.wiped == 1


async def test_decisions_at_any_moment_are_heard(database: Database) -> None:
    """Before the job is parked, while it is, and after."""
    disk, brain = Disk(), Brain(wiping, STEP)
    jobs = [await new_job(database) for _ in range(12)]

    async def human(job: str, number: int) -> None:
        await until(lambda: asked(database, job))
        await asyncio.sleep(0.8 + 0.1 * number)
        await decide(database, job)

    async with worker(database, workshop(brain, disk.tools), slots=12):
        async with asyncio.TaskGroup() as group:
            for number, job in enumerate(jobs):
                group.create_task(human(job, number))
        await until(lambda: over(database, *jobs))
    assert disk.wiped == len(jobs)
    assert {(await row_of(database, job))["status"] for job in jobs} == {"completed"}
    assert brain.kinds.count("make_plan") == len(jobs)


@pytest.mark.parametrize("mode", ["react", "dag"])
async def test_a_call_with_a_secret_waits_where_it_is_known(database: Database, mode: str) -> None:
    """The log masks it: a job that was parked could not make the call any more, whatever a human says."""
    sent: list[str] = []
    secret = "sk-proj-" + "aB3dE6gH9jK2mN5pQ8sT1vW4"

    @tool(requires_approval=True)
    def mail(text: str) -> str:
        """Mails a text."""
        sent.append(text)
        return "sent"

    def step(request: Any) -> Any:
        asked = any(message.role == "tool" for message in request.messages)
        return "done" if asked else [ToolCall("c", "mail", {"text": f"key {secret}"})]

    async def waits() -> bool:
        return (await row_of(database, job))["status"] == "needs_decision"

    async with worker(database, workshop(Brain(step, STEP), [mail])):
        job = await new_job(database, mode=mode)
        await until(waits)
        await asyncio.sleep(2.5)  # others are parked by now
        assert (await row_of(database, job))["owner"] is not None
        await decide(database, job)
        await until(lambda: over(database, job))
    events = await events_of(database, job)
    assert [asked["status"] for asked in told(events, "approval")] == ["waiting", "approved"]
    assert sent == [f"key {secret}"]
    assert secret not in str(events)
