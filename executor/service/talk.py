"""What the routes of jobs share: the caller's own job, words for it, waiting for its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Header, Request

from executor.store.database import Database, Row
from executor.store.jobs import IdempotencyError, JobStore, NewJob

from .auth import Caller, caller
from .problems import ProblemError, not_found
from .schemas import IDEMPOTENCY_CHARS
from .state import database, jobs

if TYPE_CHECKING:
    from .hub import EventHub

LONGEST_WAIT = 600.0
"""Seconds that a reply is held at most."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=IDEMPOTENCY_CHARS,
        pattern=r"^[\x20-\x7e]+$",
        description="The same key and body give the same job; another body is refused",
    ),
]


def is_id(text: str) -> bool:
    """Whether it may be a job's id; what may not, the database is not asked for."""
    return _ID.fullmatch(text) is not None


async def own_job(request: Request, job_id: str, who: Annotated[Caller, Depends(caller)]) -> Row:
    """The caller's job of the path. Raises 404."""
    row = await jobs(request).get(who.tenant, job_id) if is_id(job_id) else None
    if row is None:
        raise not_found("job", job_id[:64])
    return row


OwnJob = Annotated[Row, Depends(own_job)]
Who = Annotated[Caller, Depends(caller)]


async def create(request: Request, who: Caller, job: NewJob, key: str | None, request_hash: bytes) -> Row:
    """Stores and queues a job, or finds that of the idempotency key. Raises 422 and 429."""
    try:
        if key is not None:  # what is known already is no new job, whatever the limits say
            known = await database(request).row("jobs.by_idempotency_key", who.tenant, key)
            if known is not None:
                if known["request_hash"] != request_hash:
                    raise IdempotencyError
                return known
        async with request.app.state.starts.start(who):
            row, _ = await jobs(request).create(who.tenant, job, idempotency_key=key, request_hash=request_hash)
            return row
    except IdempotencyError as error:
        raise used_before(error) from None


def used_before(error: IdempotencyError) -> ProblemError:
    """The key came with another request."""
    told = "this Idempotency-Key was used with another request: use a new one"
    return ProblemError(422, error.code, "The idempotency key was used before", told)


async def say(store: Database, row: Row, kind: str, payload: Mapping[str, Any]) -> None:
    """Puts something into a job's inbox; a job that nobody runs goes back into the queue with it. Raises 409 where the
    job has ended."""
    if not await JobStore(store).send(row["tenant"], row["id"], kind, payload):
        raise ended(row["id"])


def ended(job_id: str) -> ProblemError:
    """Nothing can be said to a job that has ended."""
    return ProblemError(409, "job_ended", "The job has ended", f"the job {job_id} has ended")


async def until_ended(request: Request, row: Row, seconds: float) -> Row:
    """The job's row when it has ended, or after so many seconds, or when the server stops or the client leaves."""
    if row["ended_at"] is None and seconds > 0:
        hub: EventHub = request.app.state.hub
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(min(seconds, LONGEST_WAIT)),
                hub.reading(row["id"], row["seq"], row["seq"]) as reader,
                asyncio.TaskGroup() as group,
            ):
                listener = group.create_task(reader.leave_with(request.receive))
                async for _ in reader.chunks():
                    pass
                listener.cancel()
        row = await jobs(request).get(row["tenant"], row["id"]) or row
    return row
