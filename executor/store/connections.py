"""Connections of a pool, handed from one user to the next in the order in which they asked."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import asyncpg

PoolConnection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"


class Connections:
    """What a pool gives is kept here and given back to it only when it is closed.

    In the pool's own queue late comers overtake, so that under load some wait without end; and its ways cost twice what
    a small statement does. `wait` is the seconds a user waits at most.
    """

    def __init__(self, pool: asyncpg.Pool, wait: float) -> None:
        self._pool, self._wait = pool, wait
        self._unmade = pool.get_max_size()
        self._idle: list[PoolConnection] = []
        self._waiting: deque[asyncio.Future[PoolConnection | None]] = deque()

    async def take(self, *, first: bool = False) -> PoolConnection:
        """A connection; `give` it back. `first`: the next that comes free, before all who wait already. Raises
        TimeoutError, and what keeps a new one from being made."""
        connection: PoolConnection | None = None
        if self._idle:  # then nobody waits
            connection = self._idle.pop()
        elif self._unmade:
            self._unmade -= 1
        else:
            connection = await self._turn(first)
        if connection is not None and not is_closed(connection):
            return connection
        try:
            async with asyncio.timeout(self._wait):  # the pool's own limit may swallow a cancellation on Python 3.11
                if connection is not None:
                    await self._pool.release(connection)
                return await self._pool.acquire()
        except BaseException:
            self.give(None)
            raise

    def give(self, connection: PoolConnection | None) -> None:
        """Takes a connection back, for whoever waits longest; None: the place of one that could not be made."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled, and its user has not come round yet
                turn.set_result(connection)
                return
        if connection is None:
            self._unmade += 1
        else:
            self._idle.append(connection)

    async def close(self) -> None:
        """Gives all that is idle back to the pool and closes it."""
        while self._idle:
            await self._pool.release(self._idle.pop())
        await self._pool.close()

    async def _turn(self, first: bool) -> PoolConnection | None:
        """Waits for what is given back; None: there is place for a new one."""
        turn: asyncio.Future[PoolConnection | None] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if first else self._waiting.append)(turn)
        try:
            async with asyncio.timeout(self._wait):
                return await turn
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():  # it came at the last moment
                self.give(turn.result())
            raise


def is_closed(connection: PoolConnection) -> bool:
    """Whether a connection is of no use any more: lost, or terminated and so the pool's again."""
    import asyncpg

    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True
