"""The cache of replies: what was asked before, in the same words and of the same server, is not paid for again.

The key is the whole request as it is sent: a hash over dialect, model, address and body. A `salt` beside it keeps what
is to be repeated apart (repeats of an experiment). A job that asks the same twice wants a second reply: the count of
such questions is part of the key, too, so that jobs share first with first and second with second.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import structlog

from .errors import ConfigError
from .llm import LLM
from .llm_types import Prepared
from .messages import LLMResult
from .redaction import redact_data
from .replies import Lease, Replies

VERSION = 1
"""Of the file's tables, in its `user_version`."""
TABLE = """
create table if not exists replies (key text primary key, model text not null, result text not null) without rowid
"""
BUSY_SECONDS = 10.0
"""How long another process may hold the file."""
WHOLE = ("stop", "tool_calls")
"""Finish reasons of replies that are kept: a reply that was cut, refused or filtered is asked for again."""

log = structlog.get_logger(__name__)


class ReplyCache:
    """Replies in an SQLite file, which several processes may share. What asks for the same at the same time in one
    process waits for one reply. A file that can't be written any more costs nothing but the replies it would save."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # around one statement, in a thread
        self.flights: dict[str, asyncio.Event] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[ReplyCache]:
        """The cache of a file, which is made where there is none. Raises ConfigError for a file that is no cache."""
        cache = cls(await asyncio.to_thread(_opened, path))
        try:
            yield cache
        finally:
            cache._close()

    def for_job(self, salt: str = "", seen: Iterable[str] = ()) -> Replies:
        """The cache as one job sees it; `seen`: the keys of the replies that it has had."""
        return _JobReplies(self, salt, seen)

    async def get(self, key: str) -> LLMResult | None:
        """The reply of a key."""
        try:
            row = await asyncio.to_thread(self._row, key)
            return None if row is None else LLMResult.from_json(json.loads(row))
        except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
            log.warning("reply_not_read", error=f"{type(error).__name__}: {error}")
            return None

    async def put(self, key: str, result: LLMResult) -> None:
        """Keeps a reply that is whole and has nothing in it that must be masked."""
        data = result.to_json()
        if result.finish_reason not in WHOLE or redact_data(data) is not data:
            return
        try:
            text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
            await asyncio.to_thread(self._insert, key, result.model, text)
        except (sqlite3.Error, ValueError, TypeError) as error:
            log.warning("reply_not_kept", error=f"{type(error).__name__}: {error}")

    def _row(self, key: str) -> str | None:
        with self._lock:
            row = self._connection.execute("select result from replies where key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def _insert(self, key: str, model: str, result: str) -> None:
        with self._lock, self._connection:
            self._connection.execute("insert or ignore into replies (key, model, result) values (?, ?, ?)",
                                     (key, model, result))  # fmt: skip

    def _close(self) -> None:
        with self._lock:
            self._connection.close()


def _opened(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path}: the call cache can't be opened: {error}") from None
    try:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")  # a reply may be lost with the machine, no more
        version = connection.execute("pragma user_version").fetchone()[0]
        tables = connection.execute("select name from sqlite_master").fetchall()
        if version == 0 and not tables:
            with connection:
                connection.execute(TABLE)
                connection.execute(f"pragma user_version = {VERSION}")
        elif version != VERSION:
            raise ConfigError(f"{path}: is no call cache of this version")
    except sqlite3.Error as error:
        connection.close()
        raise ConfigError(f"{path}: is no call cache: {error}") from None
    except ConfigError:
        connection.close()
        raise
    return connection


class _JobReplies:
    """The cache as one job sees it. `_asked`: which numbers of the same question are taken."""

    def __init__(self, cache: ReplyCache, salt: str, seen: Iterable[str]) -> None:
        self._cache, self._salt = cache, salt
        self._asked: defaultdict[str, set[int]] = defaultdict(set)
        for key in seen:
            question, _, number = key.rpartition(":")
            self._asked[question].add(int(number))

    async def lease(self, llm: LLM, prepared: Prepared) -> Lease:
        """What is known of a call; waits for another one that asks the same at the moment."""
        question = f"{_digest(llm, prepared)}:{self._salt}"
        taken = self._asked[question]
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(number)
        lease = _Lease(self._cache, f"{question}:{number}", lambda: taken.discard(number))
        try:
            await lease.look()
        except BaseException:
            lease.give_up()
            raise
        return lease


class _Lease:
    """One call's. While it is the one that gets the reply, others that ask the same wait for its end."""

    def __init__(self, cache: ReplyCache, key: str, free: Any) -> None:
        self.known: LLMResult | None = None
        self.key, self._cache, self._free = key, cache, free
        self._flight: asyncio.Event | None = None

    async def look(self) -> None:
        """Finds the reply, or takes it on to get it."""
        flights = self._cache.flights
        while (other := flights.get(self.key)) is not None:
            await other.wait()
        flights[self.key] = self._flight = asyncio.Event()
        self.known = await self._cache.get(self.key)
        if self.known is not None:
            self._land()

    async def keep(self, result: LLMResult) -> None:
        if self.known is None:
            await self._cache.put(self.key, result)

    def end(self) -> None:
        self._land()

    def give_up(self) -> None:
        self._free()
        self._land()

    def _land(self) -> None:
        if self._flight is not None:
            flight, self._flight = self._flight, None
            del self._cache.flights[self.key]
            flight.set()


def _digest(llm: LLM, prepared: Prepared) -> str:
    digest = sha256()
    for part in (llm.dialect, llm.model_id, llm.endpoint):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(prepared.body)
    return digest.hexdigest()
