"""The service in a process of its own, which can be stopped, killed and started again: `python -m … DSN SOCKET`."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from tests.support.command import PATIENCE

ROOT = Path(__file__).parents[2]


@dataclass
class Process:
    """A server's process, and its address."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def resident(self) -> int:
        """Bytes of memory that it holds."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def kill(self) -> None:
        """Ends it at once; nothing happens where it has ended."""
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)

    async def stop(self) -> None:
        """Ends it as an operator would."""
        self.process.terminate()
        await asyncio.to_thread(self.process.communicate, timeout=PATIENCE)


def start(*places: tuple[str, str | os.PathLike[str]]) -> list[Process]:
    """Starts servers, each on a free port: with a database, and where its machine's workers send live pieces ("":
    nowhere)."""
    command = [sys.executable, "-m", "tests.support.event_server"]
    processes = [
        subprocess.Popen([*command, dsn, os.fspath(live)], stdout=subprocess.PIPE, cwd=ROOT) for dsn, live in places
    ]
    try:
        return [Process(process, f"http://127.0.0.1:{_port(process)}") for process in processes]
    except BaseException:
        for process in processes:
            process.kill()
            process.communicate()
        raise


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the server did not start: its lines on standard error say why"
    return int(line)


@contextmanager
def started(*places: tuple[str, str | os.PathLike[str]]) -> Iterator[list[Process]]:
    """Servers for the block."""
    servers = start(*places)
    try:
        yield servers
    finally:
        for server in servers:
            server.kill()


def main(dsn: str, live_socket: str) -> None:
    """Serves until SIGTERM. The port stands on the first line of stdout."""
    from executor.logging_setup import configure_logging
    from executor.service.app import create_app
    from executor.settings_model import Settings
    from tests.support.service import offer

    configure_logging("warning")
    app = create_app(
        Settings.of({"database_url": dsn}, {}), workshop=offer(), live_socket=Path(live_socket) if live_socket else None
    )

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.hub.stop()
            await super().shutdown(sockets)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        config = uvicorn.Config(app, log_level="warning", log_config=None, timeout_graceful_shutdown=10)
        server = Server(config)

        async def serve() -> None:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(server.serve([listener]))
                while not server.started and not task.done():
                    await asyncio.sleep(0.01)
                print(listener.getsockname()[1], flush=True)

        asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
