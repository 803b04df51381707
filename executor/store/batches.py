"""Batches in the database: stored in one transaction, counted, read back line by line, cancelled, expired."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from executor.job_types import Job, JobStatus
from executor.json_lines import one_line
from executor.results import rfc3339
from registry.errors import DagwrightError
from registry.redaction import redact
from registry.text import clean

from .database import Connection, Database, Row
from .jobs import IdempotencyError, new_id
from .queue import BATCH_PRIORITY, enqueue, release
from .statements import statement

Mode = Literal["plan", "run"]
Kind = Literal["plan", "run", "experiment"]
"""What a batch is; an experiment is stored by `executor.store.experiments`."""

CHUNK = 250
"""Items of one statement."""
CHUNK_CHARS = 1_000_000
"""Characters of goals that one statement holds, but for its last one."""
PAGE, PAGE_BYTES = 200, 1_000_000
"""Results that are read at once: lines, and bytes as they are stored."""
LOCK = 0x64_77_62_61_74
"""The advisory lock under which batches are looked after ("dwbat")."""
GOAL_SHOWN = 1_000
"""Characters of a goal that are kept of a line that is no good."""
ENDS = {
    "cancelled": "The {whole} was cancelled before this {part} began.",
    "expired": "The {whole}'s time was over before this {part} began.",
    "spent": "What is left of the {whole}'s budget is not enough for this {part}.",
}
"""Why an item never began."""
COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")


class EmptyBatchError(DagwrightError):
    """No line of the batch is good."""

    code: ClassVar[str] = "batch_empty"

    def __init__(self, faults: Iterable[tuple[int, Fault]] = ()) -> None:
        super().__init__()
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a line."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a batch: a job to be, or what is wrong with it. `line` counts from 1; `custom_id` may be missing
    where there is a fault."""

    line: int
    custom_id: str | None
    goal: str
    mode: str = "auto"
    request: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: str | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What a batch is created from, beside its items. `seconds`: how long its items may take, all together. `held`: its
    key's limits bound what runs, so that its items are queued as others end."""

    mode: Kind
    seconds: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    request_hash: bytes | None = None
    held: bool = False


