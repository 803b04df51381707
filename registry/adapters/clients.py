"""One SDK client per event loop: connections belong to the loop they were opened on."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

MAX_CONNECTIONS = 4096
"""Connections per client: far above any sensible number of calls in flight, so that gates decide, not the pool."""
KEEPALIVE_SECONDS = 15.0
"""How long an idle connection is kept; longer ones tend to have been closed by the server when they are needed."""
CONNECT_SECONDS = 10.0
"""Limit for opening a connection; waiting for a free one has no limit of its own."""


@dataclass(frozen=True, slots=True)
class SDKClient:
    """An SDK's asynchronous client, the type that asks it for raw responses, what its calls may raise, and the key."""

    sdk: Any
    response: type
    failures: tuple[type[Exception], ...]
    key: str = ""


_Closer: TypeAlias = AsyncGenerator[None, None]
_closers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, set[_Closer]] = weakref.WeakKeyDictionary()
_closing: set[asyncio.Task[None]] = set()


class LoopClients:
    """Makes a client on a loop's first call, and closes it when that loop shuts down or this object goes.

    The closing hangs on an asynchronous generator, which event loops finish before they close
    (`loop.shutdown_asyncgens`, called by `asyncio.run` and `asyncio.Runner`).
    """

    def __init__(self, make: Callable[[], SDKClient]) -> None:
        self._make = make
        self._open: dict[asyncio.AbstractEventLoop, tuple[SDKClient, _Closer]] = {}

    def get(self) -> SDKClient:
        """The running loop's client."""
        loop = asyncio.get_running_loop()
        entry = self._open.get(loop)
        if entry is not None:
            return entry[0]
        for other in [known for known in self._open if known.is_closed()]:
            del self._open[other]
        client = self._make()
        closer = _until_closed(client, loop, self._open)
        with suppress(StopIteration):  # runs to the yield, which registers the generator with the loop
            closer.asend(None).__await__().__next__()
        self._open[loop] = (client, closer)
        _closers.setdefault(loop, set()).add(closer)
        weakref.finalize(self, _let_go, loop, closer).atexit = False
        return client

    async def aclose(self) -> None:
        """Closes the running loop's client; the next call makes a new one."""
        entry = self._open.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await _close(entry[1], asyncio.get_running_loop())


async def _until_closed(client: SDKClient, loop: asyncio.AbstractEventLoop, opened: dict[Any, Any]) -> _Closer:
    try:
        yield
    finally:
        entry = opened.get(loop)
        if entry is not None and entry[0] is client:
            del opened[loop]
        await client.sdk.close()


async def _close(closer: _Closer, loop: asyncio.AbstractEventLoop) -> None:
    await closer.aclose()
    _closers.get(loop, set()).discard(closer)


def _let_go(loop: asyncio.AbstractEventLoop, closer: _Closer) -> None:
    """Nobody can use the client any more. Called by the collector, in any thread."""
    with suppress(RuntimeError):  # the loop is closed, and so is the client
        loop.call_soon_threadsafe(_start_closing, loop, closer)


def _start_closing(loop: asyncio.AbstractEventLoop, closer: _Closer) -> None:
    task = loop.create_task(_close(closer, loop))  # cancelled before it began, the loop's own end closes the client
    _closing.add(task)
    task.add_done_callback(_closing.discard)
