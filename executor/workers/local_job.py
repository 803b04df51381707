"""A job that the command runs by itself and keeps in the database, through the same pipeline as the service's.

It stands in no queue: the process that began it runs it. That this process lives is said by an advisory lock, which the
database lets go when its connection ends; then the reconciliation gives the job to a worker, as it does with those of
dead workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from executor.job_types import Job
from executor.letters import note_of
from executor.log.stored import OwnershipLostError
from executor.store.database import Database
from executor.store.jobs import NewJob, insert, new_id
from registry.errors import UsageError

from .handover import Outcome
from .inbox import Inbox
from .stored_job import run_stored_job
from .workshop import GUARDS, Workshop

if TYPE_CHECKING:
    from executor.job import JobRunner

LOCAL = "local"
"""The mark in a job's request that its own process runs it."""


class LocalJob:
    """What can be said to the job, and its end. It owns the job's task."""

    def __init__(self, job_id: str, run: Callable[[LocalJob], asyncio.Task[Outcome]], database: Database) -> None:
        self.id, self._database = job_id, database
        self._runner: JobRunner | None = None
        self._said: list[str] = []
        self._stop = self._cancel = False
        self._task = run(self)

    def started(self, runner: JobRunner) -> None:
        """The job is about to begin: once it has said so, it hears what was said before."""
        asyncio.get_running_loop().call_soon(self._begun, runner)

    def _begun(self, runner: JobRunner) -> None:
        self._runner = runner
        for text in self._said:
            self.send(text)
        if self._stop:
            self.stop()
        if self._cancel:
            runner.cancel()

    def send(self, text: str) -> None:
        """A follow-up message."""
        if self._runner is None:
            self._said.append(text)
        else:
            self._runner.send(text)
            self._note("message", {"text": text})

    def stop(self) -> None:
        """Ends with grace: running steps finish, pending ones are skipped."""
        self._stop = True
        if self._runner is not None:
            self._runner.stop()
            self._note("stop", {})

    def cancel(self) -> None:
        """Ends at once: running steps are cancelled and awaited; `result` gives the cancelled job."""
        self._cancel = True
        if self._runner is not None:
            self._runner.cancel()

    def _note(self, kind: str, said: Mapping[str, Any]) -> None:
        """What was said stands in the log: a worker that goes on with the job, if this process dies, knows of it."""
        assert self._runner is not None
        self._runner.state.log.append("note", note_of(None, kind, said))

    async def result(self) -> Job:
        """The ended job, its history stored. Raises UsageError for a job that could not be made, and what the database
        has against it; cancelling the wait cancels the job too, and waits until it has ended."""
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if not self._task.done():
                self.cancel()
                await asyncio.wait({self._task})
            raise
        if self._runner is None or self._runner.state.ended is None:
            row = await self._database.row("command.job", self.id)
            summary = None if row is None else row["summary"]
            raise UsageError((summary or {}).get("error") or "the job was ended by somebody else before it began")
        return self._runner.state.ended


@asynccontextmanager
async def kept_job(database: Database, job: NewJob, work: Workshop, tenant: str = "") -> AsyncIterator[LocalJob]:
    """Stores a job and runs it within the block; `work` is what it is run with. Raises what the database has against
    it."""
    job_id = new_id()
    async with database.own_connection() as alive:
        await alive.execute("select pg_advisory_lock(hashtextextended($1, 0))", job_id)
        async with database.transaction() as connection:
            await insert(connection, tenant, replace(job, request=_marked(job.request, work)), job_id=job_id)
        try:
            async with Inbox.open(database) as inbox, asyncio.TaskGroup() as group:

                def run(handle: LocalJob) -> asyncio.Task[Outcome]:
                    here = replace(work, inbox=inbox, on_runner=handle.started)
                    return group.create_task(run_stored_job(database, uuid4(), job_id, here), name=f"job {job_id}")

                yield LocalJob(job_id, run, database)
        except BaseExceptionGroup as errors:
            error = _one(errors)
            if isinstance(error, OwnershipLostError):
                told = f"{job_id} belongs to another worker now, which goes on with it: `dagwright jobs show {job_id}`"
                raise OwnershipLostError(told) from None
            raise error from None


def _marked(request: Mapping[str, Any], work: Workshop) -> dict[str, Any]:
    """The request of a job that its own process runs. Guards that are declared here are named: a worker that has others
    must not go on without them."""
    guards = [entry.use for entry in work.options_of(work.settings).hooks]
    return {**request, LOCAL: True, **({GUARDS: guards} if guards else {})}


def _one(error: BaseException) -> BaseException:
    """The exception inside groups of one: they only say that it passed through tasks."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
