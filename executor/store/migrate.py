"""Migrations: numbered files, each applied once, in order, checked by sum, one process at a time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from .database import Connection, Database, DatabaseError

LOCK = 0x64_77_6D_69_67  # "dwmig"
"""The advisory lock under which migrations run."""

_TABLE = """
create table if not exists dw_migrations (
    number integer primary key, name text not null, sum text not null, applied_at timestamptz not null default now()
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, name, statements, and their SHA-256."""

    number: int
    name: str
    sql: str

    @property
    def sum(self) -> str:
        """What tells that the file is still the one that was applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> tuple[Migration, ...]:
    """The migrations that this version knows, in order."""
    found = []
    for file in files("executor.store").joinpath("migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda one: one.number))


async def migrate(database: Database) -> tuple[str, ...]:
    """Brings the schema up to this version, the queue's included; returns the names of what was applied.

    All or nothing per migration. Raises DatabaseError where the schema is newer than this version, or an applied
    migration is not the one that stands in its file.
    """
    async with database.connection() as connection:
        await connection.execute("select pg_advisory_lock($1)", LOCK)
        try:
            await connection.execute(_TABLE)
            applied = await _applied(connection)
            done = []
            for migration in migrations():
                if migration.number not in applied:
                    async with connection.transaction():
                        await connection.execute(migration.sql)
                        await connection.execute(
                            "insert into dw_migrations (number, name, sum) values ($1, $2, $3)",
                            migration.number, migration.name, migration.sum,
                        )  # fmt: skip
                    done.append(f"{migration.number:04d}_{migration.name}")
            await _queue(connection)
            return tuple(done)
        finally:
            await connection.execute("select pg_advisory_unlock($1)", LOCK)


async def check(database: Database) -> None:
    """Raises DatabaseError where the schema is not exactly this version's."""
    async with database.connection() as connection:
        exists = await connection.fetchval("select to_regclass('dw_migrations') is not null")
        applied = await _applied(connection) if exists else {}
    missing = [one.name for one in migrations() if one.number not in applied]
    if missing:
        raise DatabaseError(f"the database lacks the migration {missing[0]!r}: run `dagwright db migrate`")


async def _applied(connection: Connection) -> dict[int, str]:
    known = {one.number: one for one in migrations()}
    rows = await connection.fetch("select number, sum from dw_migrations")
    applied: dict[int, str] = {row["number"]: row["sum"] for row in rows}
    for number, check_sum in applied.items():
        if number not in known:
            raise DatabaseError(
                f"the database has migration {number}, which this version of dagwright does not know: "
                "it belongs to a newer version, use that one"
            )
        if known[number].sum != check_sum:
            raise DatabaseError(
                f"migration {number} ({known[number].name}) was changed after it was applied to this database: it was "
                "made by a version that was never released; keep that version for it, or use another database"
            )
    return applied


async def _queue(connection: Connection) -> None:
    """The tables of the queue, by its own means."""
    from pgqueuer.queries import Queries

    queries = Queries.from_asyncpg_connection(connection)  # type: ignore[arg-type]  # one of the pool will do
    if not await queries.schema_is_installed():
        await queries.install()
    else:
        await queries.upgrade()
