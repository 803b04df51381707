"""A job's log in a file: what a barrier has let pass is on disk, and what is read back is what was written."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from executor.log import group_commit
from executor.log.file import FileLog, read_log
from executor.log.front import Ending
from executor.log.group_commit import GroupCommit, WriteFailedError
from registry.errors import ConfigError
from registry.redaction import know_secret


@asynccontextmanager
async def writing() -> AsyncIterator[GroupCommit]:
    writer = GroupCommit()
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.serve())
        yield writer
        writer.end()


async def test_events_come_back_and_go_on_where_they_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with writing() as writer:
        log = FileLog("job_1", path, writer)
        log.append("job_started", {"goal": "x"})
        log.append("call", {"text": "a\nb\u2028\ud800"}, "s1")
        await log.release()
        known = read_log(path, "job_1")
        assert [event.payload for event in known.events] == [
            {"goal": "x"},
            {"text": "a\nb\u2028\ud800"},
        ]
        log = FileLog("job_1", path, writer, seq=2)
        log.append("turn", {"n": 3})
        await log.barrier()
        assert await log.history() == read_log(path, "job_1").events
        log.ends(Ending("completed", {"status": "completed"}))
        log.append("turn", {"n": 4})
        await log.release()
    known = read_log(path, "job_1")
    assert [(event.seq, event.channel, event.step_id) for event in known.events] == [
        (1, "job_started", None), (2, "call", "s1"), (3, "turn", None),
    ]  # fmt: skip
    assert known.summary == {"status": "completed"}
    assert {event.job_id for event in known.events} == {"job_1"}


async def test_secrets_are_masked(tmp_path: Path) -> None:
    know_secret("very-secret-value-1234")
    async with writing() as writer:
        log = FileLog("job_1", tmp_path / "log", writer)
        log.append("call", {"text": "it is very-secret-value-1234"})
        await log.release()
    assert "very-secret" not in (tmp_path / "log").read_text("utf-8")


async def test_a_barrier_returns_when_the_line_is_on_disk_and_many_share_one_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    write = group_commit._write

    def counted(lines: list[tuple[object, bytes]]) -> None:
        rounds.append(len(lines))
        write(lines)  # type: ignore[arg-type]

    monkeypatch.setattr(group_commit, "_write", counted)
    async with writing() as writer:
        logs = [FileLog(f"job_{number}", tmp_path / str(number), writer) for number in range(20)]

        async def one(log: FileLog) -> None:
            for number in range(5):
                log.append("turn", {"n": number})
                await log.barrier()
                assert len(read_log(log.path, log.job_id).events) == number + 1

        async with asyncio.TaskGroup() as group:
            for log in logs:
                group.create_task(one(log))
        for log in logs:
            await log.release()
    assert sum(rounds) == 100
    assert len(rounds) < 50, "what comes meanwhile is written together"


async def test_a_sealed_log_takes_only_what_calls_have_cost(tmp_path: Path) -> None:
    async with writing() as writer:
        log = FileLog("job_1", tmp_path / "log", writer)
        log.append("phase", {"phase": "planning"})
        log.seal()
        log.append("phase", {"phase": "executing"})
        log.append("turn", {"usage": None})
        log.ends(Ending("cancelled", {}))
        await log.release()
    known = read_log(tmp_path / "log", "job_1")
    assert [event.channel for event in known.events] == ["phase", "turn"]
    assert known.summary is None


async def test_where_nothing_can_be_written_no_barrier_returns_and_the_writer_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    passed = []

    async def work(writer: GroupCommit) -> None:
        log = FileLog("job_1", tmp_path / "log", writer)
        try:
            log.append("turn", {})
            await log.barrier()
            passed.append("barrier")
        finally:
            await log.release()  # does not wait for what never comes

    monkeypatch.setattr(os, "fsync", full)
    with pytest.RaisesGroup(pytest.RaisesExc(WriteFailedError, match="No space left on device")):
        async with asyncio.TaskGroup() as group:
            writer = GroupCommit()
            group.create_task(writer.serve())
            group.create_task(work(writer))
    assert passed == []


async def test_a_release_that_is_cancelled_leaves_the_writer_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, write = threading.Event(), group_commit._write

    def slow(lines: list[tuple[object, bytes]]) -> None:
        assert busy.wait(20)
        write(lines)  # type: ignore[arg-type]

    monkeypatch.setattr(group_commit, "_write", slow)
    async with writing() as writer:
        logs = [FileLog(name, tmp_path / name, writer) for name in ("a", "b")]
        for log in logs:  # the first one's line is being written, the second one's has to wait
            log.append("turn", {})
            leaving = asyncio.create_task(log.release())
            await asyncio.sleep(0.01)
            leaving.cancel()
            await asyncio.wait({leaving})
            assert leaving.cancelled()
            assert not log._file.closed
        busy.set()
    assert [len(read_log(log.path, log.job_id).events) for log in logs] == [1, 1]
    assert all(log._file.closed for log in logs)


async def test_a_cancelled_barrier_leaves_the_others_alone(tmp_path: Path) -> None:
    async with writing() as writer:
        log, other = (FileLog(name, tmp_path / name, writer) for name in ("a", "b"))
        log.append("turn", {})
        other.append("turn", {})
        waiting = asyncio.create_task(log.barrier())
        await asyncio.sleep(0)
        waiting.cancel()
        await other.barrier()
        assert waiting.cancelled() or (await asyncio.wait({waiting}))
        await log.release()
        await other.release()
    assert len(read_log(tmp_path / "a", "a").events) == len(read_log(tmp_path / "b", "b").events) == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["no json"], "log:1: cannot be read: JSONDecodeError"),
        (['{"seq": 2, "ts": 0, "channel": "x", "payload": {}}'], "log:1: cannot be read: ValueError: event 2"),
        (['{"seq": 1}'], "log:1: cannot be read: KeyError"),
        (["[]"], "log:1: cannot be read"),
    ],
)
def test_what_no_log_has_is_told_with_its_line(lines: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(ConfigError) as wrong:
        read_log(tmp_path / "log", "job_1")
    assert said in str(wrong.value)


def test_half_a_line_does_not_count(tmp_path: Path) -> None:
    whole = json.dumps({"seq": 1, "ts": 0.0, "channel": "x", "payload": {}}) + "\n"
    (tmp_path / "log").write_text(whole + whole[:-5], encoding="utf-8")
    assert len(read_log(tmp_path / "log", "j").events) == 1
    assert read_log(tmp_path / "none", "j").events == ()
