"""What is said to a stored job reaches it, once; who lost a job writes nothing; what a worker leaves behind is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from executor.log.stored import OwnershipLostError, StoredLog
from executor.store.database import BusyError, Database
from executor.store.jobs import JobStore
from executor.workers.handover import let_go
from executor.workers.inbox import Inbox
from executor.workers.stored_job import run_stored_job
from executor.workers.workshop import Workshop
from registry.messages import ToolCall
from registry.tools import tool
from tests.support.stored_jobs import Brain, events_of, look_up, new_job, note, ran, row_of, told, workshop

LINE = [{"id": "a", "task": "x", "dependencies": []}, {"id": "b", "task": "y", "dependencies": ["a"]}]


class Held:
    """A step's reply that the test holds back; further replies come at once."""

    def __init__(self, reply: Any = "step result") -> None:
        self.reply = reply
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Any) -> Any:
        self.began.set()
        await self.go.wait()
        return self.reply


async def until(true: Callable[[], Any], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if await found if hasattr(found, "__await__") else found:
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    database: Database, brain: Any, job: str, tools: Any = (), look: float = 3.0, **settings: Any
) -> AsyncIterator[asyncio.Task[None]]:
    async with Inbox.open(database, look=look) as inbox:
        work: Workshop = workshop(brain, tools, inbox, **settings)
        task = asyncio.create_task(run_stored_job(database, uuid4(), job, work))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})


async def say(database: Database, job: str, kind: str, **said: Any) -> None:
    assert await JobStore(database).send("", job, kind, said)


# Letters


async def test_a_message_is_planned_for(database: Database) -> None:
    held = Held()
    brain = Brain(held, LINE, revise_plan={"keep": ["a"], "steps": [{"id": "c", "task": "z", "dependencies": []}]})
    job = await new_job(database)
    async with running(database, brain, job) as task:
        await held.began.wait()
        await say(database, job, "message", text="in French, please")
        await until(lambda: letters_taken(database))
        held.go.set()
        await task
    assert told(await events_of(database, job), "inject") == [{"type": "inject", "content": "in French, please"}]
    row = await row_of(database, job)
    assert "revise_plan" in brain.kinds
    assert (row["status"], "in French, please" in row["summary"]["goal"]) == ("completed", True)


async def letters_taken(database: Database) -> bool:
    async with database.connection() as connection:
        return bool(await connection.fetchval("select count(*) > 0 and bool_and(taken_at is not null) from dw_inbox"))


async def test_a_message_that_came_before_the_worker_is_heard(database: Database) -> None:
    job = await new_job(database, mode="react")
    await say(database, job, "message", text="and in green")
    brain = Brain()
    row = await ran(database, workshop(brain), job)
    assert row["status"] == "completed"
    assert told(await events_of(database, job), "inject")[0]["content"] == "and in green"


async def test_a_stop_ends_with_grace(database: Database) -> None:
    held, job = Held(), await new_job(database)
    async with running(database, Brain(held, LINE), job) as task:
        await held.began.wait()
        await say(database, job, "stop")
        await until(lambda: letters_taken(database))
        held.go.set()
        await task
    summary = (await row_of(database, job))["summary"]
    assert (summary["status"], summary["error_code"]) == ("cancelled", "stopped")
    assert [step["status"] for step in summary["steps"]] == ["completed", "skipped"]


async def test_one_step_is_cancelled(database: Database) -> None:
    held, job = Held(), await new_job(database)
    async with running(database, Brain(held, LINE, judge_result=None), job, max_replan_rounds=1) as task:
        await held.began.wait()
        await say(database, job, "cancel_step", step_id="a")
        await task
    assert [step["status"] for step in (await row_of(database, job))["summary"]["steps"]] == ["cancelled", "skipped"]


