"""Readers of jobs' histories: one listening connection a process, events fetched once for all readers of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from executor.store.database import Database
from registry.redaction import error_fields

from .feed import RING, Feed, Page, page_of

if TYPE_CHECKING:
    from starlette.types import Receive

CHANNEL = "dw_events"
KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment is sent."""
PAGE = (200, 256_000)
"""Events and bytes that are read from the database at once."""
ROWS = 25
"""Events that are asked for at first."""
PAGES = 4
"""Pages of a job's older history that are kept for readers who come at the same time."""
READS = 2
"""Pages of news that are read at once, and as many of replays: some of the pool is left to requests."""
LOOK_AGAIN = 30.0
"""Seconds after which a job is looked up without a notification: a connection may be dead before anybody notices."""
BACKLOG = RING
"""Events and bytes that may come while a reader does not take what it is sent; beyond it is dropped."""
GRACE = 1.0
"""Seconds that a reader has for what it is sent, however much comes meanwhile, and for the last word."""
STALL = 60.0
"""Seconds after which a reader that takes nothing is dropped although nothing comes."""

OnPiece: TypeAlias = Callable[[str, int, int, str], Any]
"""`on_piece(job_id, part, offset, text)`"""

COMMENT = b": keep-alive\n\n"
OPENING = b"retry: 1000\n\n"
"""A dropped EventSource comes back after a second."""
ENDED = b"retry: 86400000\n: the job has ended\n\n"
"""An EventSource would come back for ever."""
BYE = b'event: bye\ndata: {"reason": "server_stopping"}\n\n'
"""The last word of a server that stops; whoever wants to go on comes back with the last id."""

log = structlog.get_logger(__name__)


