"""What is said to the jobs of a worker process: one connection listens for all of them, and wakes those that are
spoken to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from .store.database import Database

CHANNEL = "dw_inbox"
LOOK = 3.0
"""Seconds between looks for what no notification told: a connection may be lost without a word."""


class Inbox:
    """Wakes jobs: something was said to them, or might have been. What it is they look up themselves."""

    def __init__(self) -> None:
        self._jobs: dict[str, Callable[[], None]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, database: Database, *, look: float = LOOK) -> AsyncIterator[Inbox]:
        """An inbox that hears within the block; `look` as LOOK."""
        inbox = cls()
        async with (
            database.listening([CHANNEL], inbox._heard, inbox.wake_all),
            asyncio.TaskGroup() as group,
        ):
            looking = group.create_task(inbox._look(database, look), name="inbox")
            try:
                yield inbox
            finally:
                looking.cancel()

    @contextmanager
    def of(self, job_id: str, wake: Callable[[], None]) -> Iterator[None]:
        """Within the block `wake` is called when something is said to the job. It must not wait, and may be called
        for nothing."""
        self._jobs[job_id] = wake
        try:
            yield
        finally:
            if self._jobs.get(job_id) is wake:
                del self._jobs[job_id]

    def wake_all(self) -> None:
        """Something may have been missed."""
        for wake in tuple(self._jobs.values()):
            wake()

    def _heard(self, channel: str, job_id: str) -> None:
        if job_id in self._jobs:
            self._jobs[job_id]()

    async def _look(self, database: Database, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            if self._jobs:
                for row in await database.patiently("log.spoken_to", list(self._jobs)):
                    self._heard(CHANNEL, row["id"])
