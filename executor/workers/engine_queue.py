"""PgQueuer's queue manager on our pool: statements that fail cost a moment, never the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import structlog
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.models import Job, TableChangedEvent, TracebackRecord
from pgqueuer.ports.driver import NotifyCallback
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import Channel, QueueManagerId

from executor.store.database import Database, outages

T = TypeVar("T")

OUTAGE = 1.0
"""Seconds before the queue is asked again where the database did not answer."""

log = structlog.get_logger(__name__)


class _Driver(AsyncpgPoolDriver):
    """Statements through our pool, whose waits are bounded; notifications come from a listener of ours."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.pool)
        self.database = database
        self.callback: NotifyCallback | None = None

    async def fetch(self, query: str, *args: object) -> list[dict[str, object]]:
        async with self.database.connection() as connection:
            return [dict(row) for row in await connection.fetch(query, *args)]

    async def execute(self, query: str, *args: object) -> str:
        async with self.database.connection() as connection:
            return await connection.execute(query, *args)

    async def notify(self, channel: str, payload: str) -> None:
        await self.execute("select pg_notify($1, $2)", channel, payload)

    async def add_listener(self, channel: str, callback: NotifyCallback) -> None:
        self.callback = callback


class _Queries(Queries):
    """Looks at the queue find nothing while the database is out of reach, and where this worker has no slot free:
    PgQueuer would look ten times a second."""

    def __init__(
        self, database: Database, full: Callable[[], bool], gone: Callable[[list[str]], Awaitable[None]]
    ) -> None:
        super().__init__(_Driver(database))
        self.full, self.gone = full, gone

    async def dequeue(self, *args: Any, **named: Any) -> list[Job]:
        return await _tried(super().dequeue(*args, **named), [])

    async def eligible_queued_work(self, entrypoints: Any) -> int:
        return 0 if self.full() else await _tried(super().eligible_queued_work(entrypoints), 0)

    async def queued_work(self, entrypoints: Any) -> int:
        return 0 if self.full() else await _tried(super().queued_work(entrypoints), 0)

    async def next_deferred_eta(self, entrypoints: Any) -> timedelta | None:
        return await _tried(super().next_deferred_eta(entrypoints), None)

    async def log_jobs(self, job_status: list[tuple[Job, Any, TracebackRecord | None]]) -> None:
        """Rows that are done go."""
        await super().log_jobs(job_status)
        ids = [job.payload.decode() for job, status, _ in job_status if status == "successful" and job.payload]
        if ids:
            await self.gone(ids)


class _Manager(QueueManager):
    """What PgQueuer runs. `heard` takes notifications; `wake` has it look at the queue."""

    def heard(self, channel: str, payload: str) -> None:
        """Hands a notification on."""
        callback = self.queries.driver.callback  # type: ignore[attr-defined]  # it is ours
        if callback is not None:
            callback(payload)

    def wake(self) -> None:
        """Notifications may have been missed."""
        event = TableChangedEvent(
            channel=self.channel, sent_at=datetime.now(UTC), type="table_changed_event", operation="insert", table=""
        )
        self.heard(self.channel, event.model_dump_json())


def manager(
    database: Database, owner: UUID, full: Callable[[], bool], gone: Callable[[list[str]], Awaitable[None]]
) -> _Manager:
    """A queue manager of a database, under the name `owner`. `full`: whether it has no slot free; `gone` takes the
    jobs whose rows have gone since they are done."""
    queries = _Queries(database, full, gone)
    made = _Manager(queries, Channel(queries.qbe.settings.channel))
    made.queue_manager_id = QueueManagerId(owner)
    return made


async def _tried(asked: Awaitable[T], nothing: T) -> T:
    try:
        return await asked
    except outages() as error:
        log.warning("queue_out_of_reach", error=str(error) or type(error).__name__)
        await asyncio.sleep(OUTAGE)
        return nothing