class EventHub:
    """Hands out jobs' events as they are stored, and pieces of answers before.

    `live(on_piece)` gives what is to be entered while the hub serves and calls `on_piece` with live pieces; calling
    `on_piece` does as well. `others`: channels that are listened to on the same connection, and what is called when
    something was or may have been told there.
    """

    def __init__(
        self,
        database: Database,
        live: Callable[[OnPiece], AbstractAsyncContextManager[Any]] | None = None,
        others: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self.database = database
        self.stopping = False
        self._live = live
        self._others = dict(others or {})
        self._feeds: dict[str, Shared] = {}
        self._news, self._replays = asyncio.Semaphore(READS), asyncio.Semaphore(READS)
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[EventHub]:
        """Within the block there are readers; leaving it ends them."""
        async with AsyncExitStack() as stack:
            self._group = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(self._end)
            await stack.enter_async_context(
                self.database.listening([CHANNEL, *self._others], self._heard, self._look_all_up)
            )
            if self._live is not None:
                await stack.enter_async_context(self._live(self.on_piece))
            yield self

    def stop(self) -> None:
        """The process is about to end: readers get a last word and end at once. To be called before the server waits
        for its connections."""
        self.stopping = True
        for shared in self._feeds.values():
            for reader in shared.readers:
                reader.stop()

    def readers(self) -> int:
        """How many there are at the moment."""
        return sum(len(shared.readers) for shared in self._feeds.values())

    def on_piece(self, job_id: str, part: int, offset: int, text: str) -> None:
        """A piece of an answer that is not stored yet: readers get it at once."""
        shared = self._feeds.get(job_id)
        if shared is not None and shared.feed.live(part, offset, text):
            shared.wake()

    async def newest(self, tenant: str, job_id: str) -> int | None:
        """The seq of the last event of a tenant's job, as far as is known; None where it has no such job. Nobody is
        asked while others of the tenant read it: a thousand readers come at once."""
        shared = self._feeds.get(job_id)
        if shared is not None and shared.tenant == tenant:
            return shared.feed.seq
        row = await self.database.row("events.newest", job_id, tenant)
        return None if row is None else int(row["seq"])

    @asynccontextmanager
    async def reading(
        self, job_id: str, after: int, newest: int, *, tenant: str | None = None
    ) -> AsyncIterator[Reader]:
        """A reader of the events after a seq, for the block. `newest`: the job's last seq as far as is known; `tenant`:
        whose job it is known to be."""
        shared = self._feeds.get(job_id)
        if shared is None:
            shared = self._feeds[job_id] = self._new(job_id, after if 0 <= newest - after <= RING[0] else newest)
        if tenant is not None:
            shared.tenant = tenant
        reader = Reader(self, shared, after)
        shared.readers.add(reader)
        try:
            yield reader
        finally:
            shared.readers.discard(reader)
            if not shared.readers and self._feeds.get(job_id) is shared:
                del self._feeds[job_id]
                shared.task.cancel()

    async def replay(self, shared: Shared, after: int) -> Page:
        """A page of a job's older history, waiting for the database as long as it takes."""
        return await self._read(shared, after, self._replays)

    async def _read(self, shared: Shared, after: int, turn: asyncio.Semaphore) -> Page:
        async with turn:
            rows = shared.rows
            found = await self.database.patiently("events.page", shared.feed.job_id, after, rows, PAGE[1])
        page = page_of(found, rows)
        cut = page.full and len(page.seqs) < rows
        shared.rows = min(2 * len(page.seqs) if cut else 2 * rows, PAGE[0])
        return page

    def _new(self, job_id: str, base: int) -> Shared:
        if self._group is None:
            raise RuntimeError("the hub serves nobody: it is used outside of `serving`")
        shared = Shared(Feed(job_id, base))
        shared.task = self._group.create_task(self._follow(shared), name=f"follow-{job_id}")
        return shared

    async def _follow(self, shared: Shared) -> None:
        """Fetches what is new of a job as long as somebody reads it."""
        try:
            await self._fetch(shared)
        except Exception as error:  # noqa: BLE001 - a job that can't be shown must not end the other jobs' readers
            log.error("events_failed", job_id=shared.feed.job_id, **error_fields(error))
            self._feeds.pop(shared.feed.job_id, None)
            for reader in shared.readers:
                reader.leave()

    async def _fetch(self, shared: Shared) -> None:
        feed = shared.feed
        async with self._news:
            await self.database.patiently("events.watch", feed.job_id)
        while not feed.ended:
            shared.news.clear()
            page = await self._read(shared, feed.seq, self._news)
            feed.publish(page)
            shared.wake()
            for reader in shared.readers:
                reader.check()
            if not page.full:
                await _within(LOOK_AGAIN, shared.news)

    def _heard(self, channel: str, job_id: str) -> None:
        if channel in self._others:
            self._others[channel]()
            return
        shared = self._feeds.get(job_id)
        if shared is not None:
            shared.news.set()

    def _look_all_up(self) -> None:
        for shared in self._feeds.values():
            shared.news.set()
        for look in self._others.values():
            look()

    def _end(self) -> None:
        self.stop()
        for shared in self._feeds.values():
            shared.task.cancel()


class Shared:
    """A feed, the task that fills it, its readers, and pages of older history that several of them want."""

    task: asyncio.Task[None]

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.tenant: str | None = None
        self.rows = ROWS
        """Events that are asked for: about as many as a page has room for, since the size of each is looked up."""
        self.readers: set[Reader] = set()
        self.news = asyncio.Event()
        self._pages: dict[int, Page] = {}
        self._reading = asyncio.Lock()

    def wake(self) -> None:
        """Something can be sent."""
        for reader in self.readers:
            reader.woken.set()

    async def older(self, hub: EventHub, after: int) -> Page:
        """A page of what the feed no longer has, or never had. Full ones never change: readers share them."""
        async with self._reading:
            page = self._pages.get(after)
            if page is None:
                page = await hub.replay(self, after)
                if page.full:
                    self._pages[after] = page
                if len(self._pages) > PAGES:
                    del self._pages[next(iter(self._pages))]
        return page


class Reader:
    """One reader's position, and the time it has to take what it is sent."""

    def __init__(self, hub: EventHub, shared: Shared, after: int) -> None:
        self._hub, self._shared = hub, shared
        self._seq, self._piece = after, 0
        self.woken = asyncio.Event()
        self.gone = False
        self._deadline: asyncio.Timeout | None = None
        self._patience: asyncio.Timeout | None = None
        self._since = 0.0
        self._came = (0, 0)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """What is to be sent, whole events at a time, until the job has ended, the reader is gone or the server stops;
        comments when there is nothing else."""
        yield OPENING
        while not self.gone:
            self.woken.clear()
            if self._hub.stopping:
                yield BYE
                return
            if self._seq < self._shared.feed.base:
                data = await self._older()
                if data:
                    yield data
                continue
            data, self._seq, self._piece = self._shared.feed.chunk(self._seq, self._piece)
            if data:
                yield data
            elif self._at_the_end():
                yield ENDED
                return
            elif not await _within(KEEP_ALIVE, self.woken):
                yield COMMENT

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """For the time in which the reader takes something. Raises TimeoutError when it has to be dropped."""
        feed = self._shared.feed
        self._came = feed.events_came, feed.bytes_came
        self._since = asyncio.get_running_loop().time()
        async with asyncio.timeout(GRACE if self._hub.stopping else STALL) as deadline:
            self._deadline = deadline
            try:
                yield
            finally:
                self._deadline = None

    def check(self) -> None:
        """Drops the reader where too much has come since it took something."""
        feed = self._shared.feed
        events, size = feed.events_came - self._came[0], feed.bytes_came - self._came[1]
        if self._deadline is not None and (events > BACKLOG[0] or size > BACKLOG[1]):
            self._hurry()

    def stop(self) -> None:
        """The server stops: what is being sent or read ends soon, and the last word follows."""
        self._hurry()
        self._wake()

    def leave(self) -> None:
        """Nobody reads any more."""
        self.gone = True
        self._wake()

    async def leave_with(self, receive: Receive) -> None:
        """Leaves when the request's client does, as `receive` tells."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def _hurry(self) -> None:
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(min(self._deadline.when() or 0.0, self._since + GRACE))

    def _wake(self) -> None:
        self.woken.set()
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(0.0)

    def _at_the_end(self) -> bool:
        feed = self._shared.feed
        return feed.ended and self._seq >= feed.seq

    async def _older(self) -> bytes:
        """Events of the database's, which may keep us waiting: for as long as somebody wants them."""
        try:
            async with asyncio.timeout(None) as patience:
                self._patience = patience
                page = await self._shared.older(self._hub, self._seq)
        except TimeoutError:
            return b""
        finally:
            self._patience = None
        self._seq = page.position
        return b"".join(page.datas)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Waits for an event; whether it came in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