class BatchStore:
    """The batches of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def create(self, tenant: str, batch: NewBatch, items: Iterable[Item]) -> tuple[str, bool]:
        """Stores a batch with its items and queues the good ones, all or nothing; its id, and whether it is new.

        Items are taken one chunk after the other and not kept. Raises EmptyBatchError where none is good,
        IdempotencyError as `JobStore.create`, and whatever taking the items raises.
        """
        batch_id = new_id("batch")
        async with self.database.transaction() as connection:
            known = await claimed(connection, tenant, batch_id, batch)
            if known is not None:
                return known, False
            faults: list[tuple[int, Fault]] = []
            good, total = 0, 0
            for chunk in _chunks(items):
                well = [item for item in chunk if item.fault is None]
                bad = [(item, item.fault) for item in chunk if item.fault is not None]
                await _add_good(connection, tenant, batch, batch_id, well)
                await _add_bad(connection, tenant, batch.mode, batch_id, bad)
                good, total = good + len(well), total + len(chunk)
                faults += [(item.line, fault) for item, fault in bad][: 20 - len(faults)]
            if not good:
                raise EmptyBatchError(faults)
            await connection.execute(statement("batches.set_total"), batch_id, total)
            if batch.held:
                await release(connection, tenants=[tenant])
        return batch_id, True

    async def known(self, tenant: str, batch: NewBatch) -> str | None:
        """The batch that was made from this one's idempotency key before. Raises IdempotencyError where it was made
        from something else."""
        async with self.database.connection() as connection:
            return await _known(connection, tenant, batch)

    async def get(self, tenant: str, batch_id: str) -> dict[str, Any] | None:
        """A tenant's batch in its public shape, its counts of one moment; None where there is none of this id."""
        row = await self.database.row("batches.get", batch_id, tenant)
        return None if row is None else _shown(row)

    async def page(self, tenant: str, *, limit: int, after: str | None = None) -> tuple[list[dict[str, Any]], bool]:
        """A page of a tenant's batches, newest first; and whether there are more."""
        rows = await self.database.rows("batches.page", tenant, after, limit + 1)
        found = [await self.get(tenant, row["id"]) for row in rows[:limit]]
        return [batch for batch in found if batch is not None], len(rows) > limit

    async def results(self, batch_id: str) -> AsyncIterator[bytes]:
        """The lines of the items that have ended, as JSONL, some at a time. No connection is held between two pieces,
        however slowly they are taken. What had not begun when the batch's time was over is ended first."""
        due = await self.database.row("batches.due", batch_id)
        if due is not None:
            await self._end_items(batch_id, due)
        after = 0
        while rows := await self.database.rows("batches.results", batch_id, after, PAGE, PAGE_BYTES):
            after = rows[-1]["line"]
            yield one_line("".join(f"{row['text']}\n" for row in rows).encode())

    async def cancel(self, tenant: str, batch_id: str) -> bool:
        """Ends a batch's queued items and asks the running ones to end; False where there is no such batch. One that
        has ended stays as it is. Where it is cut off in the middle, `look_after` does the rest."""
        row = await self.database.row("batches.cancel", batch_id, tenant)
        if row is not None and row["open"]:
            await self._end_items(batch_id, {**row, "cancelled": True})
        return row is not None

    async def look_after(self) -> int:
        """Ends the items of batches past their time, and closes batches whose items have all ended; how many were
        touched. Any number of servers may call it: one at a time looks, and a batch that two work at suffers nothing.
        """
        touched, last = 0, ""
        while True:
            async with self.database.transaction() as connection:
                if not await connection.fetchval("select pg_try_advisory_xact_lock($1)", LOCK):
                    return touched
                row = await connection.fetchrow(statement("batches.unfinished"), last)
                if row is None:
                    return touched + len(await connection.fetch(statement("batches.close")))
            last = row["id"]
            await self._end_items(last, row)
            touched += 1

    async def next_due(self) -> float | None:
        """Seconds until the next batch's time is over; None: no open batch has an end ahead."""
        row = await self.database.row("batches.next_due")
        return None if row is None else row["seconds"]

    async def _end_items(self, batch_id: str, why: Mapping[str, Any] | Row) -> None:
        """Ends what nobody has begun, some at a time so that no worker has to wait for long; then asks the rest, unless
        only a budget is spent."""
        ended = never_ran("cancelled", *_account(why))
        done = last_event(ended)
        while True:
            row = await self.database.row("batches.end_queued", batch_id, ended, done, CHUNK)
            if row is None or not row["ended"]:
                break
        if why["spent"]:
            return
        async with self.database.transaction() as connection:
            tenant = await connection.fetchval("select tenant from dw_batches where id = $1 for update", batch_id)
            asked = await connection.fetch(statement("batches.ask_the_rest"), batch_id)
            # what waits for a human is run by nobody: whoever claims it ends it
            if unowned := [row["id"] for row in asked if not row["owned"]]:
                await enqueue(connection, unowned, BATCH_PRIORITY)
            await release(connection, tenants=[tenant])


async def claimed(connection: Connection, tenant: str, batch_id: str, batch: NewBatch) -> str | None:
    """Stores the batch itself, without items; the id of the one that has its idempotency key already, else None.
    Raises IdempotencyError where that was made from something else."""
    row = await connection.fetchrow(
        statement("batches.create"), batch_id, tenant, batch.mode, batch.seconds, batch.idempotency_key,
        batch.request_hash, dict(batch.metadata),
    )  # fmt: skip
    if row is not None:
        return None
    known = await _known(connection, tenant, batch)
    assert known is not None  # the key was taken
    return known


