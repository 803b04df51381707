"""A job out of the database, run by a worker: claimed, spoken to through letters, durable, its end stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any
from uuid import UUID

import structlog

from registry.errors import DagwrightError, UsageError
from registry.redaction import error_fields

from .interrupted import CODE as INTERRUPTED
from .interrupted import interrupted
from .job import JobRunner
from .job_account import close_log
from .job_types import Job, JobStatus
from .log.stored import LivePieces, LogFailedError, OwnershipLostError, StoredLog, nowhere, stored_events
from .store.artifacts import DatabaseArtifacts
from .store.database import Database
from .workshop import Workshop

CLAIM = 10.0
"""Seconds for a claim: later the queue may have given the job to somebody else."""
LAST_WORD = 5.0
"""Seconds that a job which is cancelled from outside has to store what happened."""
STOPPED: tuple[JobStatus, str, str] = (
    "failed", INTERRUPTED, "The worker that ran the job was told to end; the job was not run again."
)  # fmt: skip
"""What a job comes to whose worker ends before it: nobody cancelled it."""
MAX_CRASHES = 5
"""Claims after which nothing was written; then the job itself is what kills its workers."""

log = structlog.get_logger(__name__)


async def run_stored_job(
    database: Database, owner: UUID, job_id: str, work: Workshop, *, live: LivePieces = nowhere
) -> None:
    """Claims a job, runs it and stores its end; does nothing where it has ended or there is none. Where it runs in this
    process already, waits for its end.

    Whatever the job comes to stands in its log. Raises OwnershipLostError when another worker owns it: this process
    must write nothing more and is best ended; TimeoutError when the database does not answer the claim; what the
    database has against an event. Cancelled, the job ends as interrupted, its account is stored, and CancelledError
    goes on.
    """
    woken, inbox = asyncio.Event(), work.inbox
    if inbox is not None and job_id in inbox:
        log.warning("job_given_twice", job_id=job_id)  # the queue took us for dead: its row stands for the run there is
        await inbox.left(job_id)
        return
    with nullcontext() if inbox is None else inbox.of(job_id, woken.set):
        async with asyncio.timeout(CLAIM):
            rows = await database.patiently("log.claim", job_id, owner)
        for row in rows:
            await _StoredRun(database, owner, dict(row), work, live, woken).run()


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
    ) -> None:
        self.database, self.owner, self.row, self.work = database, owner, row, work
        self.job_id: str = row["id"]
        self.runner: JobRunner | None = None
        self.task: asyncio.Task[Any] | None = None
        self.woken = woken
        self.woken.set()  # what was said before it was claimed
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

    async def run(self) -> None:
        self.task = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.log.serve(), name=f"log {self.job_id}")
                await self._work(group)
        except BaseExceptionGroup as errors:
            raise _cause(errors) from None

    async def _work(self, group: asyncio.TaskGroup) -> None:
        row = self.row
        if row["seq"]:
            artifacts = await DatabaseArtifacts.load(self.database, self.job_id, self.owner)
            events = [event async for event in stored_events(self.database, self.job_id)]
            await self._end(interrupted(row, events, self.work.clock.time(), artifacts.names()))
        elif row["cancel"]:
            await self._end(self._unstarted("cancelled", "cancelled", "The job was cancelled before it started."))
        elif row["crashes"] >= MAX_CRASHES:
            cause = f"{row['crashes']} workers in a row ended unexpectedly before it had written anything."
            await self._end(self._unstarted("failed", "crashed", cause))
        elif (runner := await self._made()) is not None:
            await self._run(runner, group)

    async def _made(self) -> JobRunner | None:
        """The job, ready to run; where it can't be made it ends as failed."""
        try:
            artifacts = DatabaseArtifacts(self.database, self.job_id, self.owner, ())
            return JobRunner(self.work.job(self.row, self.log, artifacts, self._barrier), STOPPED)
        except DagwrightError as error:
            await self._end(self._unstarted("failed", error.code, str(error)))
        except Exception as error:  # noqa: BLE001 - a row nobody foresaw: the job's account says so
            log.error("job_error", job_id=self.job_id, **error_fields(error))
            await self._end(self._unstarted("failed", "internal", f"{type(error).__name__}: {error}"))
        return None

    async def _run(self, runner: JobRunner, group: asyncio.TaskGroup) -> None:
        self.runner = runner
        if self.work.on_runner is not None:
            self.work.on_runner(runner)
        letters = group.create_task(self._letters(runner), name=f"letters {self.job_id}")
        try:
            with suppress(UsageError):  # the job's account says it
                await runner.run()
        except asyncio.CancelledError:
            letters.cancel()
            await self._last_word()
            raise
        finally:
            letters.cancel()  # an ended job belongs to nobody
        await self._stored()

    async def _barrier(self) -> None:
        """The job's barrier. Once the log can't be written the job stands still here: it is about to be cancelled, and
        must do nothing on the way that nobody would ever know of."""
        try:
            await self.log.barrier()
        except (OwnershipLostError, LogFailedError):
            await asyncio.get_running_loop().create_future()

    async def _end(self, job: Job) -> None:
        close_log(self.log, job)
        await self._stored()

    async def _stored(self) -> None:
        try:
            await self.log.barrier()
        except asyncio.CancelledError:
            await self._last_word()
            raise

    async def _last_word(self) -> None:
        """What happened is stored although this is being cancelled, if the database takes it soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD):
                await self.log.barrier()

    def _unstarted(self, status: JobStatus, code: str, cause: str) -> Job:
        row, now = self.row, self.work.clock.time()
        return Job(
            self.job_id, status, row["goal"], row["mode"], cause, error=cause, error_code=code,
            created_at=row["created_at"].timestamp(), started_at=now, ended_at=now,
            metadata=row["metadata"], parent=row["parent"],
        )  # fmt: skip

    def _status(self) -> str | None:
        return None if self.runner is None else self.runner.status

    # What is said to the job

    async def _letters(self, runner: JobRunner) -> None:
        """Takes what was said, each letter once, whenever there may be some."""
        taken: list[int] = []
        while True:
            await self.woken.wait()
            self.woken.clear()
            rows = await self.database.patiently("log.take_letters", self.job_id, self.owner, taken)
            if not rows:
                raise OwnershipLostError(f"{self.job_id} belongs to another worker")
            for letter in rows:
                if letter["id"] is not None:
                    taken.append(letter["id"])
                    self._take(runner, letter["kind"], letter["payload"])
            if rows[0]["cancel"]:
                self._cancel(runner)

    def _take(self, runner: JobRunner, kind: str, said: Mapping[str, Any]) -> None:
        try:
            match kind:
                case "message":
                    runner.send(said["text"])
                case "stop":
                    runner.stop()
                case "cancel_step":
                    runner.cancel_step(said["step_id"])
                case "decide":
                    reason, by = said.get("reason") or "", said.get("decided_by") or "user"
                    runner.state.waits.decide(said["call_id"], said["approve"], reason, by)
                case "cancel":
                    self._cancel(runner)
                case _:
                    raise UsageError(f"nobody knows what {kind!r} means")
        except (DagwrightError, KeyError) as error:  # too late, or for nobody: the job goes on
            log.warning("letter_without_effect", job_id=self.job_id, kind=kind, **error_fields(error))

    def _cancel(self, runner: JobRunner) -> None:
        if not runner.cancelling and runner.state.ended is None and self.task is not None:
            runner.cancelling = True
            self.task.cancel()


def _cause(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception that the group's end comes from: lost ownership before all."""
    lost = errors.subgroup(OwnershipLostError)
    found: BaseException = errors if lost is None else lost
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
