"""A worker process is killed in the middle of a stage of a job; another one brings the job to its right end."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.store.database import Database
from executor.store.jobs import JobStore
from executor.workers.inbox import Inbox
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.models import as_registry
from registry.result_text import Artifact
from registry.testing import ScriptedLLM
from registry.tool_context import ToolContext
from registry.tools import tool
from tests.support import stored_jobs
from tests.support.dying_worker import ANSWER, die_in, never, workshop
from tests.support.sse import Answer, Sent
from tests.support.stored_jobs import events_of, new_job, ran, told

WHOLE = ["choose_mode", "make_plan", *(f"step {turn}" for _ in "ab" for turn in range(3)), "judge_result",
         "revise_plan", *(f"step {turn}" for turn in range(3)), "judge_result", "synthesis"]  # fmt: skip
"""The model's calls of the whole job."""


PLACES = [("step 2", 2), ("half an answer", 1), ("revise_plan", 1)]
MORE = [
    ("choose_mode", 1), ("make_plan", 1), ("step 0", 1), ("look", 2), ("judge_result", 1), ("step 1", 3),
    ("judge_result", 2), ("synthesis", 1),
]  # fmt: skip
ALL = [*PLACES, *(pytest.param(*place, marks=pytest.mark.heavy) for place in MORE)]


@pytest.mark.parametrize(("kind", "count"), ALL)
async def test_killed_in_the_middle_it_comes_to_its_end(
    database: Database, database_url: str, tmp_path: Path, kind: str, count: int
) -> None:
    job, effects = await new_job(database, mode="auto"), tmp_path / "effects"
    await die_in(database_url, job, kind, count, effects)
    before, asked = await events_of(database, job), list[str]()
    row = await ran(database, workshop(never, asked, effects), job)
    assert (row["status"], row["owner"], row["summary"]["answer"]) == ("completed", None, ANSWER)
    assert [(step["id"], step["status"]) for step in row["summary"]["steps"]] == [(name, "completed") for name in "abe"]
    events = await events_of(database, job)
    _nothing_twice(before, events, asked, effects)
    assert row["summary"]["rounds"] == 2
    assert row["summary"]["usage"]["calls"] == len(told(events, "turn"))
    phases = [payload["phase"] for payload in told(events, "phase")]
    assert phases == ["planning", "executing", "analyzing", "replanning", "executing", "analyzing", "synthesizing"]
    assert _answer(events) == ANSWER


def _nothing_twice(before: list[Any], events: list[Any], asked: list[str], effects: Path) -> None:
    assert events[: len(before)] == before
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert len(told(before, "turn")) + len(asked) == len(told(events, "turn")) == len(WHOLE)
    restored = [payload for payload in told(events, "note") if payload["kind"] == "restored"]
    assert len(restored) == bool(before)
    progress = [event for event in events if event["channel"] == "step_progress"]
    statuses = [(event["step_id"], event["payload"]["status"]) for event in progress]
    assert sorted(statuses) == sorted((name, status) for name in "abe" for status in ("running", "completed"))
    written = [line for line in effects.read_text().splitlines() if line.startswith("write")]
    assert len(written) == len(set(written)) == 3


def _answer(events: list[Any]) -> str:
    """The answer, as a client puts it together that has seen pieces of the dead worker's which were never stored."""
    answer = Answer()
    answer.take(Sent(None, "answer", {"status": "delta", "content": "something else", "offset": 0, "part": 0}))
    for event in events:
        answer.take(Sent(event["seq"], event["channel"], dict(event["payload"])))
    return answer.text


