"""Jobs that may be what killed their worker: each is run in a process of its own, so that it takes no others along."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import structlog

from .store.database import Database
from .supervisor import LAST, WORKER

AT_ONCE = 4
"""Processes of suspects that a worker has at a time. A worker that dies may leave dozens of them, and each is a start's
work and a process's memory: all at once would starve the machine, and its other workers with it."""
ALONE = "DAGWRIGHT_ALONE"
"""The variable that names the one job a worker process is for."""

log = structlog.get_logger(__name__)


async def is_suspect(database: Database, job_id: str) -> bool:
    """Whether a job was claimed before and has written nothing since: its worker died at it, or beside it."""
    return await database.row("jobs.suspect", job_id) is not None


class Suspects:
    """The suspects of one worker: AT_ONCE run, the others wait for their turn."""

    def __init__(self, command: Sequence[str] = WORKER) -> None:
        self._command, self._room = command, asyncio.Semaphore(AT_ONCE)

    async def run(self, job_id: str) -> None:
        """As `run_alone`, in its turn."""
        async with self._room:
            await run_alone(job_id, self._command)


async def run_alone(job_id: str, command: Sequence[str] = WORKER) -> None:
    """Runs one job in a worker process for it alone, which claims it itself. Cancelled, it ends that process first.

    How the process ends changes nothing here: what has not ended is claimed again, and its crashes are counted then.
    """
    child = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, ALONE: job_id}, stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
    log.warning("suspect_begun", job_id=job_id, pid=child.pid)
    try:
        await child.wait()
    finally:
        await _end(child)
        log.warning("suspect_ended", job_id=job_id, code=child.returncode)


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.terminate()
        try:
            async with asyncio.timeout(LAST):
                await child.wait()
        except TimeoutError:
            child.kill()
    if child.stdin is not None:
        child.stdin.close()
    await child.wait()
