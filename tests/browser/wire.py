"""A connection between browser and service that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Wire:
    """Passes bytes on until it is cut; then nothing gets through until it is mended."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._whole = True
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""

    def cut(self) -> None:
        self._whole = False
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        self._whole = True

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if not self._whole:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, back}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass(reader, back))
                group.create_task(_pass(there, writer))
        finally:
            self._open -= {writer, back}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    """A wire to a service."""
    made = Wire(int(url.rpartition(":")[2]))
    server = await asyncio.start_server(made.take, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.cut()
