"""What the server does beside answering: batches past their time, and webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import structlog

from executor.store.batches import BatchStore
from executor.store.database import BusyError, Database, database_errors

from .webhooks import Secrets, WebhookSender

EVERY = 60.0
"""Seconds between looks at the batches."""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def upkeep(database: Database, secrets: Secrets | None, allow: Iterable[str]) -> AsyncIterator[None]:
    """Within the block batches expire and webhooks are delivered; several servers share the work.

    `secrets` None: no webhook is sent. `allow`: private addresses (host:port) that webhooks may go to.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_look_after(BatchStore(database)), name="batches")]
        if secrets is not None:
            tasks.append(group.create_task(WebhookSender(database, secrets, allow).run(), name="webhooks"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _look_after(batches: BatchStore) -> None:
    errors: tuple[type[Exception], ...] = (BusyError, *database_errors())
    while True:
        try:
            await batches.look_after()
        except errors as error:
            log.warning("batches_not_looked_after", error=str(error) or type(error).__name__)
        await asyncio.sleep(EVERY)
