"""The database that commands work on."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from executor.store.database import Database
from executor.store.migrate import check, migrate

from .setup import data_dir, settings_of


@asynccontextmanager
async def opened(options: argparse.Namespace, *, size: int = 1) -> AsyncIterator[Database]:
    """The service's database, its schema checked: the one that is configured, else the embedded one, which runs
    meanwhile, or already. Raises DatabaseError where it can't be used."""
    settings = settings_of(options)
    async with AsyncExitStack() as stack:
        if settings.database_url is not None:
            dsn = settings.database_url.get_secret_value()
        else:
            from executor.embedded import reached

            dsn = await stack.enter_async_context(reached(data_dir(settings)))
        database = await stack.enter_async_context(Database.open(dsn, size=size))
        if settings.database_url is None:
            await migrate(database)  # it may have been made just now
        await check(database)
        yield database
