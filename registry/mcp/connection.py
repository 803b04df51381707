"""One MCP server's connection: started, used by many tasks, found dead, started again, ended.

The SDK's client must be entered and left by one task, so each connection has an owner task (`serve`). Callers wait for
the client it holds. A server that is found dead is left behind; the next call asks the owner for a new start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import structlog

from registry.errors import ConfigError
from registry.redaction import know_environment, know_secret, redact
from registry.text import clean, cut_end
from registry.threads import shared_pool

from .config import McpServer
from .results import McpError

log = structlog.get_logger(__name__)

START_LIMIT = 20.0
"""Seconds a server may take to start and to say what it is."""

STOP_LIMIT = 10.0
"""Seconds it may take to end; the SDK kills its process after about 5."""

MAX_FAILURES = 3
"""Starts and deaths in a row, without an answer between them, after which a server is not started again."""

MAX_TOOLS = 500
MAX_PAGES = 50
WORDS = 400
"""Characters of a dead server's last words on its standard error that are told."""

ENDED_EARLY = "it was ended before it had started"


class _Life:
    """A server from its start to its end. `answers` counts what it answered; `error` says why it never started."""

    def __init__(self) -> None:
        self.settled, self.ended = asyncio.Event(), asyncio.Event()
        self.client: Any = None
        self.error = ""
        self.answers = 0
        self.limit: asyncio.Timeout | None = None

    @property
    def over(self) -> bool:
        return self.ended.is_set()

    @property
    def started(self) -> bool:
        """Whether its owner has taken it on."""
        return self.limit is not None

    def end(self) -> None:
        """Nobody is to use it any more; a start that is under way is broken off."""
        self.ended.set()
        if self.limit is not None and not self.settled.is_set() and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())

    def settle(self, client: Any, error: str = "") -> None:
        if not self.settled.is_set():
            self.client, self.error = client, error
            self.settled.set()
        if error:
            self.ended.set()


