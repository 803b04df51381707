"""The queue, which is PgQueuer, behind one small module: one row in it is one job of ours.

An exception that escapes an entry point, and a coroutine that is cancelled, delete the row by default: nothing escapes
ours. PgQueuer knows jobs by their own numbers; ours stand in the payload and, so that a job is queued once, in the
deduplication key. PgQueuer ends its loop when a statement or its listener fails and then waits for all running tasks:
here statements that fail are tried again and the listener is made anew, so that an outage stops nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import structlog

from .store.database import BusyError, database_errors
from .store.statements import statement

if TYPE_CHECKING:
    from pgqueuer.models import Job

    from .store.database import Connection, Database

ENTRYPOINT = "dagwright"
HEARTBEAT = 30.0
"""Seconds without a sign of life after which a row is given to another worker; signs come at half of it."""
POLL = 5.0
"""Seconds between looks at the queue where no notification comes."""
BATCH = 10
"""Rows taken by one statement at most."""
BATCH_PRIORITY = -10
"""Of a batch's items in the queue; a single job has 0 and goes first."""
RECONCILE = 30.0
"""Seconds between looks for jobs that have not ended and stand in no queue."""
log = structlog.get_logger(__name__)

Handle = Callable[[str], Awaitable[None]]


async def enqueue(connection: Connection, job_ids: Sequence[str], priority: int = 0) -> None:
    """Puts jobs into the queue, within the connection's transaction; one that is in it already stays as it is."""
    from pgqueuer.queries import Queries

    queries = Queries.from_asyncpg_connection(connection)  # type: ignore[arg-type]  # one of the pool will do
    ids = list(job_ids)
    await queries.enqueue(
        [ENTRYPOINT] * len(ids),
        [job_id.encode() for job_id in ids],
        [priority] * len(ids),
        dedupe_key=list(ids),
        on_conflict="skip",
    )


async def reconcile(database: Database) -> int:
    """Enqueues the jobs that have not ended and have no row in the queue; how many there were.

    A job loses its row when its worker fails in a way nobody foresaw, or when an operator empties the queue.
    """
    async with database.transaction() as connection:
        rows = await connection.fetch(statement("jobs.unqueued"), 0.0)
        for of_batch in (False, True):
            ids = [row["id"] for row in rows if row["of_batch"] is of_batch]
            if ids:
                await enqueue(connection, ids, BATCH_PRIORITY if of_batch else 0)
    return len(rows)


class Engine:
    """Takes jobs from the queue of a database and has them handled. `owner` stands for this process in claims.

    `heartbeat`: seconds, see HEARTBEAT; `poll`: seconds, see POLL.
    """

    def __init__(self, database: Database, *, heartbeat: float = HEARTBEAT, poll: float = POLL) -> None:
        self.owner: UUID = uuid4()
        self._database, self._heartbeat, self._poll = database, heartbeat, poll
        self._running: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._grace = 0.0

    def stop(self, grace: float) -> None:
        """No job is begun any more; those that run have so many seconds, then they are cancelled and handed over."""
        self._grace = grace
        self._stopping.set()

    async def run(self, handle: Handle, slots: int) -> None:
        """Runs jobs, `slots` at once, until `stop`; returns when none runs any more.

        `handle` runs one job. When it raises, the exception is logged and the job's row is gone: it gets another one
        by the reconciliation, unless it has ended. When it is cancelled, the row goes back into the queue at once.
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
            if self._stopping.is_set():
                raise RetryRequested(reason="this worker stops")
            self._running.add(task)
            try:
                await handle(job_id)
            except asyncio.CancelledError:  # let out, it would delete the row
                task.uncancel()
                raise RetryRequested(reason="handed over") from None
            except Exception:
                log.exception("job_broke", job_id=job_id)
            finally:
                self._running.discard(task)

        return entry

    async def _serve(self, queue: Any, slots: int) -> None:
        errors = _outages()
        while not self._stopping.is_set():
            try:
                await queue.run(
                    dequeue_timeout=timedelta(seconds=self._poll),
                    batch_size=max(1, min(BATCH, slots // 2)),
                    max_concurrent_tasks=max(2, slots),
                    heartbeat_timeout=timedelta(seconds=self._heartbeat),
                )
            except errors as error:
                log.warning("queue_failed", error=str(error) or type(error).__name__)
                await asyncio.sleep(1)

    async def _draining(self, shutdown: asyncio.Event) -> None:
        await self._stopping.wait()
        shutdown.set()
        await asyncio.sleep(self._grace)
        for task in tuple(self._running):
            task.cancel()

    async def _gone(self, job_ids: list[str]) -> None:
        """Enqueues those that were woken up while their rows were about to go."""
        async with self._database.transaction() as connection:
            woken = [row["id"] for row in await connection.fetch(statement("jobs.woken"), job_ids)]
            if woken:
                await enqueue(connection, woken)

    async def _reconciling(self) -> None:
        errors = _outages()
        while True:
            try:
                if found := await reconcile(self._database):
                    log.warning("jobs_enqueued_again", jobs=found)
            except errors as error:
                log.warning("reconciliation_failed", error=str(error) or type(error).__name__)
            await asyncio.sleep(RECONCILE)


def _outages() -> tuple[type[Exception], ...]:
    return (BusyError, *database_errors())
