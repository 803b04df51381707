"""The database is away: whoever needs it waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.chaos import until, world
from tests.support.chaos_checks import examined
from tests.support.chaos_storm import rested
from tests.support.chaos_work import Task, Work


@pytest.mark.heavy
@pytest.mark.timeout(240)
async def test_workers_that_start_during_an_outage_wait_for_its_end(tmp_path: Path) -> None:
    """Though none of them has lived for long: that the database was there once, the command knows."""
    async with world(tmp_path, 23, heartbeat_timeout=1.0) as here:
        await here.start_server(workers=1)
        assert here.server is not None
        await here.begin(Work("J001", "react", {"a": Task("a", ((("put", "J001.a.1"),),))}))
        await until(lambda: here.readers["J001"].events, "it does not run")
        here.postgres.kill()
        for pid in here.server.below():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: here.server.text().count('"database_unreachable"') >= 2, here.server.text)
        await asyncio.sleep(0.5)
        await here.postgres.start()
        await rested(here)
        found = await examined(here)
        assert found.faults == [], "\n".join(found.faults)
        assert found.figures["jobs"] == {"completed": 1}
        assert here.server.ends == []
        assert {reader.breaks for reader in here.readers.values()} == {0}
