"""What the server does beside answering: batches past their time, reports of experiments that have ended, webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

import structlog

from executor.store.batches import BatchStore
from executor.store.database import Database, outages

from .experiment_reports import Reports
from .webhooks import Secrets, WebhookSender

EVERY = 60.0
"""Seconds between looks at the batches, where none is due before."""
SOON = 0.05
"""Seconds between looks at least."""
PAUSE = 1.0
"""Seconds between looks for reports to be made at least."""
AGAIN = 5.0
"""Seconds before the next look where the database did not answer."""

log = structlog.get_logger(__name__)


class Upkeep:
    """Several servers share the work. `secrets` None: no webhook is sent. `allow`: private addresses (host:port) that
    webhooks may go to."""

    def __init__(self, database: Database, secrets: Secrets | None, allow: Iterable[str], reports: Reports) -> None:
        self._database, self._secrets, self._allow, self._reports = database, secrets, allow, reports
        self._news, self._wanted = asyncio.Event(), asyncio.Event()

    def look(self) -> None:
        """There is a new batch, which may be due before all others."""
        self._news.set()

    def report_soon(self) -> None:
        """Somebody waits for the report of an experiment that has ended."""
        self._wanted.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Upkeep]:
        """Within the block batches expire when they are due and webhooks are delivered."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._look_after(BatchStore(self._database)), name="batches"),
                group.create_task(self._report(), name="reports"),
            ]
            if self._secrets is not None:
                sender = WebhookSender(self._database, self._secrets, self._allow)
                tasks.append(group.create_task(sender.run(), name="webhooks"))
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()

    async def _look_after(self, batches: BatchStore) -> None:
        while True:
            try:
                await batches.look_after()
                await self._until_due(batches)
            except outages() as error:
                log.warning("batches_not_looked_after", error=str(error) or type(error).__name__)
                await asyncio.sleep(AGAIN)

    async def _report(self) -> None:
        while True:
            self._wanted.clear()
            try:
                await self._reports.report_ended()
            except outages() as error:
                log.warning("experiments_not_reported", error=str(error) or type(error).__name__)
            await asyncio.sleep(PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._wanted.wait()

    async def _until_due(self, batches: BatchStore) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + EVERY
        while True:
            self._news.clear()
            due = await batches.next_due()
            wait = latest - loop.time()
            try:
                async with asyncio.timeout(wait if due is None else min(wait, max(due, SOON))):
                    await self._news.wait()
            except TimeoutError:
                return