async def _known(connection: Connection, tenant: str, batch: NewBatch) -> str | None:
    row = await connection.fetchrow(statement("batches.by_idempotency_key"), tenant, batch.idempotency_key)
    if row is None:
        return None
    if row["request_hash"] != batch.request_hash:
        raise IdempotencyError
    found: str = row["id"]
    return found


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    chars = 0
    for item in items:
        chunk.append(item)
        chars += len(item.goal)
        if len(chunk) == CHUNK or chars >= CHUNK_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


async def _add_good(connection: Connection, tenant: str, batch: NewBatch, batch_id: str, items: list[Item]) -> None:
    if not items:
        return
    ids = [new_id() for _ in items]
    await connection.execute(
        statement("batches.add_items"),
        tenant,
        batch.mode,
        batch_id,
        ids,
        [item.line for item in items],
        [item.custom_id for item in items],
        [item.goal for item in items],
        [item.mode for item in items],
        [dict(item.request) for item in items],
        [dict(item.metadata) for item in items],
        batch.held,
    )
    hooks = [(job_id, item.webhook) for job_id, item in zip(ids, items, strict=True) if item.webhook is not None]
    if hooks:
        await connection.executemany("insert into dw_webhooks (job, url) values ($1, $2)", hooks)
    if not batch.held:
        await enqueue(connection, ids, BATCH_PRIORITY)


async def _add_bad(
    connection: Connection, tenant: str, mode: Kind, batch_id: str, items: list[tuple[Item, Fault]]
) -> None:
    if not items:
        return
    ids = [new_id() for _ in items]
    goals = [redact(clean(item.goal[:GOAL_SHOWN])) for item, _ in items]
    ended = [
        never_ran("failed", clean(fault.detail), fault.code) | {"id": job_id, "goal": goal}
        for job_id, goal, (_, fault) in zip(ids, goals, items, strict=True)
    ]
    await connection.execute(
        statement("batches.add_bad_items"),
        tenant,
        mode,
        batch_id,
        ids,
        [item.line for item, _ in items],
        [item.custom_id for item, _ in items],
        goals,
        ended,
        [last_event(job) for job in ended],
    )


def _account(why: Mapping[str, Any] | Row) -> tuple[str, str]:
    """What is said of an item that never began, and the code of it."""
    names = (
        {"whole": "experiment", "part": "cell"} if why["mode"] == "experiment" else {"whole": "batch", "part": "item"}
    )
    if why["spent"]:
        return ENDS["spent"].format(**names), "budget_exceeded"
    return ENDS["cancelled" if why["cancelled"] else "expired"].format(**names), "cancelled"


def never_ran(status: JobStatus, why: str, code: str) -> dict[str, Any]:
    """A job that ended without having begun, in its public shape; what is its own is to be filled in."""
    return Job("", status, "", "auto", answer=why, error=why, error_code=code).to_json()


def last_event(job: Mapping[str, Any]) -> dict[str, Any]:
    """The `done` event of a job that never ran."""
    kept = {name: job[name] for name in ("answer", "iterations", "usage", "elapsed", "status", "error", "error_code")}
    return {**kept, "cost": job["usage"]["cost_usd"]}


def _shown(row: Row) -> dict[str, Any]:
    ended = row["ended_at"] is not None
    counts = {name: (row["counts"] or {}).get(name, 0) if ended else row[name] for name in COUNTS}
    open_now = counts["processing"] > 0
    return {
        "id": row["id"],
        "mode": row["mode"],
        "status": "ended" if not open_now else "canceling" if row["cancelled_at"] is not None else "in_progress",
        "counts": {**counts, "total": row["total"]},
        "created_at": _time(row["created_at"]),
        "expires_at": _time(row["expires_at"]),
        "cancelled_at": _time(row["cancelled_at"]),
        "ended_at": None if open_now else _time(row["ended_at"] if ended else row["last_end"]),
        "metadata": row["metadata"],
    }


def _time(value: Any) -> str | None:
    """A time as RFC 3339 in UTC, to the millisecond."""
    return None if value is None else rfc3339(value.timestamp())
