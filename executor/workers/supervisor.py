"""Keeps worker processes running: starts them, starts them again when they end, and ends them.

Workers are children, so that what a job does to its process (memory, a crash in a library, a lost claim that ends it at
once) happens neither to the server's streams nor to the supervisor. A child's standard input is a pipe of ours: it
closes however we end, and the child ends with it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

import structlog

from registry.errors import ConfigError

LOST = 75
"""Exit code of a child that lost the ownership of a job (EX_TEMPFAIL): started again at once, nothing is wrong."""
MISCONFIGURED = 2
"""Exit code of a child that can't work as it is configured."""
UNREACHABLE = 69
"""Exit code of a child that the database does not answer (EX_UNAVAILABLE): it did answer us, so this is an outage."""
BACKOFF = (0.1, 5.0)
"""Seconds before a child is started again: the first wait and the longest; each is twice the one before."""
LONG = 30.0
"""Seconds after which a child's life was no failed start: the waits begin anew."""
LAST = 2.0
"""Seconds a child has beyond its grace before it is killed."""
WORKER = (sys.executable, "-m", "executor.workers.worker")

log = structlog.get_logger(__name__)


class WorkerError(ConfigError):
    """Workers can't start; what is wrong was logged by them."""

    code = "worker"


def default_workers() -> int:
    """Worker processes of this machine where the settings don't say: one for two cores. A process waits for models
    most of the time and runs many jobs at once; the other core is the database's, the server's, and the tools'."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)


class Supervisor:
    """`count` children that run `command` with the variables `env` and nothing else.

    `grace`: seconds from `stop` to a child's end by force, less LAST.
    """

    def __init__(self, count: int, env: Mapping[str, str], *, grace: float, command: Sequence[str] = WORKER) -> None:
        self.count, self._env, self._grace, self._command = count, dict(env), grace, tuple(command)
        self._children: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._any_lived = False

    def stop(self) -> None:
        """Tells the children to end; `run` returns when they have."""
        self._stopping.set()
        for child in self._children:
            _terminate(child)

    async def run(self) -> None:
        """Keeps the children running until `stop`; when it is cancelled they end first, too.

        Raises WorkerError where the first start says that the configuration is wrong.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self.count):
                    group.create_task(self._keep(), name=f"worker {number}")
        except* WorkerError as errors:
            raise errors.exceptions[0] from None

    async def _keep(self) -> None:
        loop, wait = asyncio.get_running_loop(), BACKOFF[0]
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._live()
            if self._stopping.is_set():
                return
            lived = loop.time() - began
            log.warning("worker_ended", code=code, lived=round(lived, 1))
            if code == MISCONFIGURED and not self._any_lived:
                raise WorkerError
            if code == LOST:
                continue
            if lived >= LONG:
                wait = BACKOFF[0]
            await self._pause(wait)
            wait = min(2 * wait, BACKOFF[1])

    async def _live(self) -> int | None:
        """One child's life; its exit code, None where it could not even be started."""
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command, env=self._env, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            log.error("worker_not_started", error=str(error))
            return None
        self._children.add(child)
        log.info("worker_started", pid=child.pid)
        lived = asyncio.get_running_loop().call_later(LONG, self._lived)
        try:
            if self._stopping.is_set():
                _terminate(child)
            await self._end_of(child)
        finally:
            lived.cancel()
            await self._end(child)
            self._children.discard(child)
        return child.returncode

    def _lived(self) -> None:
        self._any_lived = True

    async def _end_of(self, child: asyncio.subprocess.Process) -> None:
        """Returns when the child has ended, or its time after `stop` is over."""
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(child.wait())
            late = group.create_task(self._late())
            await asyncio.wait([ended, late], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            late.cancel()

    async def _late(self) -> None:
        await self._stopping.wait()
        await asyncio.sleep(self._grace + LAST)

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """Sees to it that a child is gone and reaped: by its own doing if we are cancelled, else by force."""
        if child.returncode is None and not self._stopping.is_set():
            _terminate(child)
            try:
                async with asyncio.timeout(self._grace + LAST):
                    await child.wait()
            except TimeoutError:
                log.error("worker_did_not_end", pid=child.pid)
        if child.returncode is None:
            log.error("worker_killed", pid=child.pid)
            child.kill()
        if child.stdin is not None:
            child.stdin.close()
        await child.wait()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return


def _terminate(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.terminate()
