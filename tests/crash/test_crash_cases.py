"""Public cases of processes that die in the middle of a job, with processes that are killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from executor.store.database import Database
from executor.workers.suspects import is_suspect
from tests.support.dying_worker import die_in, never, workshop
from tests.support.stored_jobs import events_of, new_job, ran, row_of, told

FILE = Path(__file__).parents[1] / "cases" / "execution.jsonl"
CASES = {row["id"]: row for row in map(json.loads, FILE.read_text(encoding="utf-8").splitlines())}


def calls_of(events: list[dict[str, Any]], step: str) -> int:
    return sum(event["channel"] == "turn" and event["step_id"] == step for event in events)


async def test_finished_steps_are_not_paid_for_twice(database: Database, database_url: str, tmp_path: Path) -> None:
    """ex-restart-resume: killed at the second step's first call."""
    expected = CASES["ex-restart-resume"]["expect"]
    steps = [{"id": f"step{n}", "task": f"work {n}", "dependencies": [f"step{n - 1}"][: n - 1]} for n in (1, 2, 3)]
    job = await new_job(database, plan={"steps": steps})
    await die_in(database_url, job, "step 0", 2, tmp_path / "effects")
    before, asked = await events_of(database, job), list[str]()
    assert calls_of(before, "step1") == 3
    row = await ran(database, workshop(never, asked, tmp_path / "effects"), job)
    after = await events_of(database, job)
    assert calls_of(after, "step1") - calls_of(before, "step1") == expected["model_calls_for"]["step1"]
    assert {step["id"]: step["status"] for step in row["summary"]["steps"]} == expected["status"]
    assert len(asked) == len(told(after, "turn")) - len(told(before, "turn"))


async def test_a_call_that_died_with_its_worker_counts_as_what_it_may_have_cost(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    steps = [{"id": "s1", "task": "sum again"}]
    job = await new_job(database, plan={"steps": steps}, budget="200k tokens")
    await die_in(database_url, job, "step 1", 1, tmp_path / "effects")
    before = await events_of(database, job)
    (lost,) = [payload for payload in told(before, "budget") if payload["reason"] == "reserved"][1:]
    assert (lost["role"], lost["step_attempt"], lost["model"]) == ("step", 1, "scripted")
    row = await ran(database, workshop(never, [], tmp_path / "effects"), job)
    events, usage = await events_of(database, job), row["summary"]["usage"]
    assert row["status"] == "completed"
    turns = told(events, "turn")
    assert (usage["calls"], usage["partial"]) == (len(turns) + 1, True)
    assert [step["usage"]["partial"] for step in row["summary"]["steps"]] == [True]
    (account,) = [payload for payload in told(events, "budget") if payload["reason"] == "end"]
    known = sum(turn["usage"]["input_tokens"] + turn["usage"]["output_tokens"] for turn in turns)
    assert account["tokens"]["spent"] == known + lost["bound"]["tokens"]


async def test_one_that_dies_at_each_first_call_is_still_a_suspect(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """That a call is about to be sent is stored, and is no progress."""
    job = await new_job(database, plan={"steps": [{"id": "s1", "task": "work"}]}, budget="200k tokens")
    for deaths in (1, 2):
        await die_in(database_url, job, "step 0", 1, tmp_path / "effects")
        reserved = [one for one in told(await events_of(database, job), "budget") if one["reason"] == "reserved"]
        assert len(reserved) == deaths
        assert await is_suspect(database, job) == (deaths > 1)


async def test_what_may_have_been_done_is_not_done_again(database: Database, database_url: str, tmp_path: Path) -> None:
    """ex-restart-side-effect: killed when the tool has done its work, before anybody knows."""
    expected, effects = CASES["ex-restart-side-effect"]["expect"], tmp_path / "effects"
    job = await new_job(database, plan={"steps": [{"id": "s1", "task": "send it"}]})
    await die_in(database_url, job, "write", 1, effects)
    going = asyncio.create_task(ran(database, workshop(never, [], effects), job))
    async with asyncio.timeout(60):
        while not told(await events_of(database, job), "approval"):
            await asyncio.sleep(0.1)
    going.cancel()
    await asyncio.wait([going])
    row = await row_of(database, job)
    assert row["status"] in expected["status_in"]
    writes = [line for line in effects.read_text().splitlines() if line.startswith("write")]
    assert len(writes) == expected["tool_runs"]["send_mail"]
