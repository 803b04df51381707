"""A job out of the database, run by a worker: claimed, spoken to through letters, durable, its end stored; or let go
before its end, so that it goes on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any
from uuid import UUID

import structlog

from executor.job import JobRunner
from executor.job_account import close_log
from executor.job_types import Job, JobStatus
from executor.letters import act, acted, ids_in, note_of
from executor.log.stored import LivePieces, LogFailedError, OwnershipLostError, StoredLog, nowhere, stored_events
from executor.recovery import JobPast
from executor.recovery.interrupted import interrupted
from executor.store.artifacts import DatabaseArtifacts, artifacts_in
from executor.store.database import Database
from executor.store.fold import cancelled_job
from registry.errors import DagwrightError, UsageError
from registry.messages import Event
from registry.redaction import error_fields, redact_data

from .handover import HandOver, Outcome, let_go
from .workshop import Workshop

CLAIM = 10.0
"""Seconds for a claim: later the queue may have given the job to somebody else."""
LAST_WORD = 5.0
"""Seconds that a job which is let go, or cut off at its end, has to store what happened."""
SETTLE = 0.2
"""Seconds that a job which is handed over has after its last call: that may have been all it needed for its end."""
LINGER = 1.0
"""Seconds that all of a job must have waited for a human before it is parked: some decide at once."""
MAX_CRASHES = 5
"""Processes that died of a job alone, in a row, before it had written anything: then it is given up."""
TOO_MANY = MAX_CRASHES + 2
"""As MAX_CRASHES; then not even its history is read any more: that may be what kills them."""

UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)
"""What comes of reading events that another version has written."""

log = structlog.get_logger(__name__)


async def run_stored_job(
    database: Database,
    owner: UUID,
    job_id: str,
    work: Workshop,
    *,
    live: LivePieces = nowhere,
    handover: HandOver | None = None,
) -> Outcome:
    """Claims a job, runs it and stores its end, or lets it go; does nothing where it has ended or there is none. Where
    it runs in this process already, waits until that is over.

    Whatever the job comes to stands in its log. With a `handover` it is parked as soon as all of it waits for a human,
    and handed over when that says so. Cancelled, it is handed over at once, and CancelledError goes on. Raises
    OwnershipLostError when another worker owns it: this process must write nothing more and is best ended; TimeoutError
    when the database does not answer the claim; what the database has against an event.
    """
    woken, inbox = asyncio.Event(), work.inbox
    while inbox is not None and job_id in inbox:
        log.warning("job_given_twice", job_id=job_id)  # the queue took us for dead: its row stands for the run there is
        await inbox.left(job_id)
    with nullcontext() if inbox is None else inbox.of(job_id, owner, woken.set):
        async with asyncio.timeout(CLAIM):
            rows = await database.patiently("log.claim", job_id, owner)
        for row in rows:
            return await _StoredRun(database, owner, dict(row), work, live, woken, handover).run()
    return "ended"


class _StoredRun:
    """One claimed job: its writer, its listener and its work are tasks of one group, and end together."""

    def __init__(
        self,
        database: Database,
        owner: UUID,
        row: Mapping[str, Any],
        work: Workshop,
        live: LivePieces,
        woken: asyncio.Event,
        handover: HandOver | None,
    ) -> None:
        self.database, self.owner, self.row, self.work, self.handover = database, owner, row, work, handover
        self.job_id: str = row["id"]
        self.runner: JobRunner | None = None
        self.job: asyncio.Task[None] | None = None
        self.parks = self.reading = False
        self.due: float | None = None
        self.letters: set[int] = set()
        self.looked = asyncio.Event()
        self.woken = woken
        if row["spoken_to"] or row["cancel"]:
            self.woken.set()
        if not self.woken.is_set():
            self.looked.set()
        self.log = StoredLog(
            self.job_id,
            database,
            owner,
            seq=row["seq"],
            heard=lambda cancel: self.woken.set(),
            status=self._status,
            live=live,
            on_event=work.on_event,
            clock=work.clock,
        )

    async def run(self) -> Outcome:
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self.log.serve(), name=f"log {self.job_id}")
                outcome = await self._work(group)
                if outcome != "ended":
                    writer.cancel()
        except BaseExceptionGroup as errors:
            raise _cause(errors) from None
        return outcome

    async def _work(self, group: asyncio.TaskGroup) -> Outcome:
        row = self.row
        if row["cancel"]:
            return await self._end(await self._cancelled())
        if row["crashes"] >= MAX_CRASHES:
            return await self._end(await self._crashed())
        events = [event async for event in stored_events(self.database, self.job_id)] if row["seq"] else []
        artifacts = DatabaseArtifacts(self.database, self.job_id, self.owner, ())
        given = row["request"].get("artifacts") or ()
        if events or given:  # of the worker before, or of the job that it was made from
            known = {*given, *artifacts_in(events)}
            artifacts = await DatabaseArtifacts.load(self.database, self.job_id, self.owner, known)
        made = self._made(events, artifacts)
        return await (self._run(made, group) if isinstance(made, JobRunner) else self._end(made))

    def _made(self, events: Sequence[Event], artifacts: DatabaseArtifacts) -> JobRunner | Job:
        """The job, ready to run or to go on; where it can't be made it is a failed one."""
        past: JobPast | None = None
        try:
            past = JobPast.read(events) if events else None
        except UNREADABLE as error:
            return self._unread("failed", "internal", "The worker that ran the job ended.", error)
        try:
            self.letters |= ids_in(events)
            self.log.goes_on(0 if past is None else past.part)
            return JobRunner(self.work.job(self.row, self.log, artifacts, self._barrier, past))
        except DagwrightError as error:
            code, cause = error.code, str(error)
        except Exception as error:  # noqa: BLE001 - a row or a log nobody foresaw: the job's account says so
            log.error("job_error", job_id=self.job_id, **error_fields(error))
            return self._unstarted("failed", "internal", f"{type(error).__name__}: {error}")
        if past is None:
            return self._unstarted("failed", code, cause)
        cause = f"The worker that ran the job ended, and it could not go on: {cause}"
        return interrupted(self.row, past, self.work.clock.time(), cause, artifacts.names())

    async def _run(self, runner: JobRunner, group: asyncio.TaskGroup) -> Outcome:
        self.runner = runner
        self.job = group.create_task(_job(runner), name=f"job {self.job_id}")
        if self.work.on_runner is not None:
            self.work.on_runner(runner)
        helpers = [group.create_task(self._letters(runner), name=f"letters {self.job_id}")]
        if self.handover is not None:
            helpers.append(group.create_task(self._leave_when_told(runner, self.handover), name="hand over"))
            if self.work.approve is None:
                helpers.append(group.create_task(self._park(runner), name="park"))
        try:
            await asyncio.wait({self.job})
        except asyncio.CancelledError:
            self._cut(runner)
            _cancel(helpers)  # a job that is nobody's has no listener
            await self._last_word(runner)
            raise
        _cancel(helpers)
        return await self._let_go() if runner.handed_over else await self._stored()

    async def _barrier(self) -> None:
        """The job's barrier. What was said to the job before it was claimed is known before it passes the first one."""
        await self.looked.wait()
        await self._kept()

    async def _kept(self) -> None:
        """Returns when all that was appended is stored. Where the log can't be written it never does: the job is about
        to be cancelled, and must do nothing on the way that nobody would ever know of."""
        try:
            await self.log.barrier()
        except (OwnershipLostError, LogFailedError):
            await asyncio.get_running_loop().create_future()

    def _status(self) -> str | None:
        return None if self.runner is None else self.runner.status

    # Its end

    async def _end(self, job: Job) -> Outcome:
        close_log(self.log, job)
        return await self._stored()

    async def _stored(self) -> Outcome:
        try:
            await self.log.barrier()
        except asyncio.CancelledError:
            with suppress(TimeoutError):  # it is stored although this is being cancelled, if the database takes it soon
                async with asyncio.timeout(LAST_WORD):
                    await self.log.barrier()
            raise
        return "ended"

    def _unstarted(self, status: JobStatus, code: str, cause: str) -> Job:
        row, now = self.row, self.work.clock.time()
        return Job(
            self.job_id, status, row["goal"], row["mode"], cause, error=cause, error_code=code,
            created_at=row["created_at"].timestamp(), started_at=now, ended_at=now,
            metadata=row["metadata"], parent=row["parent"],
        )  # fmt: skip

    async def _cancelled(self) -> Job:
        if not self.row["seq"]:
            return self._unstarted("cancelled", "cancelled", "The job was cancelled before it started.")
        try:
            return await cancelled_job(self.database, self.row)
        except UNREADABLE as error:
            return self._unread("cancelled", "cancelled", "The job was cancelled.", error)

    def _unread(self, status: JobStatus, code: str, cause: str, error: Exception) -> Job:
        """The account of a job whose events are not what this version knows: it ends, as any other."""
        log.error("events_unreadable", job_id=self.job_id, **error_fields(error))
        why = f"{type(error).__name__}: {error}"
        done = "What it had done stands there, and its cost."
        return self._unstarted(status, code, f"{cause} Its events can't be read by this version ({why}). {done}")

    async def _crashed(self) -> Job:
        """The account of a job that kills whoever runs it."""
        row = self.row
        cause = f"{row['crashes']} processes in a row that ran this job alone ended unexpectedly before it had written"
        if not row["seq"]:
            return self._unstarted("failed", "crashed", f"{cause} anything.")
        if row["crashes"] >= TOO_MANY:
            return self._unstarted("failed", "crashed", f"{cause} anything new. What it had done stands in its events.")
        artifacts = await DatabaseArtifacts.load(self.database, self.job_id, self.owner)
        events = [event async for event in stored_events(self.database, self.job_id)]
        try:
            past = JobPast.read(events)
        except UNREADABLE as error:
            return self._unread("failed", "crashed", f"{cause} anything new.", error)
        names = artifacts.names()
        return interrupted(row, past, self.work.clock.time(), f"{cause} anything new.", names, "crashed")

    # How it is let go

    def _cut(self, runner: JobRunner) -> None:
        """Ends the work here without a word, unless it has come to its end, or is coming to it, by itself."""
        if self.job is not None and runner.state.ended is None and not runner.cancelling and not self.job.done():
            runner.handed_over, self.due = True, runner.state.waits.due
            self.log.seal()
            self.job.cancel()

    async def _leave_when_told(self, runner: JobRunner, handover: HandOver) -> None:
        """Hands the job over once nothing of it is under way any more, or the time for that is over."""
        await handover.told()
        activity = runner.state.activity
        activity.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(handover.left):
                await activity.rest()
                await asyncio.sleep(SETTLE)
        self.parks = self._all_waits(runner)
        self._cut(runner)

    async def _park(self, runner: JobRunner) -> None:
        """Parks the job when all of it waits for a human."""
        activity, waits = runner.state.activity, runner.state.waits
        while True:
            await activity.asked.wait()
            activity.asked.clear()
            while waits.pending:
                await asyncio.sleep(LINGER)
                if self._all_waits(runner):
                    await self._barrier()
                    if self._all_waits(runner):  # still
                        self.parks = True
                        self._cut(runner)
                        return

    def _all_waits(self, runner: JobRunner) -> bool:
        """Whether nothing of the job goes on before a human has spoken, or a wait is over; and whoever goes on with it
        then can do so: a call whose arguments are masked in the log is only made by the process that knows them."""
        activity, pending = runner.state.activity, runner.state.waits.pending
        return (
            runner.status == "needs_decision"
            and activity.still
            and activity.calls <= len(pending)
            and not (self.reading or self.woken.is_set() or runner.cancelling)
            and all(redact_data(call.tool_args) is call.tool_args for call in pending)
        )

    async def _let_go(self) -> Outcome:
        """Stores the rest and lets the job go; where the database does not answer soon it is found as a dead worker's
        is."""
        try:
            async with asyncio.timeout(LAST_WORD):
                await self.log.barrier()
                parked = await let_go(
                    self.database,
                    self.job_id,
                    self.owner,
                    waits=self.parks,
                    seconds=self.due,
                    letters=self.letters,
                )
        except TimeoutError:
            log.warning("job_not_let_go", job_id=self.job_id)
            return "handed_over"
        return "parked" if parked else "handed_over"

    async def _last_word(self, runner: JobRunner) -> None:
        """What happened is stored although this is being cancelled, if the database takes it soon."""
        assert self.job is not None
        await asyncio.wait({self.job}, timeout=LAST_WORD)
        with suppress(OwnershipLostError, LogFailedError):  # then that is why it is cancelled
            if runner.handed_over:
                await self._let_go()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORD):
                        await self.log.barrier()

    # What is said to it

    async def _letters(self, runner: JobRunner) -> None:
        """Takes what was said, whenever there may be something: each letter once, and first into the log."""
        while True:
            self.reading = False
            await self.woken.wait()
            self.reading = True
            self.woken.clear()
            known = sorted(self.letters)
            rows = await self.database.patiently("log.take_letters", self.job_id, self.owner, known)
            if not rows:
                self.log.seal()
                raise OwnershipLostError(f"{self.job_id} belongs to another worker")
            if rows[0]["cancel"]:
                runner.cancel()
            letters = [row for row in rows if row["id"] is not None]
            if letters and not self.log.sealed:
                for letter in letters:
                    self.log.append("note", note_of(letter["id"], letter["kind"], letter["payload"]))
                    self.letters.add(letter["id"])
                await self._kept()
                for letter in letters:
                    self.log.append("note", acted(letter["id"]))
                    self._take(runner, letter["kind"], letter["payload"])
            self.looked.set()

    def _take(self, runner: JobRunner, kind: str, said: Mapping[str, Any]) -> None:
        try:
            act(runner, kind, said)
        except (DagwrightError, KeyError) as error:  # too late, or for nobody: the job goes on
            log.warning("letter_without_effect", job_id=self.job_id, kind=kind, **error_fields(error))


async def _job(runner: JobRunner) -> None:
    with suppress(UsageError):  # the job's account says it
        await runner.run()


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _cause(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception that the group's end comes from: lost ownership before all."""
    lost = errors.subgroup(OwnershipLostError)
    found: BaseException = errors if lost is None else lost
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
