"""The database: a bounded pool for single statements, connections of their own for listening, JSON at one boundary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from registry.errors import ConfigError, DagwrightError
from registry.text import clean

from .connections import Connections
from .statements import statement

if TYPE_CHECKING:
    import asyncpg

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"

Row: TypeAlias = "asyncpg.Record"

POOL_SIZE = 5
"""Connections of a process: none is held during a model call, so a few serve hundreds of jobs."""
WAIT = 5.0
"""Seconds a statement waits for a connection; then the process is overloaded."""
RETRY = (0.05, 2.0)
"""Seconds before a statement is tried again that the database did not take: the first wait and the longest."""
RECONNECT = (0.1, 5.0)
"""Seconds before a lost listening connection is made anew: the first wait and the longest."""

log = structlog.get_logger(__name__)


class BusyError(DagwrightError):
    """The database has no connection free; try again in a moment."""

    code = "busy"


class DatabaseError(ConfigError):
    """The database can't be used."""

    code = "database"


class UnreachableError(DatabaseError):
    """The database does not answer, or does not let us in."""


class Database:
    """A pool of connections to one PostgreSQL. Made by `open`.

    `pooled`: a pooler such as pgbouncer stands between, so that statements are not kept prepared.
    """

    def __init__(self, dsn: str, pool: asyncpg.Pool, direct: Mapping[str, Any]) -> None:
        self.dsn, self.pool, self._direct = dsn, pool, direct
        self._connections = Connections(pool, WAIT)

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, *, size: int = POOL_SIZE, pooled: bool = False) -> AsyncIterator[Database]:
        """The database of a DSN, closed afterwards. Raises DatabaseError, which says what is wrong, without the
        password."""
        import asyncpg

        from .failures import told

        options: dict[str, Any] = {"statement_cache_size": 0} if pooled else {}
        try:
            pool = await asyncpg.create_pool(
                dsn, min_size=1, max_size=size, init=_prepared, reset=_nothing, command_timeout=60, **options
            )
        except ValueError as error:
            raise DatabaseError(told(error, dsn)) from None
        except database_errors() as error:
            raise UnreachableError(told(error, dsn)) from None
        database = cls(dsn, pool, options)
        try:
            yield database
        finally:
            try:
                async with asyncio.timeout(5):
                    await database._connections.close()
            except TimeoutError:
                pool.terminate()

    @asynccontextmanager
    async def connection(self, *, first: bool = False) -> AsyncIterator[Connection]:
        """A connection of the pool; `first`: before all who wait. Raises BusyError where none comes free in time."""
        import asyncpg

        try:
            connection = await self._connections.take(first=first)
        except TimeoutError:
            raise BusyError from None
        try:
            yield connection
        except asyncpg.PostgresError:
            raise  # the server's own word: the connection is whole
        except BaseException:
            connection.terminate()  # a statement may be half done; nothing resets a connection here
            raise
        finally:
            self._connections.give(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction, rolled back on any exception."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def rows(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """The rows of the statement `file.name`."""
        async with self.connection() as connection:
            return await connection.fetch(statement(name), *args)

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        """The first row of a statement, or None."""
        async with self.connection() as connection:
            return await connection.fetchrow(statement(name), *args)

    async def patiently(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """The rows of a statement that does no harm when it is repeated: tried until the database answers. Raises
        what the database has against the statement itself."""
        import asyncpg

        wait = RETRY[0]
        errors = outages()
        while True:
            try:
                return await self.rows(name, *args)
            except errors as error:
                if isinstance(error, asyncpg.DataError | asyncpg.SyntaxOrAccessError):
                    raise
                log.warning("statement_failed", statement=name, error=str(error) or type(error).__name__)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY[1])

    @asynccontextmanager
    async def listening(
        self, channels: Iterable[str], heard: Callable[[str, str], None], reconnected: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Within the block `heard(channel, payload)` is called for every notification on the channels.

        The connection is one of its own and is made anew when it is lost; notifications may be missed meanwhile:
        `reconnected()` says so, and what they would have told must be looked up.
        """
        first = asyncio.get_running_loop().create_future()
        names = tuple(channels)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._listen(names, heard, reconnected, first), name="listen")
            try:
                await first
                yield
            finally:
                task.cancel()

    @asynccontextmanager
    async def own_connection(self) -> AsyncIterator[Connection]:
        """A connection beside the pool, for what belongs to a session."""
        import asyncpg

        connection = await asyncpg.connect(self.dsn, timeout=10, **self._direct)
        try:
            yield connection
        finally:
            connection.terminate()

    async def _listen(
        self,
        channels: tuple[str, ...],
        heard: Callable[[str, str], None],
        reconnected: Callable[[], None],
        first: asyncio.Future[None],
    ) -> None:
        import asyncpg

        wait = RECONNECT[0]
        while True:
            try:
                connection = await asyncpg.connect(self.dsn, timeout=10, **self._direct)
                try:
                    lost = asyncio.Event()
                    connection.add_termination_listener(lambda *_, lost=lost: lost.set())
                    for channel in channels:
                        await connection.add_listener(channel, lambda _c, _p, name, text: heard(name, str(text)))
                    if first.done():
                        reconnected()
                    else:
                        first.set_result(None)
                    wait = RECONNECT[0]
                    await lost.wait()
                    log.warning("listener_lost", channels=channels)
                finally:
                    connection.terminate()
            except database_errors() as error:
                log.warning("listener_failed", error=str(error) or type(error).__name__)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RECONNECT[1])


def database_errors() -> tuple[type[Exception], ...]:
    """What a statement may raise: the server's errors, a lost connection, one that is out of step after a loss."""
    import asyncpg

    return (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def outages() -> tuple[type[Exception], ...]:
    """The same, and that no connection came free: what whoever can wait tries again after."""
    return (BusyError, *database_errors())


async def _nothing(connection: Any) -> None:
    """Single statements leave nothing to reset: a round trip saved each."""


async def _prepared(connection: Connection) -> None:
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=to_jsonb, decoder=from_jsonb, format="binary")


def to_jsonb(value: Any) -> bytes:
    """A value as PostgreSQL takes it: NUL and half surrogates cleaned, NaN and infinity null."""
    from pydantic_core import to_json

    try:
        data = to_json(value, inf_nan_mode="null")
    except ValueError:  # a half surrogate somewhere
        data = to_json(cleaned(value), inf_nan_mode="null")
    if b"\\u0000" in data:
        data = to_json(cleaned(value), inf_nan_mode="null")
    return b"\x01" + data


def from_jsonb(data: bytes) -> Any:
    """What `to_jsonb` wrote."""
    from pydantic_core import from_json

    return from_json(data[1:])


def cleaned(value: Any) -> Any:
    """JSON data whose every text can be stored."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value
