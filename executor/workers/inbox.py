"""What is said to the jobs of a worker process: one connection listens for all of them, and wakes those that are
spoken to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID

from executor.store.database import Database
from registry.errors import UsageError

CHANNEL = "dw_inbox"
LOOK = 3.0
"""Seconds between looks for what no notification told: a connection may be lost without a word."""


class Inbox:
    """Wakes jobs: something was said to them, or might have been, or they belong to somebody else. What it is they look
    up themselves."""

    def __init__(self) -> None:
        self._jobs: dict[str, Callable[[], None]] = {}
        self._owners: dict[str, UUID] = {}
        self._left: dict[str, asyncio.Event] = {}

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
    def of(self, job_id: str, owner: UUID, wake: Callable[[], None]) -> Iterator[None]:
        """Within the block `wake` is called when something is said to the job, or when it is not `owner`'s any more. It
        must not wait, and may be called for nothing. Raises UsageError where the job runs in this process already."""
        if job_id in self._jobs:
            raise UsageError(f"{job_id} runs in this process already")
        self._jobs[job_id], self._owners[job_id] = wake, owner
        left = self._left[job_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._jobs[job_id], self._owners[job_id], self._left[job_id]
            left.set()

    def __contains__(self, job_id: object) -> bool:
        """Whether the job runs in this process."""
        return job_id in self._jobs

    async def left(self, job_id: str) -> None:
        """Returns when the job no longer runs in this process."""
        if job_id in self._left:
            await self._left[job_id].wait()

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
                mine = list(self._owners), list(self._owners.values())
                for row in await database.patiently("log.spoken_to", *mine):
                    self._heard(CHANNEL, row["id"])
