"""Takes jobs from the queue (`executor.store.queue`): PgQueuer's loop, with what it lacks.

An exception that escapes an entry point, and a coroutine that is cancelled, delete the row by default: nothing escapes
ours. PgQueuer ends its loop when a statement or its listener fails and then waits for all running tasks: here
statements that fail are tried again and the listener is made anew, so that an outage stops nothing. Its signs of life
are rare and late where the loop is busy: here they are frequent, and one statement for all jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import structlog

from executor.store.database import outages
from executor.store.queue import ENTRYPOINT, gone, prune, reconcile
from executor.store.statements import statement

from .handover import HandOver, Outcome

if TYPE_CHECKING:
    from pgqueuer.models import Job

    from executor.store.database import Database

HEARTBEAT = 30.0
"""Seconds without a sign of life after which a row is given to another worker …"""
BEATS = 5
"""… and signs of life within them: a loop that stands still for most of that time loses nothing."""
POLL = 5.0
"""Seconds between looks at the queue where no notification comes."""
BATCH = 10
"""Rows taken by one statement at most."""
RECONCILE = 30.0
"""Seconds between looks for jobs that have not ended and stand in no queue; sooner where a wait for a human is over."""
OFTEN = 0.1
"""Seconds between two such looks at least."""
AGAIN = 1.0
"""Seconds before a job is tried again that could not be run at all."""
FORCE = 1.0
"""Seconds that jobs have beyond the time they were given, to let themselves go; then they are cancelled."""

log = structlog.get_logger(__name__)

Handle = Callable[[str], Awaitable[Outcome | None]]
"""Runs one job; what became of it, None where its row may go."""


class Engine:
    """Takes jobs from the queue of a database and has them handled. `owner` stands for this process in claims;
    `handover` tells jobs that this worker ends.

    `heartbeat`: seconds, see HEARTBEAT; `poll`: seconds, see POLL.
    """

    def __init__(self, database: Database, *, heartbeat: float = HEARTBEAT, poll: float = POLL) -> None:
        self.owner: UUID = uuid4()
        self._database, self._heartbeat, self._poll = database, heartbeat, poll
        self._running: set[asyncio.Task[Any]] = set()
        self._look = asyncio.Event()
        self.handover = HandOver()

    def stop(self, grace: float) -> None:
        """No job is begun any more; those that run are handed over, within so many seconds or little more."""
        self.handover.begin(grace)

    async def run(self, handle: Handle, slots: int) -> None:
        """Runs jobs, `slots` at once, until `stop`; returns when none runs any more.

        `handle` runs one job. When it raises, the exception is logged and the job's row is gone: it gets another one
        by the reconciliation, unless it has ended. When it is cancelled, or says that the job was handed over, the row
        goes back into the queue at once.
        """
        from .engine_queue import manager

        queue = manager(self._database, self.owner, full=lambda: len(self._running) >= slots, gone=self._gone)
        queue.entrypoint(ENTRYPOINT, on_failure="hold", accepts_context=False)(self._entry(handle))
        async with (
            self._database.listening([queue.channel], queue.heard, queue.wake),
            asyncio.TaskGroup() as group,
        ):
            helpers = [
                group.create_task(self._reconciling(), name="reconcile"),
                group.create_task(self._beating(), name="beat"),
                group.create_task(self._draining(queue.shutdown), name="drain"),
            ]
            try:
                await self._serve(queue, slots)
            finally:
                for helper in helpers:
                    helper.cancel()

    def _entry(self, handle: Handle) -> Callable[[Job], Awaitable[None]]:
        from pgqueuer.errors import RetryRequested

        async def entry(job: Job) -> None:
            job_id = (job.payload or b"").decode()
            task = asyncio.current_task()
            assert task is not None
            if self.handover.begun:
                raise RetryRequested(reason="this worker stops")
            self._running.add(task)
            outcome: Outcome | None = None
            try:
                outcome = await handle(job_id)
            except asyncio.CancelledError:  # let out, it would delete the row
                task.uncancel()
                raise RetryRequested(reason="handed over") from None
            except Exception:
                log.exception("job_broke", job_id=job_id)
            finally:
                self._running.discard(task)
            if outcome == "handed_over":
                raise RetryRequested(reason="handed over")
            if outcome == "broke":
                raise RetryRequested(timedelta(seconds=AGAIN), reason="it could not be run to its end")

        return entry

    async def _serve(self, queue: Any, slots: int) -> None:
        while not self.handover.begun:
            try:
                await queue.run(
                    dequeue_timeout=timedelta(seconds=self._poll),
                    batch_size=max(1, min(BATCH, slots // 2)),
                    max_concurrent_tasks=max(2, slots),
                    heartbeat_timeout=timedelta(seconds=self._heartbeat),
                    log_aggregation_interval=timedelta(0),
                )
            except outages() as error:
                log.warning("queue_failed", error=str(error) or type(error).__name__)
                await asyncio.sleep(1)

    async def _draining(self, shutdown: asyncio.Event) -> None:
        await self.handover.told()
        shutdown.set()
        await asyncio.sleep(self.handover.left + FORCE)
        for task in tuple(self._running):
            task.cancel()

    async def _gone(self, job_ids: list[str]) -> None:
        """Enqueues those that were woken up while their rows were about to go, and remembers when others are due."""
        for seconds in await gone(self._database, job_ids):
            if seconds < RECONCILE:
                asyncio.get_running_loop().call_later(max(0.0, seconds), self._look.set)

    async def _reconciling(self) -> None:
        while True:
            pause = RECONCILE
            try:
                if found := await reconcile(self._database):
                    log.info("jobs_enqueued_again", jobs=found)
                due = await self._database.row("jobs.next_due")
                if due is not None and due["seconds"] is not None:
                    pause = min(pause, max(OFTEN, due["seconds"]))
                await prune(self._database)
            except outages() as error:
                log.warning("reconciliation_failed", error=str(error) or type(error).__name__)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look.wait()
            self._look.clear()

    async def _beating(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat / BEATS)
            if self._running:
                try:
                    async with self._database.connection(first=True) as connection:
                        await connection.execute(statement("queue.beat"), self.owner)
                except outages() as error:
                    log.warning("heartbeat_failed", error=str(error) or type(error).__name__)
