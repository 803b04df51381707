"""The log in PostgreSQL, as its one writer has it: events are collected, and written by one statement a barrier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol
from uuid import UUID

import structlog

from executor.store.database import RETRY, BusyError, Database, outages
from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import DagwrightError
from registry.messages import Event

from .front import Ending, JobLog, is_public

LATEST = 1.0
"""Seconds after which events are written although no barrier asked for it: readers on other hosts want to see them."""
BATCH = 500
"""Events that are read by one statement."""
TOGETHER = 100
"""Events that are written by one statement at most: they go as one JSON value, which may have 256 MB."""

log = structlog.get_logger(__name__)


class OwnershipLostError(DagwrightError):
    """Another worker owns the job now: this one must not write, nor go on."""

    code = "ownership_lost"


class LogFailedError(DagwrightError):
    """The log can't be written: its writer has ended."""

    code = "log_failed"


class LivePieces(Protocol):
    """Where pieces of answers go at once, ahead of their storage. Must not wait."""

    def __call__(self, job_id: str, part: int, offset: int, text: str) -> None: ...


def nowhere(job_id: str, part: int, offset: int, text: str) -> None:
    """Nobody on this machine reads."""


class StoredLog(JobLog):
    """Collects events and writes them, in order, as long as `owner` (the queue manager's id) owns the job.

    `serve` is the writer and runs as a task of the owner's; `barrier` waits for it, so that cancelling whoever waits
    leaves no statement half known. Barriers that come while one statement is under way share the next. `heard` is
    called when the statement says that there are letters or that the job is to be cancelled, `status` is asked for the
    job's status with each statement. Pieces of the answer carry their `offset` (in characters) and `part` (answers
    that were void before), by which readers put live and stored ones together.
    """

    merge_seconds = 0.5

    def __init__(
        self,
        job_id: str,
        database: Database,
        owner: UUID,
        *,
        seq: int = 0,
        heard: Callable[[bool], None] = lambda cancel: None,
        status: Callable[[], str | None] = lambda: None,
        live: LivePieces = nowhere,
        on_event: Callable[[Event], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(job_id, clock, seq, on_event=on_event)
        self._database, self._owner = database, owner
        self._heard, self._status, self._live = heard, status, live
        self._new: list[Event] = []
        self._stored = seq
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._wanted = asyncio.Event()
        self._failed: BaseException | None = None
        self._ending: Ending | None = None
        self._late: asyncio.TimerHandle | None = None
        self._part, self._said, self._merged = 0, 0, 0

    async def barrier(self) -> None:
        """Returns when all that was appended so far is stored. Raises OwnershipLostError, and LogFailedError where the
        writer has ended otherwise."""
        self.flush()
        last = self.seq
        if self._settled(last):
            return
        self._wanted.set()
        if self._failed is None:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((last, told))
            await told
        if isinstance(self._failed, OwnershipLostError):
            raise self._failed
        if self._failed is not None:
            raise LogFailedError(f"{type(self._failed).__name__}: {self._failed}") from self._failed

    def store(self) -> None:
        """Begins to write what was appended so far; with what comes before the writer has its turn."""
        self.flush()
        if self._new:
            self._wanted.set()

    def goes_on(self, part: int) -> None:
        """The job goes on: its next answer is this part, a number that no reader has seen."""
        self._part = part

    def ends(self, ending: Ending) -> None:
        """The rest is stored with the job's end in the same statement, where this is called right after the last event,
        before anything waits. The next barrier waits for it."""
        if self.sealed:
            return
        self.close()
        self._ending = ending
        self._wanted.set()

    async def end(self, ending: Ending) -> None:
        """As `ends`, and waits until it is stored. Raises OwnershipLostError."""
        self.ends(ending)
        await self.barrier()

    async def history(self) -> tuple[Event, ...]:
        """The whole history so far, out of the database. Raises OwnershipLostError."""
        await self.barrier()
        return tuple([event async for event in stored_events(self._database, self.job_id)])

    async def serve(self) -> None:
        """Writes until the end is stored. Raises OwnershipLostError when another one owns the job."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                while self._new or self._ending is not None:
                    if await self._write_some():
                        return
        except BaseException as error:
            self._failed = error
            if isinstance(error, OwnershipLostError):
                self.seal()  # the job goes on elsewhere: that its work ends here is no news
            raise
        finally:
            if self._late is not None:
                self._late.cancel()
            self._tell()

    def _settled(self, last: int) -> bool:
        return self._stored >= last and self._ending is None

    def _tell(self) -> None:
        """Wakes those whose events are stored; all of them where nothing will be."""
        waiting, self._waiting = self._waiting, []
        for last, told in waiting:
            if self._failed is None and not self._settled(last):
                self._waiting.append((last, told))
            elif not told.done():  # cancelled
                told.set_result(None)

    async def _write_some(self) -> bool:
        """One statement; whether it was the last one."""
        events = self._new[:TOGETHER]
        ending = self._ending if len(events) == len(self._new) else None
        row = await self._append(events, ending)
        del self._new[: len(events)]
        self._stored += len(events)
        if ending is not None:
            self._ending = None
        self._tell()
        if ending is None and row is not None and (row["cancel"] or row["letters"]):
            self._heard(row["cancel"])
        return ending is not None

    async def _append(self, events: list[Event], ending: Ending | None) -> Any:
        """The statement, tried until the database answers. One whose answer was lost is looked up, not repeated."""
        wait, unsure = RETRY[0], False
        errors = outages()
        while True:
            try:
                if unsure and await self._is_written(events, ending):
                    return None
                row = await self._database.row("log.append", *self._arguments(events, ending))
                if row is None:
                    raise OwnershipLostError
                return row
            except errors as error:
                if isinstance(error, _hopeless()):
                    raise
                log.warning("append_failed", job_id=self.job_id, error=str(error) or type(error).__name__)
                unsure = unsure or not isinstance(error, BusyError)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY[1])

    async def _is_written(self, events: list[Event], ending: Ending | None) -> bool:
        row = await self._database.row("log.where_it_stands", self.job_id)
        if row is None:
            raise OwnershipLostError
        written: bool = row["seq"] == self._stored + len(events) and row["seq"] > self._stored
        return written and (ending is None or row["ended"])

    def _arguments(self, events: list[Event], ending: Ending | None) -> tuple[Any, ...]:
        return (
            self.job_id,
            self._owner,
            self._stored,
            self._status() if ending is None else ending.status,
            None if ending is None else dict(ending.summary),
            [(event.channel, event.ts, event.step_id, is_public(event.channel), event.payload) for event in events],
            None if ending is None else ending.cost_usd,
            all(map(_no_news, events)),
        )

    # What the front gives

    def _keep(self, event: Event) -> None:
        self._new.append(event)
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(LATEST, self._latest)

    def _latest(self) -> None:
        """Has written what came since the timer was set; nobody stops it, as that would cost as much each time."""
        self._late = None
        if self._new:
            self._wanted.set()

    def _piece_came(self, text: str, step_id: str | None) -> None:
        if step_id is None:
            self._live(self.job_id, self._part, self._said, text)
            self._said += len(text)

    def _delta_payload(self, text: str, step_id: str | None) -> dict[str, Any]:
        payload = super()._delta_payload(text, step_id)
        if step_id is None:
            payload |= {"offset": self._merged, "part": self._part}
            self._merged += len(text)
        return payload

    def _answer_void(self, step_id: str | None) -> None:
        if step_id is None and self._said:
            self._part, self._said, self._merged = self._part + 1, 0, 0


def _no_news(event: Event) -> bool:
    """Whether an event only says that somebody is at work, and not that the job has come further."""
    if event.channel == "budget":
        return bool(event.payload.get("reason") == "reserved")
    return event.channel == "note" and bool(event.payload.get("kind") == "restored")


def _hopeless() -> tuple[type[Exception], ...]:
    """What the database will say again: the event or the statement is wrong, not the moment."""
    import asyncpg

    return (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.SyntaxOrAccessError)


async def stored_events(database: Database, job_id: str, after: int = 0) -> AsyncIterator[Event]:
    """A job's events after a `seq`, internal channels included; the database is asked until it answers."""
    while True:
        rows = await database.patiently("log.read_events", job_id, after, True, BATCH)
        for row in rows:
            yield Event(job_id, row["seq"], row["ts"], row["channel"], row["step_id"], row["payload"])
        if len(rows) < BATCH:
            return
        after = rows[-1]["seq"]
