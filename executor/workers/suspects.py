"""Jobs that may be what killed their worker: each is run in a process of its own, so that it takes no others along."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from uuid import uuid4

import structlog

from executor.store.database import Database

from .handover import HandOver, Outcome
from .supervisor import LOST, MISCONFIGURED, UNREACHABLE, WORKER

AT_ONCE = 4
"""Processes of suspects that a worker has at a time. A worker that dies may leave dozens of them, and each is a start's
work and a process's memory: all at once would starve the machine, and its other workers with it."""
LAST = 1.0
"""Seconds that such a process has beyond those of its worker before it is killed."""
ALONE = "DAGWRIGHT_ALONE"
"""The variable that names the one job a worker process is for …"""
OWNER = "DAGWRIGHT_ALONE_OWNER"
"""… and the one with the owner under whose name it claims the job."""
NO_CRASH = (0, LOST, MISCONFIGURED, UNREACHABLE, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes that are not the job's doing."""

log = structlog.get_logger(__name__)


async def is_suspect(database: Database, job_id: str) -> bool:
    """Whether a job was claimed before and has written nothing since: its worker died at it, or beside it."""
    return bool(await database.patiently("jobs.suspect", job_id))


class Suspects:
    """The suspects of one worker: AT_ONCE run, the others wait for their turn."""

    def __init__(self, database: Database, handover: HandOver, command: Sequence[str] = WORKER) -> None:
        self._database, self._handover, self._command = database, handover, command
        self._room = asyncio.Semaphore(AT_ONCE)

    async def run(self, job_id: str) -> Outcome:
        """Runs one job in a worker process for it alone, which claims it itself, when it is its turn. That process is
        told to end when this worker is, and when this is cancelled.

        A crash of the process is counted where the job had written nothing since its claim; what has not ended is to be
        claimed again.
        """
        async with self._room:
            return "handed_over" if self._handover.begun else await self._run(job_id)

    async def _run(self, job_id: str) -> Outcome:
        owner = uuid4()
        env = {**os.environ, ALONE: job_id, OWNER: str(owner)}
        child = await asyncio.create_subprocess_exec(
            *self._command, env=env, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        log.warning("suspect_begun", job_id=job_id, pid=child.pid)
        killed = False
        try:
            killed = await self._ended(child)
        finally:
            await _end(child)
            log.warning("suspect_ended", job_id=job_id, code=child.returncode)
        if killed or self._handover.begun:
            return "handed_over"
        if child.returncode == 0:
            return "ended"
        if child.returncode not in NO_CRASH:
            for row in await self._database.patiently("jobs.crashed", job_id, owner):
                log.error("job_crashed", job_id=job_id, code=child.returncode, crashes=row["crashes"])
        return "broke"

    async def _ended(self, child: asyncio.subprocess.Process) -> bool:
        """Returns when the process has ended; whether it had to be killed, since it did not when it was told to."""
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(child.wait())
            told = group.create_task(self._tell(child))
            await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
            killed = not ended.done()
            told.cancel()
            ended.cancel()
        return killed

    async def _tell(self, child: asyncio.subprocess.Process) -> None:
        """Tells the process to end when this worker is told; returns when its time is over."""
        await self._handover.told()
        _terminate(child)
        await asyncio.sleep(self._handover.left + LAST)


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        _terminate(child)
        try:
            async with asyncio.timeout(LAST):
                await child.wait()
        except TimeoutError:
            child.kill()
    if child.stdin is not None:
        child.stdin.close()
    await child.wait()


def _terminate(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.terminate()
