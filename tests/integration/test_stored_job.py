"""Jobs out of the database: run whole, everything stored before anything follows from it, nothing told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from executor.job import JobRunner
from executor.log.memory import MemoryLog
from executor.log.stored import OwnershipLostError
from executor.store.artifacts import DatabaseArtifacts
from executor.store.database import Database
from executor.workers.stored_job import run_stored_job
from registry import ModelRegistry, Price
from registry.artifacts import MemoryArtifacts
from registry.errors import AuthError
from registry.messages import ToolCall
from registry.redaction import know_secret
from registry.result_text import Artifact
from registry.testing import ScriptedLLM
from registry.tools import Tool, tool
from tests.support.stored_jobs import (
    DIAMOND,
    Brain,
    events_of,
    look_up,
    new_job,
    note,
    ran,
    row_of,
    told,
    with_tools,
    workshop,
)

# Whole jobs


async def test_a_goal_becomes_a_plan_runs_and_is_written_up(database: Database) -> None:
    brain = Brain(with_tools)
    job = await new_job(database, metadata={"who": "me"})
    row = await ran(database, workshop(brain, [look_up, note]), job)
    assert (row["status"], row["owner"], row["summary"]["answer"]) == ("completed", None, "the written answer")
    assert row["ended_at"] is not None
    summary = row["summary"]
    assert [(step["status"], step["tool_calls"]) for step in summary["steps"]] == [("completed", 3)] * 4
    assert (summary["id"], summary["metadata"], summary["usage"]["calls"]) == (job, {"who": "me"}, 15)
    events = await events_of(database, job)
    assert [event["seq"] for event in events] == list(range(1, row["seq"] + 1))
    assert events[0]["channel"] == "job_started"
    assert events[-1]["channel"] == "done"
    assert len(told(events, "turn")) == len(brain.kinds) == 15
    steps = [(event["step_id"], event["payload"]["status"]) for event in events if event["channel"] == "step_progress"]
    assert sorted(steps) == [(name, status) for name in "abcd" for status in ("completed", "running")]


async def test_a_single_agent_s_job(database: Database) -> None:
    brain = Brain(with_tools)
    row = await ran(database, workshop(brain, [look_up, note]), await new_job(database, mode="react"))
    assert (row["status"], row["summary"]["answer"]) == ("completed", "the written answer")
    assert brain.kinds == ["step", "step", "step", "synthesis"]


async def test_a_plan_only(database: Database) -> None:
    brain = Brain()
    job = await new_job(database, kind="plan", mode="auto")
    row = await ran(database, workshop(brain), job)
    assert row["status"] == "completed"
    assert [step["id"] for step in row["summary"]["plan"]["steps"]] == ["a", "b", "c", "d"]
    assert (brain.kinds, row["summary"]["steps"]) == (["make_plan"], [])
    assert [event["channel"] for event in await events_of(database, job)] == [
        "job_started", "phase", "turn", "plan", "done",
    ]  # fmt: skip


async def test_a_plan_that_cannot_be_made_is_a_failed_job(database: Database) -> None:
    circle = {
        "steps": [{"id": "a", "task": "x", "dependencies": ["b"]}, {"id": "b", "task": "y", "dependencies": ["a"]}]
    }
    row = await ran(database, workshop(Brain(make_plan=circle)), await new_job(database, kind="plan"))
    assert (row["status"], row["summary"]["error_code"]) == ("failed", "plan_invalid")
    refused = Brain(make_plan=lambda request: AuthError("no such key"))
    row = await ran(database, workshop(refused), await new_job(database, kind="plan"))
    assert (row["status"], row["summary"]["error_code"]) == ("failed", "auth")


async def test_a_given_plan_is_run_as_it_is(database: Database) -> None:
    brain = Brain()
    row = await ran(database, workshop(brain), await new_job(database, plan={"steps": DIAMOND[:2]}))
    assert row["status"] == "completed"
    assert [step["id"] for step in row["summary"]["steps"]] == ["a", "b"]
    assert "make_plan" not in brain.kinds


async def test_what_a_job_asks_for_is_what_it_gets(database: Database) -> None:
    big, small = Brain(synthesis=with_tools), Brain(synthesis=with_tools)
    models = ModelRegistry()
    models.register("big", ScriptedLLM(big, model_id="big", price=Price(1, 1)), roles=["general"], fallbacks=["small"])
    models.register("small", ScriptedLLM(small, model_id="small", price=Price(1, 1)))
    job = await new_job(
        database,
        mode="react",
        models=["small"],
        tools=["look_up"],
        budget={"usd": "0.5"},
        answer_mode="direct",
        history=[{"role": "user", "content": "my name is Ann"}, {"role": "assistant", "content": "hello Ann"}],
        options={"max_iterations": 2},
    )
    row = await ran(database, workshop(models, [look_up, note]), job)
    assert (big.kinds, len(small.kinds)) == ([], 2)
    started = told(await events_of(database, job), "job_started")[0]
    assert (started["models"], started["tools"]) == ({"small": "small"}, ["look_up"])
    assert [message["content"] for message in started["history"]] == ["my name is Ann", "hello Ann"]
    assert started["budget"] == "0.5usd"
    assert row["cost_usd"] is not None
    assert row["summary"]["error_code"] == "max_iterations"


async def test_a_job_out_of_budget_tells_what_it_found(database: Database) -> None:
    """What an agent did is read back from the database: nobody kept it."""
    brain = Brain(
        lambda request: [ToolCall("c", "look_up", {"key": f"{len(request.messages)}"})],
        synthesis=lambda request: request.messages[-1].content,
    )
    job = await new_job(database, mode="react", budget={"tokens": 20_000})
    row = await ran(database, workshop(brain, [look_up], max_iterations=500), job)
    assert (row["status"], row["summary"]["error_code"]) == ("budget_exceeded", "budget_exceeded")
    assert "value of" in row["summary"]["answer"]


@pytest.mark.parametrize(
    ("asked", "code", "word"),
    [
        ({"models": ["nobody"]}, "unknown_model", "nobody"),
        ({"tools": ["nothing"]}, "unknown_tool", "nothing"),
        ({"options": {"max_steps": 0}}, "configuration", "options.max_steps"),
        ({"options": {"workspace": "/"}}, "configuration", "options.workspace"),
        ({"budget": "much"}, "usage", "much"),
        ({"plan": {"steps": []}}, "plan_invalid", "step"),
        ({"history": [{"content": "nobody said it"}]}, "internal", "role"),
    ],
)
async def test_what_cannot_be_had_ends_the_job_without_a_call(
    database: Database, asked: dict[str, Any], code: str, word: str
) -> None:
    brain = Brain()
    job = await new_job(database, **asked)
    row = await ran(database, workshop(brain), job)
    assert (row["status"], row["summary"]["error_code"], brain.kinds) == ("failed", code, [])
    assert word in row["summary"]["error"]
    assert [event["channel"] for event in await events_of(database, job)] == ["done"]


async def test_an_ended_job_is_not_run_again(database: Database) -> None:
    job, brain = await new_job(database), Brain()
    first = await ran(database, workshop(brain), job)
    calls = len(brain.kinds)
    assert await ran(database, workshop(brain), job) == first
    await run_stored_job(database, uuid4(), "job_nobody", workshop(brain))
    assert len(brain.kinds) == calls


# The same as in memory

TIMES = {"started_at", "ended_at", "duration", "elapsed", "iter_elapsed", "marker", "offset", "part"}


def timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: timeless(item) for name, item in value.items() if name not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list | tuple) else value


def folded(events: list[Any]) -> dict[str | None, list[Any]]:
    """What was told, by step, in order; pieces of an answer joined."""
    found: dict[str | None, list[Any]] = {}
    for event in events:
        said = found.setdefault(event["step_id"], [])
        payload = timeless(event["payload"])
        if payload.get("status") == "delta" and said[-1][1].get("status") == "delta":
            said[-1][1]["content"] += payload["content"]
        else:
            said.append((event["channel"], payload))
    return found


def one_by_one(request: Any) -> Any:
    """Calls side by side would end in any order."""
    done = sum(message.role == "tool" for message in request.messages)
    calls = [ToolCall("c1", "look_up", {"key": "x"}), ToolCall("c2", "note", {"text": "y"})]
    return [calls[done]] if done < 2 else "step result"


@pytest.mark.parametrize("mode", ["dag", "react"])
async def test_the_stored_history_is_that_of_memory(database: Database, mode: str) -> None:
    answers: dict[str, Any] = {"synthesis": "a long answer, " * 30}
    row = await row_of(database, await new_job(database, mode=mode))
    log = MemoryLog(row["id"])
    work = workshop(Brain(one_by_one, **answers), [look_up, note])
    await JobRunner(work.job(row, log, MemoryArtifacts(), log.barrier)).run()
    memory = [{"step_id": event.step_id, "channel": event.channel, "payload": event.payload} for event in log.events]
    await ran(database, workshop(Brain(one_by_one, **answers), [look_up, note]), row["id"])
    assert folded(await events_of(database, row["id"])) == folded(memory)


# Durable before anything follows


async def test_nothing_is_used_before_it_is_stored(database: Database) -> None:
    """Each call, of models and of tools that write, finds everything stored that led to it."""
    job = await new_job(database, steps=None)
    looker = await asyncpg.connect(database.dsn)
    lock = asyncio.Lock()

    async def stored(channel: str) -> list[Any]:
        async with lock:
            rows = await looker.fetch(
                "select payload::text from dw_events where job = $1 and channel = $2", job, channel
            )
        return [row["payload"] for row in rows]

    seen: list[str] = []

    async def write(text: str) -> str:
        calls = await stored("call")
        assert sum('"start"' in call and text in call for call in calls) == 1
        assert not any('"end"' in call and text in call for call in calls)
        seen.append(text)
        return f"written {text}"

    writes = Tool("write", "Writes.", {"properties": {"text": {"type": "string"}}}, write)
    turns = 0

    async def step(request: Any) -> Any:
        nonlocal turns
        turns += 1
        assert len(await stored("turn")) == turns  # the planner's is one
        assert any('"running"' in change for change in await stored("step_progress"))
        written = [message.content for message in request.messages if message.role == "tool"]
        if written:
            assert any('"end"' in call for call in await stored("call"))
            return "done"
        return [ToolCall("c", "write", {"text": f"text-{turns}"})]

    line = [{"id": "a", "task": "x", "dependencies": []}, {"id": "b", "task": "y", "dependencies": ["a"]}]
    row = await ran(database, workshop(Brain(step, line), [writes]), job)
    await looker.close()
    assert (row["status"], row["summary"]["error"], seen) == ("completed", None, ["text-1", "text-3"])


async def test_statements_of_a_job(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most three a step, one a model call, two a call that writes, and a handful for the job itself."""
    names: list[str] = []
    rows, row = Database.rows, Database.row

    async def counted_rows(self: Database, name: str, *args: Any) -> Any:
        names.append(name)
        return await rows(self, name, *args)

    async def counted_row(self: Database, name: str, *args: Any) -> Any:
        names.append(name)
        return await row(self, name, *args)

    job = await new_job(database)
    brain = Brain(with_tools)
    monkeypatch.setattr(Database, "rows", counted_rows)
    monkeypatch.setattr(Database, "row", counted_row)
    await run_stored_job(database, uuid4(), job, workshop(brain, [look_up, note]))
    monkeypatch.undo()
    events = await events_of(database, job)
    writing = sum(call["status"] == "start" and call["tool_name"] == "note" for call in told(events, "call"))
    assert writing == 8
    assert names.count("log.append") <= 3 * 4 + len(brain.kinds) + 2 * writing + 2
    assert len(names) - names.count("log.append") <= 2  # claim, letters


