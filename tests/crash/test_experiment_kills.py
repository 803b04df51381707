"""Workers, the server and the database are killed while an experiment runs: its cells go on, none of them runs twice,
and its report is that of one that nobody disturbed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.skilled import Skill, Skilled, plan_task
from tests.support.chaos import World, until, world

SKILL = Skill(0.8, 0.5, delay=0.25)
TASKS, REPEATS = 8, 2
BLOWS = ("worker", "server", "worker", "everything", "worker")
TWICE = """
select job, channel from dw_events where channel in ('job_started', 'done') group by job, channel having count(*) > 1
"""


def body(name: str) -> dict[str, Any]:
    tasks = [{**plan_task(number), "target": str(plan_task(number)["target"])} for number in range(TASKS)]
    return {
        "experiment": {"name": name, "tasks": tasks, "repeats": REPEATS, "concurrency": 4, "seed": 5},
        "grader": {"use": "contains"},
        "arms": {"one by one": {"mode": "dag", "options": {"max_concurrency": 1}}, "side by side": {"mode": "dag"}},
    }


async def begun(here: World, name: str) -> str:
    reply = await here.asked("POST", "/v1/experiments", body(name), {"Idempotency-Key": name})
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


async def standing(here: World, experiment: str) -> dict[str, Any]:
    found: dict[str, Any] = (await here.asked("GET", f"/v1/experiments/{experiment}")).json()
    return found


async def ended(here: World, experiment: str) -> dict[str, Any]:
    async def over() -> bool:
        return bool((await standing(here, experiment))["status"] == "ended")

    await until(over, "it does not come to its end", 240)
    return await standing(here, experiment)


def judged(report: dict[str, Any]) -> list[Any]:
    """What of a report must not depend on what happened meanwhile."""
    names = ("name", "quality", "n_cells", "missing", "statuses", "failures", "models", "escalated", "pgr")
    differences = [one["quality"] for one in report["differences"]]
    return [[{name: arm[name] for name in names} for arm in report["arms"]], differences]


@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_whatever_is_killed_the_report_is_the_same(tmp_path: Path) -> None:
    async with world(tmp_path, 23, heartbeat_timeout=2.0) as here:
        here.fake.script, here.fake.models = Skilled({name: SKILL for name in here.fake.models}), here.fake.models
        await here.start_server(workers=2)
        await here.start_host()
        experiment = await begun(here, "disturbed")
        for number, blow in enumerate(BLOWS):
            before = (await standing(here, experiment))["ended"]

            async def further(before: int = before) -> bool:
                rows = await here.sql("select count(*) from dw_jobs where ended_at is not null")
                return bool(rows[0]["count"] >= before + 2)

            await until(further, f"nothing ends after {number} kills")
            await asyncio.sleep(here.random.random())
            await here.strike(blow)
            await here.serves()
        found = await ended(here, experiment)
        total = 2 * TASKS * REPEATS
        assert (found["counts"]["succeeded"], found["counts"]["total"], found["ended"]) == (total, total, total)
        rows = await here.sql(
            "select cell::text as cell, count(*) from dw_jobs where batch = $1 group by 1", experiment
        )
        assert len(rows) == total
        assert {row["count"] for row in rows} == {1}
        assert await here.sql(TWICE) == []
        turns = (await here.sql("select count(*) from dw_events where channel = 'turn'"))[0]["count"]
        under_way = sum(blow.open for blow in here.blows)
        assert here.fake.billed.calls <= turns + under_way  # what was paid for twice was under way at a kill
        path = f"/v1/experiments/{experiment}/report"
        report = await here.asked("GET", path)
        assert report.status_code == 200, report.text
        again = await begun(here, "undisturbed")
        await ended(here, again)
        other = (await here.asked("GET", f"/v1/experiments/{again}/report")).json()
        assert judged(report.json()) == judged(other)
        await here.strike("server")
        await here.serves()
        assert (await here.asked("GET", path)).content == report.content
