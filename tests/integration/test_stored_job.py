"""Jobs out of the database: run whole, everything stored, nothing told twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from executor.store.database import Database
from tests.support.stored_jobs import Brain, events_of, new_job, ran, told, workshop


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url) as opened:
        yield opened


async def test_a_goal_becomes_a_plan_runs_and_is_written_up(database: Database) -> None:
    brain = Brain()
    job = await new_job(database)
    row = await ran(database, workshop(brain), job)
    assert (row["status"], row["owner"], row["summary"]["answer"]) == ("completed", None, "the written answer")
    assert [step["status"] for step in row["summary"]["steps"]] == ["completed"] * 4
    assert brain.kinds == ["make_plan", "step", "step", "step", "step", "judge_result", "synthesis"]
    events = await events_of(database, job)
    assert [event["seq"] for event in events] == list(range(1, row["seq"] + 1))
    assert events[0]["channel"] == "job_started"
    assert events[-1]["channel"] == "done"
    assert len(told(events, "turn")) == 7
    assert [(event["step_id"], event["payload"]["status"]) for event in events if event["channel"] == "step_progress"]
