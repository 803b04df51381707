"""The HTTP server of the service: uvicorn, whose stop is ours to tell and has a bound."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from registry.errors import ConfigError

ENOUGH = 5.0
"""Seconds that requests under way have at the server's stop."""


class ListenError(ConfigError):
    """The service can't listen there."""

    code = "listen"


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on a host's address. Raises ListenError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"the service can't listen on {host}, port {port}: {error}") from None


def url_of(listener: socket.socket) -> str:
    """The address to call, as on the machine itself."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """Serves an ASGI application on a socket. Signals are not its business.

    `started_up` is called when it answers; `last_word` at its stop, before it waits for the requests under way: open
    streams are to end then.
    """

    def __init__(self, app: Any, *, started_up: Callable[[], None], last_word: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="on", server_header=False, proxy_headers=False,
                timeout_graceful_shutdown=int(ENOUGH),
            )
        )  # fmt: skip
        self._started_up, self._last_word = started_up, last_word

    def stop(self) -> None:
        """`serve` returns soon."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the command's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises ListenError where the application does not start; why was logged."""
        try:
            await super().startup(sockets)
        except SystemExit:
            raise ListenError("the service did not start: the log says why") from None
        self._started_up()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends open streams, then waits for what is under way."""
        self._last_word()
        await super().shutdown(sockets)
