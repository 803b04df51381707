"""Jobs that may have killed their worker, each in a process of its own: how many at once, and their end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from executor.store.database import Database
from executor.workers.handover import HandOver
from executor.workers.suspects import AT_ONCE, Suspects

PROCESS = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
name = os.environ["DAGWRIGHT_ALONE"]
(folder / f"{name}.on").touch()
(folder / f"{name}.seen").write_text(str(len(list(folder.glob("*.on")))))
time.sleep(0.3)
(folder / f"{name}.on").unlink()
"""


async def test_no_more_than_some_run_at_once(tmp_path: Path, database: Database) -> None:
    suspects = Suspects(database, HandOver(), (sys.executable, "-c", PROCESS, str(tmp_path)))
    names = [f"job_{number}" for number in range(3 * AT_ONCE)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(suspects.run(name))
    seen = [int((tmp_path / f"{name}.seen").read_text()) for name in names]
    assert 1 < max(seen) <= AT_ONCE


async def test_one_that_is_cancelled_while_it_waits_begins_nothing(tmp_path: Path, database: Database) -> None:
    suspects = Suspects(database, HandOver(), (sys.executable, "-c", PROCESS, str(tmp_path)))
    running = [asyncio.create_task(suspects.run(f"job_{number}")) for number in range(AT_ONCE)]
    await asyncio.sleep(0)
    late = asyncio.create_task(suspects.run("late"))
    await asyncio.sleep(0)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    await asyncio.gather(*running)
    assert not (tmp_path / "late.seen").exists()
