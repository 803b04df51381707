"""The service in a process of its own, which can be stopped, killed and started again: `python -m … DSN SOCKET`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from tests.support.command import PATIENCE

ROOT = Path(__file__).parents[2]


@dataclass
class Process:
    """A server's process, and its address."""

    process: asyncio.subprocess.Process
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

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stops it, or kills it."""
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE):
            await self.process.wait()


async def start(dsn: str, live_socket: str | os.PathLike[str] = "") -> Process:
    """Starts a server on a free port; `ended` or `end` ends it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.event_server", dsn, os.fspath(live_socket),
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        port = int(await process.stdout.readline())
    return Process(process, f"http://127.0.0.1:{port}")


@asynccontextmanager
async def started(dsn: str, live_socket: str | os.PathLike[str] = "") -> AsyncIterator[Process]:
    """A server for the block."""
    server = await start(dsn, live_socket)
    try:
        yield server
    finally:
        if server.process.returncode is None:
            await server.end(signal.SIGKILL)


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
