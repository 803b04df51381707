"""What a key may do: requests per minute in this process, jobs at once and money per day by the database."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

from executor.store.database import Database
from executor.store.keys import Key
from executor.store.queue import DAY
from registry.clock import SYSTEM_CLOCK, Clock

from .auth import Caller
from .problems import ProblemError


class Requests:
    """Counts requests by a bucket per key, which holds a minute's and refills steadily."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def count(self, key: Key) -> None:
        """One more request of the key. Raises 429 with the seconds to wait."""
        limit = key.limits.requests_per_minute
        if limit is None:
            return
        now = self._clock.monotonic()
        left, at = self._buckets.get(key.id, (float(limit), now))
        left = min(float(limit), left + (now - at) * limit / 60)
        if left < 1:
            self._buckets[key.id] = (left, now)
            wait = math.ceil((1 - left) * 60 / limit)
            raise refused("rate_limited", f"this key may send {limit} requests per minute", wait)
        self._buckets[key.id] = (left - 1, now)


class Starts:
    """Lets a key start jobs as far as its limits go. Within one process they are counted one after the other."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def start(self, who: Caller, *, batch: bool = False) -> AsyncIterator[None]:
        """Within the block a job, or a batch, may be created. A batch may have any number of items, whatever the limit
        of jobs: they begin as there is room. Raises 429."""
        if who.key is None or (who.key.limits.running_jobs is None and who.key.limits.usd_per_day is None):
            yield
            return
        async with self._locks.setdefault(who.tenant, asyncio.Lock()):
            await self._check(who.key, None if batch else who.key.limits.running_jobs)
            yield

    async def _check(self, key: Key, jobs: int | None) -> None:
        usd = key.limits.usd_per_day
        if jobs is not None:
            row = await self._database.row("jobs.running_of_tenant", key.id)
            if row is not None and row["running"] >= jobs:
                raise refused("too_many_jobs", f"this key may have {jobs} jobs at once that have not ended", 5)
        if usd is not None:
            row = await self._database.row("jobs.spent_of_tenant", key.id, DAY)
            if row is not None and Decimal(row["usd"]) >= usd:
                raise refused("spend_limit", f"this key may spend {usd} USD within 24 hours, which it has", 3600)


def refused(code: str, detail: str, wait: int) -> ProblemError:
    """The caller asks for more than its key allows for now."""
    return ProblemError(
        429, code, "This is more than the key allows", detail, headers={"Retry-After": str(max(1, wait))}
    )