async def test_secrets_are_masked_in_the_database(database: Database) -> None:
    know_secret("sk-very-secret-key-0123456789")
    leak = "the key is sk-very-secret-key-0123456789"
    brain = Brain(lambda request: leak, synthesis=leak, judge_result={
        "achieved": True, "confidence": 0.9, "reasoning": leak, "final_answer": leak,
    })  # fmt: skip
    job = await new_job(database, goal=f"use it: {leak}")
    await ran(database, workshop(brain), job)
    async with database.connection() as connection:
        text = await connection.fetchval(
            "select string_agg(payload::text, '') || (select summary::text from dw_jobs) from dw_events"
        )
    assert "the key is" in text
    assert "sk-very-secret" not in text


async def test_artifacts_are_kept_under_names_of_their_own(database: Database) -> None:
    @tool
    def report() -> Artifact:
        """Makes a report."""
        return Artifact("report.html", "text/html", "<p>hello</p>")

    def step(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else [ToolCall("c", "report", {})]

    job = await new_job(database)
    row = await ran(database, workshop(Brain(step), [report]), job)
    names = {"report.html", "report-2.html", "report-3.html", "report-4.html"}
    assert set(row["summary"]["artifacts"]) == names
    kept = await database.row("jobs.artifact", job, "", "report-3.html")
    assert kept is not None
    assert (kept["mime"], kept["data"]) == ("text/html", b"<p>hello</p>")
    store = await DatabaseArtifacts.load(database, job, uuid4())
    assert set(store.names()) == names
    assert (await store.get("report.html")).data == b"<p>hello</p>"
    with pytest.raises(OwnershipLostError):  # the job has ended: nobody owns it
        await store.put(Artifact("late.txt", "text/plain", "late"))
    assert len(await database.rows("jobs.artifacts", job, "")) == 4
