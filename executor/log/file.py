"""The log in a file: an event a line, as JSON, internal channels included; then the job as it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import ConfigError
from registry.messages import Event
from registry.whole_files import appendable

from .front import Ending, JobLog
from .group_commit import GroupCommit, WriteFailedError

END = "end"
"""The key of the last line: the job in its public shape."""
CUT = "cut"
"""The mark of a call that was on its way when the job was put down: it is made again."""
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)


class FileLog(JobLog):
    """Keeps a job's events in a file, through a writer that jobs share. A barrier returns when they are on disk; where
    they can't be written it never does, and the job is about to be cancelled.

    `seq`: the events that the file has already. Raises WriteFailedError where it can't be opened.
    """

    merge_seconds = 0.5

    def __init__(
        self,
        job_id: str,
        path: Path,
        writer: GroupCommit,
        *,
        seq: int = 0,
        on_event: Callable[[Event], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(job_id, clock, seq, on_event=on_event)
        self.path, self._writer = path, writer
        try:
            self._file: IO[bytes] = appendable(path)
        except OSError as error:
            raise WriteFailedError(f"{path} can't be written: {error.strerror or error}") from None

    async def barrier(self) -> None:
        """Returns when all that was appended so far is on disk."""
        self.flush()
        try:
            await self._writer.written()
        except WriteFailedError:
            await asyncio.get_running_loop().create_future()

    async def history(self) -> tuple[Event, ...]:
        """The whole history so far, out of the file."""
        await self.barrier()
        return (await asyncio.to_thread(read_log, self.path, self.job_id)).events

    def ends(self, ending: Ending) -> None:
        """Nothing comes any more: the last line is the job as it ended."""
        if self.sealed:
            return
        self.close()
        self._writer.add(self._file, _line({END: dict(ending.summary)}))

    async def release(self) -> None:
        """The file is left as it stands, all that was appended in it, if it can be written."""
        self.flush()
        try:
            with suppress(WriteFailedError):
                await self._writer.written()
        finally:
            self._writer.close(self._file)

    def _write(self, channel: str, payload: Mapping[str, Any], step_id: str | None) -> None:
        if self.sealed and channel == "turn" and payload.get("result") is None:
            payload = {**payload, CUT: True}
        super()._write(channel, payload, step_id)

    def _keep(self, event: Event) -> None:
        head: dict[str, Any] = {"seq": event.seq, "ts": event.ts, "channel": event.channel}
        if event.step_id is not None:
            head["step_id"] = event.step_id
        self._writer.add(self._file, _line({**head, "payload": event.payload}))


@dataclass(frozen=True, slots=True)
class ReadLog:
    """A log out of its file; `summary` is the job in its public shape, once it has ended."""

    events: tuple[Event, ...] = ()
    summary: Mapping[str, Any] | None = None


def read_log(path: Path, job_id: str) -> ReadLog:
    """What a file has of a job; nothing where there is none. A last line that is not whole does not count. Raises
    ConfigError, which names the line, for what no log of ours has."""
    events: list[Event] = []
    summary: Mapping[str, Any] | None = None
    for number, line in enumerate(_whole_lines(path), 1):
        try:
            data = json.loads(line)
            if END in data:
                summary = data[END]
                continue
            event = Event(job_id, data["seq"], data["ts"], data["channel"], data.get("step_id"), data["payload"])
            if event.seq != len(events) + 1 or summary is not None:
                raise ValueError(f"event {event.seq} does not follow event {len(events)}")
        except UNREADABLE as error:
            raise ConfigError(f"{path}:{number}: cannot be read: {type(error).__name__}: {error}") from None
        events.append(event)
    return ReadLog(tuple(events), summary)


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except FileNotFoundError:
        return


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=True, separators=(",", ":"), default=str).encode("ascii") + b"\n"
