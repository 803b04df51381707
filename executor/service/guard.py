"""The outermost layer: how large a body may be and of what type; nothing that goes wrong inside gets past it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request

from registry.redaction import error_fields

from .chat.errors import answer_at, error_of, is_chat
from .problems import ProblemError, problem_of

if TYPE_CHECKING:
    from executor.settings_model import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

GRACE = 1.0
"""Seconds that the last word to a client may take whose request is ended."""

LINES = ("application/jsonl", "application/x-ndjson", "application/x-jsonlines", "application/jsonlines")
"""Media types of a body of JSON lines."""
LINES_PATHS = ("/v1/batches",)
"""Where such a body may be sent; it has a size of its own."""

log = structlog.get_logger(__name__)


class Guard:
    """Wraps the application."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(receive, send)
        scope.setdefault("state", {})["exchange"] = exchange
        with exchange.held:
            try:
                exchange.room = self._room(scope)
                await self.app(scope, exchange.receive, exchange.send)
            except Exception as error:
                if exchange.over is None and isinstance(error, ClientDisconnect):
                    return
                problem = error if isinstance(error, ProblemError) else problem_of(exchange.over or error)
                if not exchange.started:
                    await answer_at(scope["path"], problem)(scope, receive, send)
                elif not exchange.ended:
                    log.error("response_broke_off", path=scope["path"], **error_fields(error))
                    raise
        if exchange.ended and exchange.over is not None:
            await exchange.say_last(_last_word(exchange.over, scope["path"]))

    def _room(self, scope: Scope) -> tuple[int, str]:
        """The bytes that the body may have, and the setting that says so. Raises 413 and 415."""
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        lines = scope["path"].rstrip("/") in LINES_PATHS
        name = "max_batch_bytes" if lines and kind in LINES else "max_request_bytes"
        room = getattr(self.settings, name), name
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > room[0]:
            raise too_large(*room)
        has_body = (length.isdigit() and int(length) > 0) or b"transfer-encoding" in headers
        if has_body and not (is_json(kind) or (lines and kind in LINES)):
            wanted = "application/json" + (f" or {LINES[0]}" if lines else "")
            raise ProblemError(
                415, "unsupported_media_type", "The body's type is not supported",
                f"the body must be {wanted}, and say so in Content-Type; it says {kind[:100] or 'nothing'}",
            )  # fmt: skip
        return room


class Exchange:
    """One request's messages: its body's bytes are counted, and it can be ended.

    `held` lets go of what is entered into it when the request is over.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.room: tuple[int, str] = (0, "")
        self.taken = 0
        self.started = self.finished = self.ended = False
        self.over: ProblemError | None = None
        self.held = ExitStack()
        self._stream = False
        self._patience: set[asyncio.Timeout] = set()

    def end(self, problem: ProblemError) -> None:
        """Nothing more is given to this client. For what handles the request it is as if the client had left; what
        has not begun to be answered is answered with the problem."""
        self.ended, self.over = True, self.over or problem
        for patience in self._patience:
            if not patience.expired():
                patience.reschedule(0.0)

    async def receive(self) -> Message:
        try:
            message = await self._unless_ended(self._receive)
        except TimeoutError:
            return {"type": "http.disconnect"}
        self.taken += len(message.get("body", b""))
        if self.taken > self.room[0]:
            self.over = too_large(*self.room)
            raise self.over
        return message

    async def send(self, message: Message) -> None:
        if self.over is not None and not self.started:
            raise self.over  # the application has made something else of it
        if not self.started:
            self._stream = dict(message.get("headers", ())).get(b"content-type", b"").startswith(b"text/event-stream")
        self.started = True
        try:
            await self._unless_ended(self._send, message)
        except TimeoutError:
            raise ConnectionAbortedError("the request was ended") from None
        self.finished = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def say_last(self, event: bytes) -> None:
        """Ends an answer that was ended in the middle: a stream of events with a last one, anything else by breaking
        off, since it is not whole."""
        if self.started and self._stream and not self.finished:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await self._send({"type": "http.response.body", "body": event, "more_body": False})

    async def _unless_ended(self, wait: Callable[..., Awaitable[T]], *given: Any) -> T:
        """Raises TimeoutError when the request is ended."""
        if self.ended:
            raise TimeoutError
        async with asyncio.timeout(None) as patience:
            self._patience.add(patience)
            try:
                return await wait(*given)
            finally:
                self._patience.discard(patience)


def exchange_of(request: Request) -> Exchange:
    """The exchange of a request that has come through the guard."""
    found: Exchange = request.state.exchange
    return found


def _last_word(problem: ProblemError, path: str) -> bytes:
    if is_chat(path):
        return b"data: " + to_json(error_of(problem)) + b"\n\n"
    return b"event: bye\ndata: " + to_json({"reason": problem.body["code"]}) + b"\n\n"


def is_json(kind: str) -> bool:
    """Whether a media type is JSON."""
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def too_large(most: int, setting: str) -> ProblemError:
    """The body is larger than the setting allows."""
    return ProblemError(
        413, "too_large", "The body is too large", f"the body may have {most:,} bytes at most (setting {setting})"
    )
