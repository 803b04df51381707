"""The queue, which is PgQueuer, behind one small module: one row in it is one job of ours.

An exception that escapes an entry point, and a coroutine that is cancelled, delete the row by default: nothing escapes
ours. PgQueuer knows jobs by their own numbers; ours stand in the payload and, so that a job is queued once, in the
deduplication key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .store.database import Connection

ENTRYPOINT = "dagwright"


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
