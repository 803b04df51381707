"""`dagwright db migrate`, `db status`: the schema of the service's database."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from executor.store.database import Database, DatabaseError
from executor.store.migrate import check, migrate, migrations

from .out import safe, say, say_json
from .setup import data_dir, settings_of

if TYPE_CHECKING:
    from executor.settings_model import Settings


async def db(options: argparse.Namespace) -> int:
    """Brings the schema up to this version, or says whether it is (exit code 1: it isn't)."""
    settings = settings_of(options)
    async with _opened(settings) as database:
        return await (_migrate(database, options) if options.action == "migrate" else _status(database, options))


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Database]:
    """The database that is configured, else the embedded one, which is started for it unless it runs."""
    if settings.database_url is not None:
        async with Database.open(settings.database_url.get_secret_value(), size=1) as database:
            yield database
        return
    from executor.embedded import reached

    async with reached(data_dir(settings)) as dsn, Database.open(dsn, size=1) as database:
        yield database


async def _migrate(database: Database, options: argparse.Namespace) -> int:
    done = await migrate(database)
    if options.json:
        say_json({"applied": list(done)})
    else:
        say(f"applied: {', '.join(done)}" if done else "the schema is up to date")
    return 0


async def _status(database: Database, options: argparse.Namespace) -> int:
    problem = None
    try:
        await check(database)
    except DatabaseError as error:
        problem = str(error)
    if options.json:
        say_json({"ready": problem is None, "problem": problem, "migrations": [one.name for one in migrations()]})
    else:
        say(safe(problem) if problem else "the schema is up to date")
    return 0 if problem is None else 1
