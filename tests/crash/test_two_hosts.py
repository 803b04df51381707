"""Workers on two hosts of a network: one is cut off while it works, the other takes over, the first comes back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.chaos import World, until, world
from tests.support.chaos_checks import examined
from tests.support.chaos_storm import rested
from tests.support.chaos_work import works
from tests.support.hosts import host, namespaces_allowed

JOBS = 14


@pytest.mark.heavy
@pytest.mark.timeout(240)
async def test_a_host_that_is_cut_off_does_no_harm(tmp_path: Path) -> None:
    """In network namespaces, where these are allowed."""
    apart = namespaces_allowed()
    async with (
        world(tmp_path, 19, heartbeat_timeout=2.0) as here,
        host(here.postgres, here.fake, namespaces=apart) as one,
        host(here.postgres, here.fake, namespaces=apart) as two,
    ):
        try:
            await here.start_server(workers=1, DAGWRIGHT_JOBS_PER_WORKER="2")
            first = await here.start_host(before=one.before, **one.env)
            await here.start_host(before=two.before, **two.env)
            source = works(19)
            for _ in range(JOBS):
                await here.begin(next(source))
            await until(lambda: here.fake.billed.calls > 2 * JOBS, "the jobs don't run")
            one.cut()
            cut = await _running(here)
            await asyncio.sleep(3)
            silent = {job_id: owner for job_id, owner in (await _running(here)).items() if cut.get(job_id) == owner}
            await until(lambda: _taken(here, silent), lambda: f"nobody took them over: {silent}")
            one.mend()
            here.returns.append(time.time())
            assert not await here.all_rest()
            for _ in range(4):  # it is of use again
                await here.begin(next(source))
            await rested(here)
            found = await examined(here)
            assert found.faults == [], "\n".join(found.faults)
            assert first.ends == [], "its supervisor ended"
            assert first.lives
        finally:
            await here.close()


async def _running(here: World) -> dict[str, Any]:
    rows = await here.sql("select id, owner from dw_jobs where owner is not null and ended_at is null")
    return {row["id"]: row["owner"] for row in rows}


async def _taken(here: World, silent: dict[str, Any]) -> bool:
    """Whether no job is with the one that has been silent: those of a live worker end sooner or later."""
    running = await _running(here)
    return not any(running.get(job_id) == owner for job_id, owner in silent.items())
