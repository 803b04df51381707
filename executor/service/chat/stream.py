"""A job followed for the one client who asked for it: while the client is there, and never silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import from_json, to_json
from starlette.responses import Response

from executor.json_lines import one_line
from executor.service.problems import ProblemError
from executor.store.database import outages
from executor.store.fold import end_cancelled
from registry.messages import Event

from .answer import ChatAnswer, Piece, Shape, failure
from .errors import NO_RETRY, error_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from executor.service.hub import EventHub, Reader
    from executor.store.jobs import JobStore

T = TypeVar("T")

SILENCE = 10.0
"""Seconds without a chunk after which an empty one is sent: clients and proxies take a silent server for a dead one."""
AHEAD = 8
"""Lots of events that are read before they are sent."""
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""A stream goes through proxies as it is written."""
LAST = b"data: [DONE]\n\n"
TRIES = (0.1, 0.5, 2.0, 5.0)
"""Seconds before the cancellation of a job that nobody waits for is tried again where the database did not take it."""

Heard = Callable[[list[Piece]], Awaitable[None]]
"""Gets what comes at once, together; an empty list after `SILENCE`."""


class ClientLeftError(ProblemError):
    """The request's client is gone: nobody reads the answer."""

    def __init__(self) -> None:
        super().__init__(499, "client_left", "The client is gone")


class JobFollower:
    """Follows one job, which was made for one request, and cancels it when the request's client leaves."""

    def __init__(self, hub: EventHub, jobs: JobStore, tenant: str, shape: Shape) -> None:
        self.hub, self.jobs, self.tenant, self.job_id = hub, jobs, tenant, shape.job_id
        self.answer = ChatAnswer(shape.job_id, shape.heading)

    async def follow(self, heard: Heard) -> Mapping[str, Any]:
        """Tells progress and answer as they come, and returns how the job ended. Raises ProblemError for a job that
        came to no answer, and where the server stops before."""
        lots: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)
        async with self.hub.reading(self.job_id, 0, 0) as reader, asyncio.TaskGroup() as group:
            task = group.create_task(_read(reader, lots))
            try:
                await self._hear(lots, heard)
            finally:
                task.cancel()
        return await self._end(heard)

    async def cancel(self) -> None:
        """Nobody waits for the job any more."""
        for wait in (*TRIES, None):
            try:
                row = await self.jobs.cancel(self.tenant, self.job_id)
                if row is not None and row["owner"] is None:
                    await end_cancelled(self.jobs.database, self.job_id)
                return
            except outages():
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    async def _hear(self, lots: asyncio.Queue[bytes | None], heard: Heard) -> None:
        while self.answer.done is None:
            pieces: list[Piece] = []
            try:
                async with asyncio.timeout(SILENCE):
                    while not pieces and self.answer.done is None:
                        lot = await lots.get()
                        if lot is None:
                            return
                        pieces = list(self._pieces(lot))
            except TimeoutError:
                pass
            await heard(pieces)

    def _pieces(self, lot: bytes) -> Iterator[Piece]:
        for seq, channel, data in events_of(lot):
            if seq is not None:
                step_id = data.pop("step_id", None)
                yield from self.answer.event(Event(self.job_id, seq, data.pop("ts"), channel, step_id, data))
            elif channel == "answer":
                yield from self.answer.live(data["part"], data["offset"], data["content"])

    async def _end(self, heard: Heard) -> Mapping[str, Any]:
        if self.answer.done is None:  # the job was ended without a last event, or the server stops
            row = await self.jobs.get(self.tenant, self.job_id)
            if row is None or row["summary"] is None:
                told = f"the server stops; the work goes on: GET /v1/jobs/{self.job_id} has the answer later"
                raise ProblemError(503, "server_stopping", "The server stops", told, headers=NO_RETRY)
            await heard(list(self.answer.end(row["summary"])))
        assert self.answer.done is not None
        if problem := failure(self.job_id, self.answer.done):
            raise problem
        return self.answer.done


async def _read(reader: Reader, lots: asyncio.Queue[bytes | None]) -> None:
    """The job's events as any reader of its history gets them, lot by lot, None after the last one."""
    async with aclosing(reader.chunks()) as chunks:
        async for lot in chunks:
            await lots.put(lot)
    await lots.put(None)


def events_of(lot: bytes) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """Seq (None: not stored yet), channel and data of the events in a piece of a job's event stream."""
    for block in lot.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line and line[:1] != b":")
        if b"data" in fields and b"event" in fields:
            seq = int(fields[b"id"]) if b"id" in fields else None
            data = from_json(fields[b"data"])
            data.pop("seq", None)
            yield seq, fields[b"event"].decode(), data


async def while_there(receive: Receive, work: Callable[[], Awaitable[T]], left: Callable[[], Awaitable[None]]) -> T:
    """The work's result. When the request's client leaves before, the work is cancelled, then `left` is called, and
    ClientLeftError is raised. Where the server itself ends the request, `left` is not called."""

    async def working() -> T:
        return await work()

    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(working())
            gone = group.create_task(_until_gone(receive))
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            there = task.done()
            (gone if there else task).cancel()
    except BaseExceptionGroup as failed:
        raise _first(failed) from None
    if there:
        return task.result()
    await left()
    raise ClientLeftError


def _first(failed: BaseException) -> BaseException:
    return _first(failed.exceptions[0]) if isinstance(failed, BaseExceptionGroup) else failed


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ChatStream(Response):
    """A completion as server-sent events: progress, answer, the end or an error, and [DONE] after an end."""

    media_type = "text/event-stream"

    def __init__(self, follower: JobFollower, shape: Shape, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**HEADERS, **headers})
        self.follower, self.shape = follower, shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it; the job is cancelled when the client leaves before its end."""

        async def write() -> None:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._write(send)
            await send({"type": "http.response.body", "body": b""})

        try:
            await while_there(receive, write, self.follower.cancel)
        except ClientLeftError:
            return

    async def _write(self, send: Send) -> None:
        shape = self.shape

        async def say(*events: Any, last: bytes = b"") -> None:
            body = b"".join(sse(event) for event in events) + last
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async def heard(pieces: list[Piece]) -> None:
            await say(*(shape.chunk(delta) for delta in self._deltas(pieces)))

        await say(shape.chunk({"role": "assistant", "content": ""}))
        try:
            done = await self.follower.follow(heard)
        except ProblemError as problem:
            await say(error_of(problem))
        else:
            await say(*shape.last_chunks(done), last=LAST)

    def _deltas(self, pieces: list[Piece]) -> Iterator[dict[str, str]]:
        """Pieces as deltas. Where there are none one says nothing, in the field in which the client reads just now."""
        if not pieces:
            yield {"content": ""} if self.follower.answer.length else {"reasoning_content": ""}
        for piece in pieces:
            yield {"content": piece.content} if piece.content else {"reasoning_content": piece.reasoning}


def sse(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + one_line(to_json(data, inf_nan_mode="null")) + b"\n\n"
