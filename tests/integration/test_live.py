"""Live pieces from workers to the server over a real unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
import time
from pathlib import Path

import pytest

from executor.workers.live import ROOM, LiveSender, LiveServer
from tests.support.command import PATIENCE

Piece = tuple[str, int, int, str]


async def until(condition: object) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_pieces_arrive_in_order_and_unchanged(tmp_path: Path) -> None:
    got: list[Piece] = []
    sent = [("job_1", number % 2, number, f"grün {number}\n\x00\U0001f600") for number in range(2_000)]
    async with (
        LiveServer(lambda *piece: got.append(piece)).listening(tmp_path / "live"),
        asyncio.TaskGroup() as group,
    ):
        assert stat.S_IMODE((tmp_path / "live").stat().st_mode) == 0o600
        sender = LiveSender(tmp_path / "live")
        task = group.create_task(sender.serve())
        for piece in sent:
            sender(*piece)
            if piece[2] % 100 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(got) == len(sent))
        task.cancel()
    assert got == sent
    assert not (tmp_path / "live").exists()


async def test_workers_are_told_apart_only_by_what_they_send(tmp_path: Path) -> None:
    got: list[Piece] = []
    async with (
        LiveServer(lambda *piece: got.append(piece)).listening(tmp_path / "live"),
        asyncio.TaskGroup() as group,
    ):
        senders = [LiveSender(tmp_path / "live") for _ in range(3)]
        tasks = [group.create_task(sender.serve()) for sender in senders]
        for offset in range(50):
            for number, sender in enumerate(senders):
                sender(f"job_{number}", 0, offset, "x")
            await asyncio.sleep(0)
        await until(lambda: len(got) == 150)
        for task in tasks:
            task.cancel()
    for number in range(3):
        assert [piece[2] for piece in got if piece[0] == f"job_{number}"] == list(range(50))


async def test_a_server_that_does_not_read_never_slows_the_sender(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / "live"))
        stuck.listen(1)
        sender = LiveSender(tmp_path / "live")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(sender.serve())
            longest = 0.0
            for offset in range(400):
                began = time.perf_counter()
                sender("job_1", 0, offset, "x" * 10_000)
                longest = max(longest, time.perf_counter() - began)
                await asyncio.sleep(0)
            assert sender.dropped > 0
            assert longest < 1.0
            task.cancel()


async def test_without_a_server_pieces_are_dropped_and_the_next_server_gets_the_later_ones(tmp_path: Path) -> None:
    sender = LiveSender(tmp_path / "live")
    got: list[Piece] = []
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.serve())
        for offset in range(3):
            sender("job_1", 0, offset, "x" * ROOM)  # none has room: the frame is larger than what may wait
        assert sender.dropped == 3
        for _round in range(2):  # the server is restarted once
            got.clear()
            async with LiveServer(lambda *piece: got.append(piece)).listening(tmp_path / "live"):

                def arrived() -> bool:
                    sender("job_1", 0, 9, "late")
                    return bool(got)

                await until(arrived)
        task.cancel()
    assert set(got) == {("job_1", 0, 9, "late")}


@pytest.mark.parametrize(
    "frame",
    [b"\xff\xff\xff\xff", struct.pack("!I", 4) + b"nope", struct.pack("!I", 2) + b"[]", struct.pack("!I", 100) + b"x"],
)
async def test_what_is_no_piece_ends_the_connection_and_nothing_else(tmp_path: Path, frame: bytes) -> None:
    got: list[Piece] = []
    async with LiveServer(lambda *piece: got.append(piece)).listening(tmp_path / "live"):
        reader, writer = await asyncio.open_unix_connection(os.fspath(tmp_path / "live"))
        writer.write(frame)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        sender = LiveSender(tmp_path / "live")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(sender.serve())
            sender("job_1", 0, 0, "good")
            await until(lambda: got)
            task.cancel()
    assert got == [("job_1", 0, 0, "good")]
