"""Workers are restarted one after the other while they are busy: no job fails, nothing is done or paid twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.chaos import Part, World, alive, until, world
from tests.support.chaos_checks import examined
from tests.support.chaos_storm import rested
from tests.support.chaos_work import Task, Work

JOBS, TURNS = 200, 7


def patient(number: int) -> Work:
    """A job that waits for its model most of the time, long enough to meet several restarts."""
    tag = f"J{number:03d}"
    tools = (("record", "put", "checked", "look")[(number + turn) % 4] for turn in range(TURNS))
    turns = [((tool, f"{tag}.a.{place}"),) for place, tool in enumerate(tools)]
    if number % 2:
        return Work(tag, "react", {"a": Task("a", tuple(turns))})
    first, second = Task("a", tuple(turns[:4])), Task("b", tuple(turns[4:]), ("a",))
    return Work(tag, "given", {"a": first, "b": second})


@pytest.mark.heavy
@pytest.mark.timeout(300)
async def test_a_rolling_restart_under_load(tmp_path: Path) -> None:
    async with world(tmp_path, 13, heartbeat_timeout=20.0, drain_seconds=6.0, pause=0.2) as here:
        here.model.slow, here.model.pace = 4.0, 0.0
        here.model.open.clear()
        await here.start_server(workers=1)
        await here.start_host(workers=2)
        await here.start_host(workers=2)
        for number in range(JOBS):
            await here.begin(patient(number))
        await until(lambda: _running(here), "they don't run at the same time")
        here.model.open.set()
        for part in here.parts:
            for pid in part.below():
                await _restarted(part, pid)
        await rested(here)
        found = await examined(here)
        assert found.faults == [], "\n".join(found.faults)
        assert found.figures["jobs"] == {"completed": JOBS}
        assert found.figures["uncertain"] == 0
        assert found.figures["replies lost"] < 0.01 * found.figures["replies paid"]  # what is under way has its time
        assert here.logged('"ownership_lost"') == 0


async def _running(here: World) -> bool:
    (row,) = await here.sql("select count(*) from dw_jobs where owner is not null and ended_at is null")
    return row["count"] == JOBS == here.fake.open


async def _restarted(part: Part, pid: int) -> None:
    ready = part.text().count('"worker_ready"')
    os.kill(pid, signal.SIGTERM)
    await until(lambda: not alive(pid), lambda: f"{pid} did not end: {part.text()}")
    await until(lambda: part.text().count('"worker_ready"') > ready, lambda: f"no new worker: {part.text()}")
