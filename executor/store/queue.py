"""What stands in the queue: one row of PgQueuer's for one job of ours.

PgQueuer knows jobs by their own numbers; ours stand in the payload and, so that a job is queued once, in the
deduplication key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .feeding import feed
from .statements import statement

if TYPE_CHECKING:
    from .database import Connection, Database, Row

ENTRYPOINT = "dagwright"
BATCH_PRIORITY = -10
"""Of a batch's items in the queue; a single job has 0 and goes first."""
HELD_AT_ONCE = 100
"""Items in the queue and at work of a key whose money is limited, and nothing else: what they cost can come on top."""
DAY = 24 * 3600.0
"""Seconds of a key's limit of money."""
KEPT = 24 * 3600.0
"""Seconds for which PgQueuer's account of what was done is kept: nobody needs it but who looks for a mistake."""
PRUNED = 10_000
"""Rows of it that are taken away at once, at most."""


async def enqueue(connection: Connection, job_ids: Sequence[str], priority: int = 0) -> None:
    """Puts jobs into the queue, within the connection's transaction; one that is in it already stays as it is."""
    from pgqueuer.queries import Queries

    queries = Queries.from_asyncpg_connection(connection)  # type: ignore[arg-type]  # one of the pool will do
    ids = list(job_ids)
    await queries.enqueue(
        [ENTRYPOINT] * len(ids),
        [job_id.encode() for job_id in ids],
        [priority] * len(ids),
        dedupe_key=list(ids),
        on_conflict="skip",
    )


async def release(
    connection: Connection, *, of_jobs: Sequence[str] | None = None, tenants: Sequence[str] | None = None
) -> int:
    """Queues items of batches that are held back for their keys' limits, and cells of experiments that are to begin, as
    far as there is room now: those of the tenants of these jobs, of these tenants, or of all; how many."""
    rows = await connection.fetch(statement("batches.release"), of_jobs, tenants, HELD_AT_ONCE, DAY)
    ids = [row["id"] for row in rows] + await feed(connection, of_jobs, tenants, HELD_AT_ONCE, DAY)
    if ids:
        await enqueue(connection, ids, BATCH_PRIORITY)
    return len(ids)


async def reconcile(database: Database) -> int:
    """Enqueues the jobs that have not ended, could go on and have no row in the queue; how many there were.

    A job loses its row when its worker fails in a way nobody foresaw, when an operator empties the queue, and when it
    waits for a human: it gets one again when its wait is over.
    """
    async with database.transaction() as connection:
        rows = await connection.fetch(statement("jobs.unqueued"), 0.0)
        await _enqueue(connection, rows)
        await release(connection)
    return len(rows)


async def gone(database: Database, job_ids: list[str]) -> list[float]:
    """Of jobs whose rows have just gone, enqueues those that were woken up while these were about to; the seconds in
    which others are due."""
    async with database.transaction() as connection:
        rows = await connection.fetch(statement("jobs.gone"), job_ids)
        await _enqueue(connection, [row for row in rows if row["ready"]])
        await release(connection, of_jobs=job_ids)
    return [row["seconds"] for row in rows if not row["ready"] and row["seconds"] is not None]


async def prune(database: Database) -> None:
    """Takes away what PgQueuer has kept for long enough."""
    async with database.connection() as connection:
        await connection.execute(statement("queue.prune"), KEPT, PRUNED)
        await connection.execute(statement("queue.prune_statistics"), KEPT, PRUNED)


async def _enqueue(connection: Connection, rows: Iterable[Row]) -> None:
    for of_batch in (False, True):
        ids = [row["id"] for row in rows if row["of_batch"] is of_batch]
        if ids:
            await enqueue(connection, ids, BATCH_PRIORITY if of_batch else 0)