async def test_a_letter_nobody_can_follow_costs_nothing(database: Database) -> None:
    held, job = Held(), await new_job(database, mode="react")
    async with running(database, Brain(held), job) as task:
        await held.began.wait()
        await say(database, job, "cancel_step", step_id="a")
        await say(database, job, "decide", call_id="none", approve=True)
        await say(database, job, "message")
        await say(database, job, "sing")
        await until(lambda: letters_taken(database))
        held.go.set()
        await task
    assert (await row_of(database, job))["status"] == "completed"


async def test_a_cancel_reaches_a_model_call_at_once(database: Database) -> None:
    held, job = Held(), await new_job(database)
    async with running(database, Brain(held, LINE), job, look=600) as task:
        await held.began.wait()
        await JobStore(database).cancel("", job)
        await asyncio.wait_for(task, 5)
    row = await row_of(database, job)
    assert (row["status"], row["summary"]["error_code"]) == ("cancelled", "cancelled")
    assert [step["status"] for step in row["summary"]["steps"]] == ["cancelled", "skipped"]
    assert [event["seq"] for event in await events_of(database, job)] == list(range(1, row["seq"] + 1))


async def test_a_cancel_is_seen_when_no_notification_comes(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def deaf(self: Database, channels: Any, heard: Any, reconnected: Any) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(Database, "listening", deaf)
    held, job = Held(), await new_job(database)
    async with running(database, Brain(held, LINE), job, look=0.05) as task:
        await held.began.wait()
        await JobStore(database).cancel("", job)
        await asyncio.wait_for(task, 5)
    assert (await row_of(database, job))["status"] == "cancelled"


async def test_a_lost_connection_costs_no_letter(database: Database) -> None:
    held, job = Held(), await new_job(database)
    async with running(database, Brain(held, LINE), job) as task:
        await held.began.wait()
        async with database.connection() as connection:
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        await JobStore(database).cancel("", job)
        await asyncio.wait_for(task, 5)
    assert (await row_of(database, job))["status"] == "cancelled"


async def test_a_letter_whose_taking_was_not_heard_of_comes_again_and_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the statement that takes letters is lost, every other time."""
    rows, asked = Database.rows, 0

    async def lossy(self: Database, name: str, *args: Any) -> Any:
        nonlocal asked
        found = await rows(self, name, *args)
        if name == "log.take_letters":
            asked += 1
            if asked % 2:
                raise BusyError
        return found

    monkeypatch.setattr(Database, "rows", lossy)
    held, job = Held(), await new_job(database, mode="react")
    async with running(database, Brain(held), job) as task:
        await held.began.wait()
        for number in range(4):
            await say(database, job, "message", text=f"word {number}")
            await asyncio.sleep(0.05)
        await until(lambda: letters_taken(database))
        await asyncio.sleep(0.2)  # the answer to the last taking
        held.go.set()
        await task
    said = "\n\n".join(event["content"] for event in told(await events_of(database, job), "inject"))
    assert said == "\n\n".join(f"word {number}" for number in range(4))
    assert asked > 4


# Decisions


@tool(requires_approval=True)
def wipe(disk: str) -> str:
    """Wipes a disk."""
    return f"wiped {disk}"


def wiping(request: Any) -> Any:
    return "done" if request.messages[-1].role == "tool" else [ToolCall("c", "wipe", {"disk": "sda"})]


@pytest.mark.parametrize("mode", ["dag", "react"])
@pytest.mark.parametrize("approve", [True, False])
async def test_a_decision_lets_a_call_go_on(database: Database, mode: str, approve: bool) -> None:
    job = await new_job(database, mode=mode)
    async with running(database, Brain(wiping, LINE[:1]), job, [wipe]) as task:

        async def waits() -> bool:
            return bool((await row_of(database, job))["status"] == "needs_decision")

        await until(waits)
        (asked,) = told(await events_of(database, job), "approval")
        assert (asked["status"], asked["tool_args"]) == ("waiting", {"disk": "sda"})
        await say(database, job, "decide", call_id=asked["call_id"], approve=approve, reason="since", decided_by="ann")
        await task
    assert (await row_of(database, job))["status"] == "completed"
    events = await events_of(database, job)
    decided = told(events, "approval")[1]
    assert (decided["status"], decided["decided_by"]) == ("approved" if approve else "rejected", "ann")
    assert [call["status"] for call in told(events, "call")] == (["start", "end"] if approve else ["rejected"])


async def test_a_job_of_which_something_goes_on_waits_for_nobody(database: Database) -> None:
    held, job = Held(), await new_job(database)

    async def step(request: Any) -> Any:
        asks = "wipe it" in request.messages[-1].content or request.messages[-1].role == "tool"
        return wiping(request) if asks else await held(request)

    plan = {"steps": [{"id": "a", "task": "wipe it", "dependencies": []}, {"id": "b", "task": "y", "dependencies": []}]}
    async with running(database, Brain(step, make_plan=plan), job, [wipe]) as task:

        async def asked() -> bool:
            return bool(told(await events_of(database, job), "approval"))

        await until(asked)
        assert (await row_of(database, job))["status"] == "running"
        held.go.set()

        async def waits() -> bool:
            return bool((await row_of(database, job))["status"] == "needs_decision")

        await until(waits)
        await say(database, job, "cancel_step", step_id="a")
        await task
    assert {step["id"]: step["status"] for step in (await row_of(database, job))["summary"]["steps"]} == {
        "a": "cancelled",
        "b": "completed",
    }


# Ownership, crashes, ends


async def test_a_job_cancelled_in_the_queue_ends_without_a_call(database: Database) -> None:
    job, brain = await new_job(database), Brain()
    await JobStore(database).cancel("", job)
    row = await ran(database, workshop(brain), job)
    assert (row["status"], row["summary"]["status"], brain.kinds) == ("cancelled", "cancelled", [])
    assert [event["channel"] for event in await events_of(database, job)] == ["done"]


@pytest.mark.parametrize("how", ["stolen", "deleted"])
async def test_who_lost_a_job_writes_and_calls_nothing_more(database: Database, how: str) -> None:
    effects: list[str] = []

    @tool
    def note(text: str) -> str:
        """Writes a text down."""
        effects.append(text)
        return "noted"

    held, job = Held([ToolCall("c", "note", {"text": "x"})]), await new_job(database)
    brain = Brain(held, [{"id": name, "task": name, "dependencies": []} for name in "abc"], judge_result=None)
    task = asyncio.create_task(run_stored_job(database, uuid4(), job, workshop(brain, [note], step_retries=3)))
    await held.began.wait()
    await until(lambda: len(brain.kinds) == 4)
    async with database.connection() as connection:
        if how == "stolen":
            await connection.execute("update dw_jobs set owner = $1", uuid4())
        else:
            await connection.execute("delete from dw_jobs")
    before = await events_of(database, job)
    held.go.set()
    with pytest.raises(OwnershipLostError):
        await task
    assert await events_of(database, job) == before
    assert (len(brain.kinds), effects) == (4, [])
    rows = await database.rows("jobs.get", job, "")
    assert [row["status"] for row in rows] == (["running"] if how == "stolen" else [])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_stolen_job_s_letters_are_the_other_s(database: Database) -> None:
    held, job = Held(), await new_job(database, mode="react")
    async with running(database, Brain(held), job) as task:
        await held.began.wait()
        async with database.connection() as connection:
            await connection.execute("update dw_jobs set owner = $1", uuid4())
        await say(database, job, "message", text="for the new one")
        with pytest.raises(OwnershipLostError):
            await asyncio.wait_for(task, 5)
    async with database.connection() as connection:
        assert await connection.fetchval("select count(*) from dw_inbox where taken_at is null") == 1


async def test_a_worker_that_is_stopped_leaves_a_whole_log_without_an_end(database: Database) -> None:
    held, job = Held(), await new_job(database)
    task = asyncio.create_task(run_stored_job(database, uuid4(), job, workshop(Brain(held, LINE))))
    await held.began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    row = await row_of(database, job)
    assert (row["status"], row["owner"], row["ended_at"]) == ("running", None, None)
    events = await events_of(database, job)
    assert [event["seq"] for event in events] == list(range(1, row["seq"] + 1))
    assert [event["status"] for event in told(events, "step_progress")] == ["running"]  # nobody cancelled it
    assert [turn["error"] and turn["error"]["code"] for turn in told(events, "turn")][
        -1
    ] == "cancelled"  # it may have cost
    assert "done" not in {event["channel"] for event in events}
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("when", ["it runs", "its end is written"])
async def test_a_stop_of_the_worker_keeps_the_end(
    database: Database, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The account is written while the task is cancelled, and a call comes for a job that has just ended."""
    held, job = Held(), await new_job(database, mode="react")
    ending = asyncio.Event()
    append = StoredLog._append

    async def slow(self: StoredLog, events: Any, end: Any) -> Any:
        if end is None:
            return await append(self, events, end)
        ending.set()
        await asyncio.sleep(0.1)
        row = await append(self, events, end)
        async with database.connection() as connection:
            await connection.execute("select pg_notify('dw_inbox', $1)", job)
        await asyncio.sleep(0.2)
        return row

    monkeypatch.setattr(StoredLog, "_append", slow)
    async with running(database, Brain(held), job) as task:
        await held.began.wait()
        if when != "it runs":
            held.go.set()
            await ending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    row = await row_of(database, job)
    assert row["status"] == ("running" if when == "it runs" else "completed")
    assert row["owner"] is None


async def test_what_a_dead_worker_left_goes_on_and_nothing_is_done_again(database: Database) -> None:
    """The first worker dies, as far as the database sees, while b's call is under way."""
    entered = asyncio.Event()

    @tool
    async def send(text: str) -> str:
        """Sends a letter."""
        entered.set()
        await asyncio.get_running_loop().create_future()
        return ""

    def step(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return "x is 41"
        b = any("x is 41" in message.content for message in request.messages)
        return [ToolCall("c", "send", {"text": "hello"}) if b else ToolCall("c", "look_up", {"key": "x"})]

    job, brain = await new_job(database, metadata={"who": "me"}), Brain(step, LINE)
    first = asyncio.create_task(run_stored_job(database, uuid4(), job, workshop(brain, [look_up, send])))
    await entered.wait()
    before, second = await row_of(database, job), uuid4()
    async with database.connection() as connection:  # paused, and picked up by another
        await connection.execute("update dw_jobs set owner = $1", second)
    calls = list(brain.kinds)
    entered.clear()
    async with running(database, brain, job, [look_up, send]) as task:

        async def asked() -> list[Any]:
            return [
                told_ for told_ in told(await events_of(database, job), "approval") if told_["status"] == "uncertain"
            ]

        await until(asked)
        (question,) = await asked()
        await say(database, job, "decide", call_id=question["call_id"], approve=True, reason="it is there")
        await task
    row = await row_of(database, job)
    assert not entered.is_set()
    assert brain.kinds == [*calls, "step", "judge_result", "synthesis"]
    assert row["status"] == "completed"
    assert row["summary"]["metadata"] == {"who": "me"}
    assert row["summary"]["usage"]["calls"] == len(brain.kinds)
    assert row["seq"] > before["seq"]
    first.cancel()
    with pytest.raises((OwnershipLostError, asyncio.CancelledError)):
        await first
    assert (await row_of(database, job))["seq"] == row["seq"]


async def test_a_job_that_is_given_twice_to_one_process_runs_once(database: Database) -> None:
    """As the queue does when it could not hear the process for a while."""
    held, job, owner = Held(), await new_job(database, mode="react"), uuid4()
    brain = Brain(held)
    async with Inbox.open(database) as inbox:
        work = workshop(brain, inbox=inbox)
        tasks = [asyncio.create_task(run_stored_job(database, owner, job, work)) for _ in range(3)]
        await held.began.wait()
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in tasks)
        held.go.set()
        await asyncio.gather(*tasks)
    assert (await row_of(database, job))["status"] == "completed"
    assert brain.kinds == ["step", "synthesis"]


async def crash(database: Database, job: str) -> bool:
    """A process for this job alone dies of it; whether that counts."""
    owner = uuid4()
    await database.row("log.claim", job, owner)
    return await database.row("jobs.crashed", job, owner) is not None


async def test_a_job_that_kills_its_workers_is_given_up(database: Database) -> None:
    job, brain = await new_job(database), Brain()
    for _ in range(5):
        assert await crash(database, job)
    row = await ran(database, workshop(brain), job)
    assert (row["status"], row["summary"]["error_code"], brain.kinds) == ("failed", "crashed", [])
    assert "5 processes in a row" in row["summary"]["error"]


@pytest.mark.parametrize("crashes", [5, 7])
async def test_a_job_whose_recovery_kills_its_workers_is_given_up_with_what_it_had(
    database: Database, crashes: int
) -> None:
    held, job = Held(), await new_job(database)
    async with running(database, Brain(held, LINE), job) as task:
        await held.began.wait()
        task.cancel()
    brain = Brain()
    for _ in range(crashes):
        assert await crash(database, job)
    row = await ran(database, workshop(brain), job)
    assert (row["status"], row["summary"]["error_code"], brain.kinds) == ("failed", "crashed", [])
    assert f"{crashes} processes in a row" in row["summary"]["error"]
    assert len(row["summary"]["steps"] or ()) == (2 if crashes == 5 else 0)  # later, even reading it is not tried


async def test_crashes_count_only_in_a_row_and_without_a_word(database: Database) -> None:
    job, owner = await new_job(database), uuid4()

    async def is_suspect() -> bool:
        return await database.row("jobs.suspect", job) is not None

    assert not await is_suspect()
    await database.row("log.claim", job, owner)
    assert await is_suspect()  # its worker is gone, if somebody asks
    assert await let_go(database, job, owner, waits=False, seconds=None, letters=()) is False
    assert not await is_suspect()  # it was handed over
    for _ in range(4):
        assert await crash(database, job)
    assert await is_suspect()
    await database.row("log.claim", job, owner)
    log = StoredLog(job, database, owner)
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(log.serve())
        log.append("note", {"kind": "x", "content": ""})
        await log.barrier()
        writer.cancel()
    assert await database.row("jobs.crashed", job, owner) is None  # it wrote something new
    assert not await is_suspect()
    row = await database.row("log.claim", job, owner)
    assert row is not None
    assert row["crashes"] == 0


# Many at once


async def test_five_hundred_jobs_share_five_connections(database: Database) -> None:
    """No connection is held during a model call, or none of them would come to an end."""
    asleep = most = 0

    async def step(request: Any) -> Any:
        nonlocal asleep, most
        asleep += 1
        most = max(most, asleep)
        await asyncio.sleep(0.2)
        asleep -= 1
        return "done" if request.messages[-1].role == "tool" else [ToolCall("c", "note", {"text": "x"})]

    jobs = []
    for number in range(500):
        jobs.append(await new_job(database, mode="react", answer_mode="direct", goal=f"goal {number}"))
    owner = uuid4()
    async with Inbox.open(database) as inbox, asyncio.timeout(60):
        work = workshop(Brain(synthesis=step), [note], inbox)
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(run_stored_job(database, owner, job, work))
    async with database.connection() as connection:
        ended = await connection.fetch("select status, count(*) from dw_jobs group by status")
        gaps = await connection.fetchval(
            "select count(*) from dw_jobs j where seq <> (select count(*) from dw_events where job = j.id)"
        )
    assert [(row["status"], row["count"]) for row in ended] == [("completed", 500)]
    assert gaps == 0
    assert most > 50
