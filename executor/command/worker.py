"""`dagwright worker`: worker processes without the server, on any host that reaches the database."""

from __future__ import annotations

import argparse

from executor.plain_errors import plain_errors
from executor.settings import read_environment
from executor.store.database import Database
from executor.store.migrate import check
from registry.config import load_models
from registry.errors import ConfigError

from .out import say, say_json
from .serve import service_settings, signals, workers_of


async def worker(options: argparse.Namespace) -> int:
    """Runs workers until it is told to end. Raises ConfigError, also where the schema is not this version's."""
    from executor.workers.worker import WorkerEnvironment

    settings = service_settings(options)
    if settings.database_url is None:
        raise ConfigError("a worker needs the service's database: set DATABASE_URL (`serve` alone has its own)")
    dsn = settings.database_url.get_secret_value()
    await load_models(options.models, read_environment()).aclose()  # says what is wrong here, not in each child
    async with Database.open(dsn, size=1) as database:
        await check(database)
    supervisor = workers_of(options, settings, dsn, WorkerEnvironment())
    with signals(supervisor.stop), plain_errors():
        if options.json:
            say_json({"workers": supervisor.count})
        else:
            say(f"{supervisor.count} worker process{'' if supervisor.count == 1 else 'es'}")
        await supervisor.run()
    return 0
