"""Public cases of processes that die in the middle of a job, with processes that are killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from executor.store.database import Database
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
