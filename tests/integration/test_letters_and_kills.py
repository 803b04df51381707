"""What is said to a job is heard once, whatever the moment at which its workers die: they are, as far as the database
sees, when another one has claimed the job."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from executor.log.stored import OwnershipLostError, StoredLog
from executor.store.database import Database
from executor.store.jobs import JobStore, NewJob
from executor.workers.inbox import Inbox
from executor.workers.local_job import kept_job
from executor.workers.stored_job import run_stored_job
from registry.messages import ToolCall
from registry.tools import tool
from tests.support.processes import until
from tests.support.stored_jobs import Brain, events_of, look_up, new_job, row_of, told, workshop


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url, size=10) as opened:
        yield opened


def heard(events: list[dict[str, Any]]) -> list[str]:
    """The messages that took effect, in order."""
    return [word for event in told(events, "inject") for word in event["content"].split("\n\n")]


class Lives:
    """Workers of one job, each of which takes it from the one before."""

    def __init__(self, database: Database, job: str, work: Any) -> None:
        self.database, self.job, self.work = database, job, work
        self.tasks: list[asyncio.Task[Any]] = []
        self.lost = 0

    async def next(self) -> None:
        async def life() -> None:
            async with Inbox.open(self.database) as inbox:
                try:
                    await run_stored_job(self.database, uuid4(), self.job, self.work(inbox))
                except* OwnershipLostError:
                    self.lost += 1

        before = (await row_of(self.database, self.job))["owner"]
        self.tasks.append(asyncio.create_task(life()))

        async def claimed() -> bool:
            row = await row_of(self.database, self.job)
            return row["ended_at"] is not None or row["owner"] != before

        await until(claimed)

    async def end(self) -> None:
        for task in self.tasks[:-1]:
            task.cancel()
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                task.result()


@pytest.mark.parametrize("seed", range(4))
async def test_messages_are_heard_once_and_in_order_though_workers_die(database: Database, seed: int) -> None:
    chance, over = random.Random(seed), asyncio.Event()

    async def step(request: Any) -> Any:
        await asyncio.sleep(0.02)
        turns = sum(message.role == "assistant" for message in request.messages)
        return "done" if over.is_set() else [ToolCall(f"c{turns}", "look_up", {"key": f"{turns}"})]

    job = await new_job(database, mode="react", answer_mode="direct")
    settings = {"max_iterations": 10_000, "self_reflection_interval": 10_000}
    lives = Lives(database, job, lambda inbox: workshop(Brain(synthesis=step, step=step), [look_up], inbox, **settings))
    await lives.next()
    words = [f"word {number}" for number in range(25)]

    async def speak() -> None:
        for word in words:
            assert await JobStore(database).send("", job, "message", {"text": word})
            await asyncio.sleep(chance.uniform(0, 0.1))

    async with asyncio.TaskGroup() as group:
        speaking = group.create_task(speak())
        while not speaking.done():
            await asyncio.sleep(chance.uniform(0, 0.5))
            await lives.next()
    await until(lambda: all_heard(database, job, words))
    over.set()
    await lives.end()
    assert len(lives.tasks) > 3
    events = await events_of(database, job)
    assert (await row_of(database, job))["status"] == "completed"
    assert heard(events) == words
    letters = [note["id"] for note in told(events, "note") if note["kind"] == "letter"]
    assert len(letters) == len(set(letters)) == len(words)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


async def all_heard(database: Database, job: str, words: list[str]) -> bool:
    return len(heard(await events_of(database, job))) >= len(words)


@pytest.mark.parametrize("moment", ["taken", "written", "acted on"])
async def test_a_decision_is_not_lost_with_the_worker_that_took_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The worker dies after the letter was taken, when it stands in the log, or when it has just taken effect."""
    stuck, ran = asyncio.Event(), 0
    rows, append = Database.rows, StoredLog._append

    @tool(requires_approval=True, idempotent=True)
    def wipe(disk: str) -> str:
        """Wipes a disk."""
        nonlocal ran
        ran += 1
        return f"wiped {disk}"

    async def stands() -> None:
        stuck.set()
        await asyncio.get_running_loop().create_future()

    async def dies_at_rows(self: Database, name: str, *args: Any) -> Any:
        found = await rows(self, name, *args)
        if moment == "taken" and name == "log.take_letters" and any(row["id"] is not None for row in found):
            await stands()
        return found

    async def dies_at_append(self: StoredLog, events: Any, ending: Any) -> Any:
        row = await append(self, events, ending)
        kinds = {(event.channel, event.payload.get("kind") or event.payload.get("status")) for event in events}
        if (moment == "written" and ("note", "letter") in kinds) or (
            moment == "acted on" and ("approval", "approved") in kinds
        ):
            await stands()
        return row

    def step(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else [ToolCall("c", "wipe", {"disk": "sda"})]

    job = await new_job(database, mode="react", answer_mode="direct")
    lives = Lives(database, job, lambda inbox: workshop(Brain(step, synthesis=step), [wipe], inbox))
    await lives.next()
    await until(lambda: asked(database, job))
    monkeypatch.setattr(Database, "rows", dies_at_rows)
    monkeypatch.setattr(StoredLog, "_append", dies_at_append)
    (question,) = told(await events_of(database, job), "approval")
    decision = {"call_id": question["call_id"], "approve": True}
    assert await JobStore(database).send("", job, "decide", decision)
    await stuck.wait()
    monkeypatch.undo()
    await lives.next()
    await until(lambda: over(database, job))
    await lives.end()
    statuses = [approval["status"] for approval in told(await events_of(database, job), "approval")]
    assert (statuses, ran) == (["waiting", "approved"], 1)
    assert (await row_of(database, job))["status"] == "completed"


async def asked(database: Database, job: str) -> bool:
    return bool(told(await events_of(database, job), "approval"))


async def over(database: Database, job: str) -> bool:
    return (await row_of(database, job))["ended_at"] is not None


async def test_what_a_local_user_says_stands_in_the_log(database: Database) -> None:
    """A worker that goes on with the job, if the user's process dies, knows of it."""
    began, go = asyncio.Event(), asyncio.Event()

    async def step(request: Any) -> Any:
        began.set()
        await go.wait()
        return "done"

    work = workshop(Brain(step, synthesis=step))
    async with kept_job(database, NewJob("a goal", "react"), work) as handle:
        handle.send("at once")
        await began.wait()
        handle.send("in green")
        go.set()
        job = await handle.result()
    events = await events_of(database, job.id)
    notes = [note for note in told(events, "note") if note["kind"] == "letter"]
    assert [(note["id"], note["letter"], note["said"]) for note in notes] == [
        (None, "message", {"text": "at once"}), (None, "message", {"text": "in green"})
    ]  # fmt: skip
    assert heard(events) == ["at once", "in green"]
    assert job.status == "completed"


async def test_a_local_job_that_is_cancelled_before_it_began_ends_as_cancelled(database: Database) -> None:
    async with kept_job(database, NewJob("a goal", "react"), workshop(Brain())) as handle:
        handle.cancel()
        job = await handle.result()
    row = await row_of(database, job.id)
    assert (job.status, row["status"], row["owner"]) == ("cancelled", "cancelled", None)