@pytest.mark.parametrize(("approve", "status"), [(True, "completed"), (False, "failed")])
async def test_killed_while_something_takes_effect(
    database: Database, database_url: str, tmp_path: Path, approve: bool, status: str
) -> None:
    """Nobody repeats it, and its step is not completed before a human has spoken."""
    effects = tmp_path / "effects"
    job = await new_job(database, mode="dag", plan={"steps": [{"id": "a", "task": "find x"}]})
    await die_in(database_url, job, "write", 1, effects)
    async with Inbox.open(database) as inbox:
        work = asyncio.create_task(ran(database, replace(workshop(never, [], effects), inbox=inbox), job))
        async with asyncio.timeout(60):
            while not (asked := told(await events_of(database, job), "approval")):
                await asyncio.sleep(0.1)
        assert asked[0]["status"] == "uncertain"
        said = {"call_id": asked[0]["call_id"], "approve": approve, "reason": "looked", "decided_by": "me"}
        await JobStore(database).send("", job, "decide", said)
        row = await work
    step = row["summary"]["steps"][0]
    assert (step["status"], step["error_code"]) == (status, None if approve else "uncertain_effect")
    assert len(effects.read_text().splitlines()) == 2  # look, and write once


async def test_an_artifact_of_a_call_that_is_made_again(database: Database) -> None:
    """It was kept, and nobody had been told: it is not there twice, and what comes later has another name."""
    made: list[str] = []

    @tool(idempotent=True)
    async def report(ctx: ToolContext) -> Artifact:
        """Makes a report."""
        made.append(ctx.key)
        return Artifact("report.html", "text/html", f"<p>{len(made)}</p>".encode())

    def step(request: ChatRequest) -> Any:
        done = sum(message.role == "tool" for message in request.messages)
        return [ToolCall(f"c{done}", "report", {})] if done < 2 else "done"

    brain = stored_jobs.Brain(step, [{"id": "a", "task": "x"}])
    work, job = stored_jobs.workshop(brain, [report]), await new_job(database, mode="dag")
    await ran(database, work, job)
    second = [event["seq"] for event in await events_of(database, job) if event["channel"] == "call"][2]
    await stored_jobs.cut(database, job, second)
    row = await ran(database, work, job)
    assert row["summary"]["artifacts"] == ["report.html", "report-2.html"]
    assert (len(made), len(set(made))) == (3, 2)
    (again,) = await database.rows("log.artifact", job, "report-2.html")
    assert again["data"] == b"<p>3</p>"


async def test_a_model_that_is_no_longer_there(database: Database, database_url: str, tmp_path: Path) -> None:
    """A job whose model has gone can't go on: its account says what was done."""
    job, effects = await new_job(database, mode="dag"), tmp_path / "effects"
    await die_in(database_url, job, "step 0", 2, effects)
    other = ScriptedLLM([], model_id="other")
    row = await ran(database, replace(workshop(never, [], effects), models=as_registry(other)), job)
    summary = row["summary"]
    assert (row["status"], summary["error_code"]) == ("failed", "interrupted")
    assert re.search("no model '(scripted|strong)': there are only these: other", summary["error"])
    assert "Completed until then: a." in summary["error"]
    assert summary["answer"] == "found"


async def test_a_tool_that_is_no_longer_there(database: Database, database_url: str, tmp_path: Path) -> None:
    """A job whose tool has gone goes on without it: the model is told so, and what was begun with it is uncertain."""
    effects = tmp_path / "effects"
    later = await new_job(database, mode="dag", plan={"steps": [{"id": "a", "task": "find x"}]})
    await die_in(database_url, later, "step 1", 1, effects)
    begun = await new_job(database, mode="dag", plan={"steps": [{"id": "a", "task": "find x"}]})
    await die_in(database_url, begun, "write", 1, effects)
    work = workshop(never, [], effects)
    work = replace(work, tools=work.tools.subset(["look"]))
    row = await ran(database, work, later)
    assert row["summary"]["steps"][0]["status"] == "completed"
    rejected = [call for call in told(await events_of(database, later), "call") if call["status"] == "rejected"]
    assert [call["tool_name"] for call in rejected] == ["write"]
    going = asyncio.create_task(ran(database, work, begun))
    async with asyncio.timeout(60):
        while not (asked := told(await events_of(database, begun), "approval")):
            await asyncio.sleep(0.1)
    assert (asked[0]["status"], asked[0]["tool_name"]) == ("uncertain", "write")
    going.cancel()
    await asyncio.wait([going])
    assert len([line for line in effects.read_text().splitlines() if line.startswith("write")]) == 1
