"""A bounded pool of daemon threads for functions that may hang.

The event loop's own executor would starve name look-ups and hold the interpreter's exit; threads of
`concurrent.futures` hold the exit too. A thread can't be stopped from outside: one whose caller has gone (time limit,
cancellation) is written off and replaced, its late result is dropped, and it ends when its function does.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from registry.errors import DagwrightError

WORKERS = 32
"""Functions that run at the same time."""

THREADS = 128
"""Threads there may be, those counted that hang in functions nobody waits for."""


class PoolExhaustedError(DagwrightError):
    """Every thread hangs in an earlier call that was given up."""

    code = "threads_exhausted"


@dataclass(frozen=True, slots=True)
class Returned:
    """How a call ended: with a value or with an exception, of any kind."""

    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Work:
    loop: asyncio.AbstractEventLoop
    call: Callable[[], Any]
    started: asyncio.Future[None]
    ended: asyncio.Future[Returned]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    state: str = "waiting"  # then running, then ended or abandoned

    def perform(self) -> Returned:
        self._tell(self.started, None)
        try:
            return Returned(self.context.run(self.call))
        except BaseException as error:  # noqa: BLE001 - SystemExit in a thread must not end the worker
            return Returned(error=error)

    def finish(self, returned: Returned) -> None:
        self._tell(self.started, None)
        self._tell(self.ended, returned)

    def _tell(self, future: asyncio.Future[Any], value: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(_settle, future, value)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


class DaemonPool:
    """At most `workers` calls at a time, on at most `threads` threads; calls beyond wait their turn."""

    def __init__(self, workers: int = WORKERS, threads: int = THREADS) -> None:
        self._workers = workers
        self._threads = threads
        self._changed = threading.Condition()
        self._waiting: deque[_Work] = deque()
        self._idle = 0
        self._live = 0
        self._written_off = 0

    async def run(self, call: Callable[[], Any], seconds: float | None = None) -> Returned:
        """Runs a function in a thread. The time limit counts from its start, not from its wait.

        Raises TimeoutError for the time limit only: the function's own exceptions come back in `Returned`. Raises
        PoolExhaustedError where no thread is left.
        """
        loop = asyncio.get_running_loop()
        work = _Work(loop, call, loop.create_future(), loop.create_future())
        self._add(work)
        try:
            await work.started
            async with asyncio.timeout(seconds):
                return await work.ended
        finally:
            self._leave(work)

    def _add(self, work: _Work) -> None:
        with self._changed:
            if self._room() <= 0:
                raise self._exhausted()
            self._waiting.append(work)
            self._staff()

    def _leave(self, work: _Work) -> None:
        """The caller waits no longer, whatever the reason."""
        with self._changed:
            if work.state == "waiting":
                if work in self._waiting:
                    self._waiting.remove(work)
            elif work.state == "running":
                work.state = "abandoned"
                self._live -= 1
                self._written_off += 1
                if self._room() > 0:
                    self._staff()
                else:
                    self._refuse_waiting()

    def _room(self) -> int:
        """Workers there may be now, beside the threads written off."""
        return min(self._workers, self._threads - self._written_off)

    def _exhausted(self) -> PoolExhaustedError:
        return PoolExhaustedError(f"no thread is left: {self._written_off} earlier tool calls timed out and still hang")

    def _refuse_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().finish(Returned(error=self._exhausted()))

    def _staff(self) -> None:
        """Wakes or starts a worker for what waits."""
        if self._idle >= len(self._waiting):
            self._changed.notify()
        elif self._live < self._room():
            self._live += 1
            threading.Thread(target=self._serve, name="dagwright-tool", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            returned = work.perform()
            with self._changed:
                work.state, before = "ended", work.state
                stays = before != "abandoned" or self._rejoin()
            if before != "abandoned":
                work.finish(returned)
            del work, returned  # an idle thread keeps nothing alive
            if not stays:
                return

    def _next(self) -> _Work:
        with self._changed:
            self._idle += 1
            while not self._waiting:
                self._changed.wait()
            self._idle -= 1
            work = self._waiting.popleft()
            work.state = "running"
            return work

    def _rejoin(self) -> bool:
        """A thread that was written off came back: it serves again where a worker is missing, else it ends."""
        self._written_off -= 1
        if self._live >= self._room() or not self._waiting:
            return False
        self._live += 1
        return True


@cache
def shared_pool() -> DaemonPool:
    """The process's pool for tools."""
    return DaemonPool()
