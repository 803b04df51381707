"""Files of lines that many write to: what comes meanwhile is written and synchronised together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import IO, Any

from registry.errors import DagwrightError


class WriteFailedError(DagwrightError):
    """What happened can't be written down: the disk is full, or the file is gone."""

    code = "write_failed"


class GroupCommit:
    """Appends to files in the order in which lines come. `serve` is the writer and runs as a task of the owner's, until
    `end`: each round writes all that has come, in a thread, and then has the disk keep it."""

    def __init__(self) -> None:
        self._new: list[tuple[IO[bytes], bytes]] = []
        self._under_way: list[tuple[IO[bytes], bytes]] = []
        self._closing: list[IO[bytes]] = []
        self._came = self._kept = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._wanted = asyncio.Event()
        self._ending = False
        self._failed: WriteFailedError | None = None

    def add(self, file: IO[bytes], line: bytes) -> None:
        """The next line of a file."""
        self._new.append((file, line))
        self._came += 1

    async def written(self) -> None:
        """Returns when all that was added so far is on disk. Raises WriteFailedError where it never will be."""
        if self._kept >= self._came:
            return
        if self._failed is not None:
            raise self._failed
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._came, told))
        self._wanted.set()
        await told

    def close(self, file: IO[bytes]) -> None:
        """Closes a file once all that was added to it is written, or never will be."""
        if self._failed is None and any(other is file for other, _ in (*self._under_way, *self._new)):
            self._closing.append(file)
            self._wanted.set()
        else:
            file.close()

    def end(self) -> None:
        """`serve` writes what there is, and returns."""
        self._ending = True
        self._wanted.set()

    async def serve(self) -> None:
        """Writes until the end. Raises WriteFailedError."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                while self._new:
                    await self._round()
                if self._ending:
                    return
        finally:
            self._failed = self._failed or WriteFailedError("nothing is written down any more")
            for _, told in self._waiting:
                if not told.done():
                    told.set_exception(self._failed)
            for file in self._closing:
                file.close()

    async def _round(self) -> None:
        lines, self._new = self._new, []
        self._under_way, came = lines, self._came
        try:
            await _in_thread(lambda: _write(lines))
        except OSError as error:
            name = getattr(lines[0][0], "name", "")
            self._failed = WriteFailedError(f"{error.filename or name} can't be written: {error.strerror or error}")
            raise self._failed from error
        self._under_way, self._kept = [], came
        closing, self._closing = self._closing, []
        for file in closing:
            self.close(file)
        waiting, self._waiting = self._waiting, []
        for until, told in waiting:
            if until > self._kept:
                self._waiting.append((until, told))
            elif not told.done():  # cancelled
                told.set_result(None)


async def _in_thread(call: Callable[[], Any]) -> None:
    """Runs it in a thread; a cancellation waits until it is done."""
    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


def _write(lines: list[tuple[IO[bytes], bytes]]) -> None:
    """Each file's lines in one piece; then all are synchronised, of which the file system makes one commit where it
    can."""
    pieces: dict[IO[bytes], list[bytes]] = {}
    for file, line in lines:
        pieces.setdefault(file, []).append(line)
    for file, parts in pieces.items():
        file.write(b"".join(parts))
        file.flush()
    for file in pieces:
        os.fsync(file.fileno())
