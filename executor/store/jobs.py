"""Jobs as the service's users have them: created with their place in the queue, read, listed, spoken to."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from registry.errors import DagwrightError

from .database import Connection, Database, Row
from .queue import enqueue
from .statements import statement


class IdempotencyError(DagwrightError):
    """This idempotency key was used with another body."""

    code: ClassVar[str] = "idempotency_mismatch"


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a job is created from. `request` is all that a worker needs to run it; `kind` is run or plan; `artifacts`
    are names of the parent's that are the new job's, too."""

    goal: str
    mode: str = "auto"
    kind: str = "run"
    request: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    batch: str | None = None
    custom_id: str | None = None
    line: int | None = None
    webhook: str | None = None
    artifacts: tuple[str, ...] = ()


def new_id(kind: str = "job") -> str:
    """A name nobody else has: job_… or batch_… and 96 random bits."""
    return f"{kind}_{uuid.uuid4().hex[:24]}"


class JobStore:
    """The jobs of one database. A row is a mapping with the columns of `dw_jobs`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def create(
        self, tenant: str, job: NewJob, *, idempotency_key: str | None = None, request_hash: bytes | None = None
    ) -> tuple[Row, bool]:
        """Stores a job and puts it into the queue, in one transaction; its row, and whether it is new.

        With an idempotency key that is known the job of that key comes back; raises IdempotencyError where it was
        made from another body.
        """
        async with self.database.transaction() as connection:
            row = await insert(connection, tenant, job, idempotency_key, request_hash)
            if row is not None:
                await enqueue(connection, [row["id"]])
                return row, True
            known = await connection.fetchrow(statement("jobs.by_idempotency_key"), tenant, idempotency_key)
        if known is None or known["request_hash"] != request_hash:
            raise IdempotencyError
        return known, False

    async def get(self, tenant: str, job_id: str) -> Row | None:
        """A tenant's job; None where it has none of this id."""
        return await self.database.row("jobs.get", job_id, tenant)

    async def page(
        self,
        tenant: str,
        *,
        limit: int,
        after: str | None = None,
        statuses: Sequence[str] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        brief: bool = False,
    ) -> tuple[list[Row], bool]:
        """A page of a tenant's jobs, newest first, batches' items left out, without their requests; and whether there
        are more. `metadata`: one of these must be part of a job's. `brief`: without plans, steps and answers, and
        2,000 characters of a goal."""
        wanted = None if statuses is None else list(statuses)
        parts = None if metadata is None else list(metadata)
        rows = await self.database.rows("jobs.page", tenant, after, wanted, parts, limit + 1, brief)
        return list(rows[:limit]), len(rows) > limit

    async def send(self, tenant: str, job_id: str, kind: str, payload: Mapping[str, Any]) -> bool:
        """Says something to a job: message {text}, stop {}, cancel_step {step_id}, decide {call_id, approve, reason,
        decided_by}. False where it has ended or there is none. A job that nobody runs is queued with it, in one
        transaction."""
        async with self.database.transaction() as connection:
            put = await connection.fetchrow(statement("jobs.put_letter"), job_id, tenant, kind, dict(payload))
            if put is not None and put["unowned"]:
                await enqueue(connection, [job_id])
        return put is not None

    async def cancel(self, tenant: str, job_id: str) -> Row | None:
        """Asks for a job's end; its row, or None where it has ended or there is none. A job that nobody runs is ended
        by whoever claims it next, without a call."""
        return await self.database.row("jobs.cancel", job_id, tenant)


async def insert(
    connection: Connection,
    tenant: str,
    job: NewJob,
    idempotency_key: str | None = None,
    request_hash: bytes | None = None,
    *,
    job_id: str | None = None,
) -> Row | None:
    """The new job's row, not yet in the queue; None where the idempotency key is taken."""
    row = await connection.fetchrow(
        statement("jobs.create"),
        job_id or new_id(), tenant, job.kind, job.goal, job.mode, dict(job.request), dict(job.metadata), job.parent,
        job.batch, job.custom_id, job.line, idempotency_key, request_hash,
    )  # fmt: skip
    if row is not None and job.artifacts:
        await connection.execute(statement("fork.share_artifacts"), row["id"], job.parent, list(job.artifacts))
    if row is not None and job.webhook is not None:
        await connection.execute("insert into dw_webhooks (job, url) values ($1, $2)", row["id"], job.webhook)
    return row
