"""A worker that was away for longer than others wait for it: it writes nothing when it comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from itertools import islice
from pathlib import Path

import pytest

from tests.support.chaos import World, until, world
from tests.support.chaos_checks import examined
from tests.support.chaos_storm import rested
from tests.support.chaos_work import works

JOBS = 12


async def owners(world: World) -> set[str]:
    rows = await world.sql("select distinct owner::text from dw_jobs where owner is not null and ended_at is null")
    return {row["owner"] for row in rows}


@pytest.mark.heavy
@pytest.mark.timeout(240)
async def test_a_worker_that_is_paused_and_comes_back_does_no_harm(tmp_path: Path) -> None:
    async with world(tmp_path, 7, heartbeat_timeout=1.5) as here:
        await here.start_server(workers=1)
        await here.start_host(workers=1)
        assert here.server is not None
        for work in islice(works(7), JOBS):
            await here.begin(work)
        await until(lambda: _both_work(here), "the jobs don't run")
        (zombie,) = here.server.below()
        os.kill(zombie, signal.SIGSTOP)
        paused = await here.sql("select id, owner::text, seq from dw_jobs where owner is not null and ended_at is null")
        try:
            await until(lambda: _one_owner(here), "nobody took the jobs over")
            (left,) = await owners(here) or {""}
            taken = {row["id"] for row in paused if row["owner"] != left}
            assert taken, "it had no job"
            await asyncio.sleep(1)
            before = {line["key"] for line in here.effects() if line["pid"] == zombie}
        finally:
            os.kill(zombie, signal.SIGCONT)
            here.returns.append(time.time())
        await until(lambda: '"code": 75' in here.server.text(), here.server.text)
        await until(lambda: here.server.text().count('"worker_ready"') == 2, "it was not started again")
        await rested(here)
        assert here.logged('"ownership_lost"') == 1
        late = [line for line in here.effects() if line["pid"] == zombie and line["key"] not in before]
        begun = {event["payload"]["key"] for event in await here.sql(
            "select payload from dw_events where channel = 'call' and payload ->> 'status' = 'start'")}  # fmt: skip
        assert {line["key"] for line in late} <= begun  # what was under way; it begins nothing any more
        found = await examined(here)
        assert found.faults == [], "\n".join(found.faults)
        assert {reader.breaks for reader in here.readers.values()} == {0}


async def _both_work(here: World) -> bool:
    return here.fake.billed.calls > 2 * JOBS and len(await owners(here)) == 2


async def _one_owner(here: World) -> bool:
    return len(await owners(here)) <= 1
