"""Jobs that wait for a human take no slot, outlive every process, and go on when they are decided."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.chaos import World, until, world
from tests.support.chaos_checks import examined
from tests.support.chaos_storm import rested
from tests.support.chaos_work import Task, Work

WAITING = 4


def asking(number: int) -> Work:
    tag = f"J{number:03d}"
    task = Task("a", ((("record", f"{tag}.a.1"),), (("send", f"{tag}.a.2"),), (("put", f"{tag}.a.3"),)))
    return Work(tag, ("given", "planned", "react")[number % 3], {"a": task}, approvals=True)


@pytest.mark.heavy
@pytest.mark.timeout(240)
async def test_a_wait_outlives_everything_and_takes_no_slot(tmp_path: Path) -> None:
    async with world(tmp_path, 17, heartbeat_timeout=1.0, jobs_per_worker=2) as here:
        here.deciding = False
        await here.start_server(workers=1)
        assert here.server is not None
        for number in range(WAITING):
            await here.begin(asking(number))
        await until(lambda: _all_wait(here), here.server.text)
        await _another_one_runs(here, 100)
        await here.strike("worker")
        await until(lambda: here.server.text().count('"worker_ready"') > 1, "no new worker")
        await _another_one_runs(here, 101)
        await here.strike("postgres")
        await here.strike("server")
        await here.serves()
        (worker,) = here.server.below()
        os.kill(worker, signal.SIGTERM)
        await _another_one_runs(here, 102)
        assert await _all_wait(here)
        shown = (await here.asked("GET", f"/v1/jobs/{here.works[0].job_id}")).json()
        assert (shown["status"], len(shown["approvals"])) == ("needs_decision", 1)
        for job_id, call_id in list(here.undecided):
            assert await here.decide(job_id, call_id) == 202
        await rested(here)
        found = await examined(here)
        assert found.faults == [], "\n".join(found.faults)
        assert found.figures["jobs"] == {"completed": WAITING + 3}
        assert found.figures["replies lost"] == 0
        assert [line["what"] for line in here.effects() if line["tool"] == "send"] != []


async def _all_wait(here: World) -> bool:
    """Nobody runs them, and no queue holds them."""
    rows = await here.sql(
        "select status, owner, exists (select from pgqueuer where dedupe_key = dw_jobs.id) as queued from dw_jobs "
        "where id = any ($1::text[])", [work.job_id for work in here.works if work.approvals],
    )  # fmt: skip
    return all((row["status"], row["owner"], row["queued"]) == ("needs_decision", None, False) for row in rows)


async def _another_one_runs(here: World, number: int) -> None:
    tag = f"J{number:03d}"
    await here.begin(Work(tag, "react", {"a": Task("a", ((("record", f"{tag}.a.1"),),))}))
    await until(lambda: here.readers[tag].ended, lambda: f"{tag} was not run: {here.server and here.server.text()}")
