"""The outermost layer: how large a body may be and of what type; nothing that goes wrong inside gets past it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import structlog

from registry.redaction import error_fields

from .chat.errors import PATHS as CHAT_PATHS
from .chat.errors import response_of as chat_response
from .problems import ProblemError, problem_of

if TYPE_CHECKING:
    from executor.settings_model import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

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
        exchange = _Exchange(receive, send)
        try:
            exchange.room = self._room(scope)
            await self.app(scope, exchange.receive, exchange.send)
        except Exception as error:
            problem = error if isinstance(error, ProblemError) else problem_of(exchange.over or error)
            if exchange.started:
                log.error("response_broke_off", path=scope["path"], **error_fields(error))
                raise
            response = chat_response(problem) if scope["path"].startswith(CHAT_PATHS) else problem.response()
            await response(scope, receive, send)

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


class _Exchange:
    """One request's messages, counted."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.room: tuple[int, str] = (0, "")
        self.taken = 0
        self.started = False
        self.over: ProblemError | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        self.taken += len(message.get("body", b""))
        if self.taken > self.room[0]:
            self.over = too_large(*self.room)
            raise self.over
        return message

    async def send(self, message: Message) -> None:
        if self.over is not None and not self.started:
            raise self.over  # the application has made something else of it
        self.started = True
        await self._send(message)


def is_json(kind: str) -> bool:
    """Whether a media type is JSON."""
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def too_large(most: int, setting: str) -> ProblemError:
    """The body is larger than the setting allows."""
    return ProblemError(
        413, "too_large", "The body is too large", f"the body may have {most:,} bytes at most (setting {setting})"
    )
