"""Live pieces of answers, from the workers of a machine to its server, over a unix socket.

They only run ahead of what is stored: every piece carries its place in the answer, so that one that is lost costs a
reader a moment. So a slow or dead server never slows a worker: pieces that find no room are dropped.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog

OnPiece = Callable[[str, int, int, str], None]
"""Takes a piece: the job's id, the part (answers void before), the offset in characters, the text. Must not wait."""

ROOM = 1 << 20
"""Bytes that wait for the server at most."""
LARGEST = 1 << 22
"""Bytes of one frame; more is no frame of ours."""
RECONNECT = (0.1, 2.0)
"""Seconds before the server is looked for again: the first wait and the longest."""
_LENGTH = struct.Struct("!I")

log = structlog.get_logger(__name__)


class LiveSender:
    """Sends pieces; calling it never waits. `serve` does the work, as a task of the owner's."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._some = asyncio.Event()
        self.dropped = 0
        """Pieces that found no room."""

    def __call__(self, job_id: str, part: int, offset: int, text: str) -> None:
        """Has a piece sent, or drops it."""
        body = json.dumps([job_id, part, offset, text]).encode()
        if self._size + len(body) > ROOM:
            self.dropped += 1
            return
        self._waiting.append(_LENGTH.pack(len(body)) + body)
        self._size += len(body)
        self._some.set()

    async def serve(self) -> None:
        """Sends until it is cancelled; the server may come and go."""
        wait = RECONNECT[0]
        while True:
            await self._some.wait()
            try:
                _, writer = await asyncio.open_unix_connection(self._path)
            except OSError:
                self._forget()
                await asyncio.sleep(wait)
                wait = min(2 * wait, RECONNECT[1])
                continue
            wait = RECONNECT[0]
            try:
                await self._send(writer)
            except OSError as error:
                log.info("live_server_lost", error=str(error) or type(error).__name__)
                self._forget()
            finally:
                writer.transport.abort()  # a server that reads no more must not hold us

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            frames = b"".join(self._waiting)
            self._waiting.clear()
            writer.write(frames)
            await writer.drain()
            self._size = sum(map(len, self._waiting))

    def _forget(self) -> None:
        """What nobody took is of no use later."""
        self._waiting.clear()
        self._size = 0
        self._some.clear()


class LiveServer:
    """Takes pieces from any number of workers and hands each to `on_piece`, in each worker's order."""

    def __init__(self, on_piece: OnPiece) -> None:
        self._on_piece = on_piece

    @asynccontextmanager
    async def listening(self, path: str | os.PathLike[str]) -> AsyncIterator[None]:
        """Within the block workers can connect. The socket's folder must be the user's own; a socket that an earlier
        process left there is replaced."""
        place = os.fspath(path)
        _remove(place)
        connected: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connected[task] = writer
            try:
                await self._take(reader)
            finally:
                del connected[task]
                writer.transport.abort()

        server = await asyncio.start_unix_server(take, place)
        try:
            os.chmod(place, 0o600)
            yield
        finally:
            server.close()
            for writer in connected.values():
                writer.transport.abort()  # its reader sees the end
            if connected:
                await asyncio.wait(tuple(connected))
            _remove(place)

    async def _take(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if length > LARGEST:
                    log.warning("live_frame_refused", length=length)
                    return
                piece = _piece(json.loads(await reader.readexactly(length)))
                if piece is None:
                    log.warning("live_frame_refused", length=length)
                    return
                self._on_piece(*piece)
        except (asyncio.IncompleteReadError, OSError):
            return  # the worker has ended
        except ValueError:
            log.warning("live_frame_refused")


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _piece(value: object) -> tuple[str, int, int, str] | None:
    match value:
        case [str(job_id), int(part), int(offset), str(text)]:
            return job_id, part, offset, text
        case _:
            return None
