"""A worker process is killed in the middle of a cascade; another one goes on with the choices that were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.store.database import Database
from tests.support.dying_worker import die_in, never, workshop
from tests.support.stored_jobs import events_of, new_job, ran, told

PLAN = {"steps": [{"id": "a", "task": "find x"}, {"id": "b", "task": "double x", "dependencies": ["a"]}]}
ROUTING = {"routing": {"use": "cascade", "models": ["general", "reasoning"]}, "max_replan_rounds": 1}
PLACES = [("report_confidence", 1), ("step 1", 2)]
MORE = [("step 0", 1), ("step 0", 2), ("report_confidence", 2), ("step 2", 3), ("judge_result", 1)]
ALL = [*PLACES, *(pytest.param(*place, marks=pytest.mark.heavy) for place in MORE)]


@pytest.mark.parametrize(("kind", "count"), ALL)
async def test_killed_in_a_cascade(
    database: Database, database_url: str, tmp_path: Path, kind: str, count: int
) -> None:
    """Killed while the weak model is asked how sure it is, or while the strong one does the step anew."""
    job, effects = await new_job(database, plan=PLAN, options=ROUTING), tmp_path / "effects"
    await die_in(database_url, job, kind, count, effects)
    before, asked = await events_of(database, job), list[str]()
    row = await ran(database, workshop(never, asked, effects), job)
    steps = row["summary"]["steps"]
    assert [(step["status"], step["model"], step["escalated_from"], step["attempts"]) for step in steps] == [
        ("completed", "strong", "scripted", 2)
    ] * 2
    events = await events_of(database, job)
    assert events[: len(before)] == before
    assert _choices(events) == [(name, model) for name in "ab" for model in ("scripted", "strong")]
    assert len(told(before, "turn")) + len(asked) == len(told(events, "turn"))
    agents = ["step 0", "step 1", "step 2"]
    done = [*agents, "report_confidence", *agents] * 2
    assert len(told(events, "turn")) == len(done) + 2  # the verdict and the answer
    written = [line for line in effects.read_text().splitlines() if line.startswith("write")]
    assert len(written) == len(set(written)) == 4  # each of two agents in each step, none twice


def _choices(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["step_id"], event["payload"]["model"]) for event in events if event["channel"] == "route"]