class Connection:
    """A server's connection. `serve` must run in a task of its own until `close` was called and it returns."""

    def __init__(self, server: McpServer, env: Mapping[str, str]) -> None:
        self.server = server
        self._env = env
        self._life: _Life | None = None
        self._wanted = asyncio.Event()
        self._closing = False
        self._failures = 0
        self._words: deque[str] = deque()

    async def serve(self) -> None:
        """Starts the server whenever a call needs it, and ends it. Raises nothing."""
        try:
            while not self._closing:
                await self._wanted.wait()
                self._wanted.clear()
                if self._life is not None and not self._life.over:
                    await self._hold(self._life)
        finally:
            self.close()

    def close(self) -> None:
        """The server is to be ended, and not to be started again."""
        self._closing = True
        if self._life is not None:
            self._life.end()
            if not self._life.started:
                self._life.settle(None, ENDED_EARLY)
        self._wanted.set()

    async def tools(self) -> list[Any]:
        """All tools of the server, page by page. Raises McpError."""

        async def listed(client: Any) -> list[Any]:
            found: list[Any] = []
            cursor = None
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if cursor is None or len(found) >= MAX_TOOLS:
                    break
            return found[:MAX_TOOLS]

        return list(await self._ask("the list of its tools", listed))

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """The server's CallToolResult. Raises McpError, whose text says what became of the server."""
        return await self._ask(f"the call of {name}", lambda client: client.call_tool(name, arguments))

    async def _ask(self, what: str, ask: Any) -> Any:
        from mcp import MCPError

        life = await self._alive()
        before = life.answers
        try:
            async with asyncio.timeout(self.server.timeout):
                answer = await ask(life.client)
        except TimeoutError:
            told = f"{what} took more than {self.server.timeout:g} s"
            if life.answers == before:  # not a word in all that time: it hangs
                raise self._dead(life, f"{told}, and it answered nothing else meanwhile") from None
            raise McpError(self._told(f"{told} and was given up")) from None
        except MCPError as error:
            if _is_closed(error):
                raise self._dead(life, f"it ended before it had answered {what}{self._last_words()}") from None
            self._answered(life)
            raise McpError(self._told(f"{what} was refused: {cut_end(clean(error.message), 2_000)}")) from None
        except Exception as error:  # noqa: BLE001 - the SDK and its transports raise what they like; the text says it
            if life.over:
                raise McpError(self._told(f"it was ended before it had answered {what}")) from None
            if isinstance(error, ValueError | RuntimeError):  # an answer that is none by its own schema or by MCP's
                self._answered(life)
                raise McpError(self._told(f"{what} got an answer that is not valid: {_reason(error)}")) from None
            raise self._dead(life, f"{what} failed: {_reason(error)}") from None
        self._answered(life)
        return answer

    def _answered(self, life: _Life) -> None:
        life.answers += 1
        self._failures = 0

    def _dead(self, life: _Life, why: str) -> McpError:
        if not life.over:
            life.end()
            self._failures += 1
        return McpError(self._told(f"{why}. The next call tries to start it again" if self._may_start() else why))

    def _may_start(self) -> bool:
        return self._failures < MAX_FAILURES and not self._closing

    async def _alive(self) -> _Life:
        """The server as it runs, started first where it doesn't: one start for all who wait. Raises McpError."""
        if self._life is None or self._life.over:
            if not self._may_start():
                why = "it is ended" if self._closing else f"it failed {self._failures} times in a row: given up"
                raise McpError(self._told(why))
            self._life = _Life()
            self._wanted.set()
        life = self._life
        await life.settled.wait()
        if life.error:
            raise McpError(self._told(life.error))
        return life

    async def _hold(self, life: _Life) -> None:
        """Starts the server and holds its connection until its life is over or the connection breaks."""
        self._words.clear()
        try:
            async with asyncio.timeout(START_LIMIT) as life.limit, AsyncExitStack() as stack:
                client = await self._entered(stack)
                life.limit.reschedule(None)
                life.settle(client)
                try:
                    await life.ended.wait()
                finally:
                    life.limit.reschedule(asyncio.get_running_loop().time() + STOP_LIMIT)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever a foreign server makes of it
            if life.settled.is_set():
                log.debug("mcp_server_end", server=self.server.name, error=redact(_reason(error)))
            else:
                self._failures += 1
                life.settle(None, self._start_error(error, life))
        finally:
            life.settle(None, ENDED_EARLY)
            life.ended.set()

    def _start_error(self, error: BaseException, life: _Life) -> str:
        if isinstance(error, TimeoutError):
            if life.over:
                return ENDED_EARLY
            return f"it gave no MCP answer within {START_LIMIT:g} s{self._last_words()}"
        if isinstance(error, ConfigError):
            return str(error)
        reason = _reason(error)
        return f"it can't be started: {reason}{self._last_words()}"

    async def _entered(self, stack: AsyncExitStack) -> Any:
        """A client that has shaken hands with the server, to be left by closing the stack."""
        logging.getLogger("mcp").addHandler(_SILENT)  # else its complaints of bad lines go to standard error
        await shared_pool().run(_import_client)
        from mcp import Client

        if self.server.command is None:
            transport: Any = await self._http(stack)
        else:
            transport = await self._process(stack)
        client = Client(transport, read_timeout_seconds=max(START_LIMIT, self.server.timeout), cache=None)
        return await stack.enter_async_context(client)

    async def _http(self, stack: AsyncExitStack) -> Any:
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        headers = self.server.header_values(self._env)
        for value in headers.values():
            know_secret(value)
        http_client = await stack.enter_async_context(create_mcp_http_client(headers=headers))
        assert self.server.url is not None
        return streamable_http_client(self.server.url, http_client=http_client)

    async def _process(self, stack: AsyncExitStack) -> Any:
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        environment = self.server.environment(self._env)
        know_environment(environment)
        errors = await stack.enter_async_context(_standard_error(self._words))
        assert self.server.command is not None
        parameters = StdioServerParameters(
            command=self.server.command, args=list(self.server.args), env=environment, cwd=self.server.cwd,
            encoding_error_handler="replace",
        )  # fmt: skip
        return stdio_client(parameters, errlog=errors)

    def _last_words(self) -> str:
        words = " ".join(clean("".join(self._words)).split())
        return f". Its last words: {words[-WORDS:]}" if words else ""

    def _told(self, text: str) -> str:
        return redact(f"MCP server {self.server.name!r}: {text}")


_SILENT = logging.NullHandler()


def _import_client() -> None:
    """The first use imports a good deal, which is not to hold up the loop."""
    import mcp.client.streamable_http  # noqa: F401


@asynccontextmanager
async def _standard_error(words: deque[str]) -> AsyncIterator[Any]:
    """A file for a process's standard error, the end of which is kept in `words` and goes nowhere else."""
    if sys.platform == "win32":  # its event loop reads no such pipes
        yield subprocess.DEVNULL
        return
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as errors:
        source = os.fdopen(reading, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: _Tail(words), source)
        try:
            yield errors
        finally:
            transport.close()


class _Tail(asyncio.Protocol):
    """Keeps the end of what comes."""

    KEPT = 20

    def __init__(self, words: deque[str]) -> None:
        self._words = words

    def data_received(self, data: bytes) -> None:
        self._words.append(data[-2 * WORDS :].decode("utf-8", "replace"))
        while len(self._words) > self.KEPT:
            self._words.popleft()


def _is_closed(error: Any) -> bool:
    """Whether the SDK itself says that the connection is closed; a server may use the same code for its own errors."""
    from mcp_types import CONNECTION_CLOSED

    return bool(error.code == CONNECTION_CLOSED and error.message == "Connection closed")


def _reason(error: BaseException) -> str:
    """The first thing that went wrong, in a line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(clean(str(error)).split())
    return cut_end(f"{type(error).__name__}: {text}" if text else type(error).__name__, 500)
