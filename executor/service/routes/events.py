"""A job's events as they happen: server-sent events that can be resumed anywhere."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BeforeValidator, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from executor.service.auth import tenant
from executor.service.feed import LAST
from executor.service.hub import EventHub, Reader
from executor.service.problems import not_found
from executor.service.talk import is_id

router = APIRouter(tags=["jobs"])

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""No cache keeps a stream, no proxy holds it back."""

log = structlog.get_logger(__name__)


class EventStream(Response):
    """Sends a reader what it is to get, until there is no more or it no longer takes it."""

    media_type = "text/event-stream"

    def __init__(self, hub: EventHub, tenant: str, job_id: str, after: int, newest: int) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._job_id = job_id
        self._reading = partial(hub.reading, job_id, after, newest, tenant=tenant)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer, for the server; a connection that is lost ends it."""
        async with self._reading() as reader, asyncio.TaskGroup() as group:
            listener = group.create_task(reader.leave_with(receive))
            try:
                await self._send(reader, send)
            except TimeoutError:
                log.info("reader_dropped", job_id=self._job_id)  # half a message: the server closes the connection
            except OSError:
                pass  # some servers tell a lost connection so
            finally:
                listener.cancel()

    async def _send(self, reader: Reader, send: Send) -> None:
        async with reader.sending():
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(reader.chunks()) as chunks:
            async for chunk in chunks:
                async with reader.sending():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        async with reader.sending():
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _none_if_empty(value: Any) -> Any:
    """Some clients always send the header; before the first event there is nothing in it."""
    return None if value == "" else value


ITEM = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": (
            "Server-sent events. `id` is the event's seq, `event` its channel, `data` `{seq, ts, step_id?, …payload}`. "
            "Pieces of the answer come ahead of their storage as `answer` events without an id; `part` and `offset` "
            "(in Unicode characters) say where a piece belongs, live or stored. The stream of an ended job ends."
        ),
        "content": {"text/event-stream": {"itemSchema": ITEM}},
    }
}


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="A job's events, those so far and then as they come",
    response_class=Response,
    responses=STREAM,
)
async def events(
    request: Request,
    job_id: str,
    owner: Annotated[str, Depends(tenant)],
    after: Annotated[int, Query(ge=0, le=LAST, description="The seq after which to begin")] = 0,
    last_event_id: Annotated[
        Annotated[int, Field(ge=0, le=LAST)] | None,
        BeforeValidator(_none_if_empty),
        Header(alias="Last-Event-ID", description="The same, before `after`; empty: none"),
    ] = None,
) -> Response:
    """Follows a job. A connection that is lost costs nothing: come back with the last id."""
    hub: EventHub = request.app.state.hub
    newest = await hub.newest(owner, job_id) if is_id(job_id) else None
    if newest is None:
        raise not_found("job", job_id[:64])
    return EventStream(hub, owner, job_id, after if last_event_id is None else last_event_id, newest)
