"""One SDK client per event loop: connections belong to the loop they were opened on."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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


class LoopClients:
    """Makes a client on a loop's first call, and closes it when that loop shuts down.

    The closing hangs on an asynchronous generator, which event loops finish before they close
    (`loop.shutdown_asyncgens`, called by `asyncio.run` and `asyncio.Runner`).
    """

    def __init__(self, make: Callable[[], SDKClient]) -> None:
        self._make = make
        self._open: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[SDKClient, AsyncGenerator[None, None]]
        ] = weakref.WeakKeyDictionary()

    def get(self) -> SDKClient:
        """The running loop's client."""
        loop = asyncio.get_running_loop()
        entry = self._open.get(loop)
        if entry is not None:
            return entry[0]
        for other in [known for known in self._open if known.is_closed()]:
            del self._open[other]
        client = self._make()
        closer = self._closer(self._open, loop, client)
        with suppress(StopIteration):  # runs to the yield, which registers the generator with the loop
            closer.asend(None).__await__().__next__()
        self._open[loop] = (client, closer)
        return client

    @staticmethod
    async def _closer(
        opened: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any],
        loop: asyncio.AbstractEventLoop,
        client: SDKClient,
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            opened.pop(loop, None)
            await client.sdk.close()

    async def aclose(self) -> None:
        """Closes the running loop's client; the next call makes a new one."""
        entry = self._open.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[1].aclose()
