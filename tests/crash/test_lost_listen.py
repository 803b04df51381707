"""Connections to the database are cut again and again: whoever waits for a notification gets along without."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from pathlib import Path

import pytest

from tests.support.chaos import World, until, world
from tests.support.chaos_checks import examined
from tests.support.chaos_storm import rested
from tests.support.chaos_work import Task, Work, works

CANCEL = 10.0
"""Seconds: twice what a cancel may take whose notification is lost."""
CUT_ANY = (
    "select pg_terminate_backend(pid) from (select pid from pg_stat_activity where pid <> pg_backend_pid() "
    "and backend_type = 'client backend' order by random() limit 2) victims"
)
CUT_LISTENERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and query ilike 'listen%'"
)


async def cutting(here: World, query: str, pause: float, quiet: asyncio.Event) -> None:
    while not quiet.is_set():
        await here.sql(query)
        await asyncio.sleep(pause)


@pytest.mark.heavy
@pytest.mark.timeout(240)
async def test_lost_connections_are_noticed_by_nobody(tmp_path: Path) -> None:
    quiet = asyncio.Event()
    async with world(tmp_path, 11, heartbeat_timeout=5.0) as here, asyncio.TaskGroup() as group:
        await here.start_server(workers=1)
        await here.start_host(workers=1)
        group.create_task(cutting(here, CUT_ANY, 0.4, quiet))
        for work in islice(works(11), 16):
            await here.begin(work)
            await asyncio.sleep(0.4)
        await here.all_rest()
        quiet.set()
        await rested(here)
        found = await examined(here)
        assert found.faults == [], "\n".join(found.faults)
        assert {reader.breaks for reader in here.readers.values()} == {0}
        assert here.logged('"ownership_lost"') == 0
        assert here.logged('"listener_lost"') > 0


@pytest.mark.heavy
@pytest.mark.timeout(240)
async def test_a_cancel_needs_no_notification(tmp_path: Path) -> None:
    quiet = asyncio.Event()
    long = Work("J900", "react", {"a": Task("a", tuple((("look", f"J900.a.{n}"),) for n in range(1, 20)))})
    async with world(tmp_path, 12, heartbeat_timeout=5.0, pause=60) as here, asyncio.TaskGroup() as group:
        await here.start_server(workers=1)
        await here.begin(long)
        await until(lambda: here.fake.billed.calls >= 1, "it does not run")
        group.create_task(cutting(here, CUT_LISTENERS, 0.05, quiet))
        await asyncio.sleep(1)
        began = time.monotonic()
        long.cancelled = True
        await here.asked("POST", f"/v1/jobs/{long.job_id}/cancel", {})
        await until(lambda: here.readers["J900"].ended, "it was not cancelled", 60)
        took = time.monotonic() - began
        quiet.set()
        assert took < CANCEL
        found = await examined(here)
        assert found.faults == [], "\n".join(found.faults)
        assert here.readers["J900"].breaks == 0
