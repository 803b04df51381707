"""Servers spoken to over MCP, as a source of tools.

`async with mcp_tools(servers) as found:` starts them all, `found.tools` are their tools; nothing of them is left when
the block is left, however that happens. What a server says of its tools and in its results is a stranger's word.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from registry.errors import ConfigError, UsageError
from registry.result_text import Artifact
from registry.text import clean
from registry.tools import Tool

from .config import McpServer, missing_names, servers_from_toml
from .connection import START_LIMIT, STOP_LIMIT, Connection
from .results import McpError, result_of
from .schemas import safe_schema

__all__ = ["McpError", "McpServer", "McpTools", "mcp_tools", "servers_from_toml"]

log = structlog.get_logger(__name__)

MAX_NAME = 64
"""Characters of a tool's name that every provider takes."""

_ODD = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class McpTools:
    """The servers' tools; `hints` are what the servers claim of them, by name, which nothing relies on."""

    tools: tuple[Tool, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def mcp_tools(
    servers: Iterable[McpServer],
    *,
    env: Mapping[str, str] | None = None,
    taken: Iterable[str] = (),
    warn: Callable[[str], None] | None = None,
) -> AsyncIterator[McpTools]:
    """The tools of these servers, which run while the block does.

    `env` holds the variables the servers' tables name (the process's own, unless given). `taken` are names that tools
    must not have: such a tool gets its server's name in front. `warn` is told of each server that can't be reached,
    whose tools are missing then. Raises ConfigError where such a server is required.
    """
    warn = warn or (lambda text: log.warning("mcp", problem=text))
    connections = [Connection(server, os.environ if env is None else env) for server in servers]
    # Not a TaskGroup: it would wrap the caller's own exceptions. `_all_closed` is what ends these tasks.
    owners = [asyncio.create_task(connection.serve()) for connection in connections]
    try:
        yield await _collected(connections, frozenset(taken), warn)
    finally:
        await _all_closed(connections, owners)


async def _all_closed(connections: Sequence[Connection], owners: Sequence[asyncio.Task[None]]) -> None:
    """Ends all servers. A cancellation meanwhile waits for that, which is bounded: else a process could be left."""
    for connection in connections:
        connection.close()
    cancelled: asyncio.CancelledError | None = None
    while pending := [owner for owner in owners if not owner.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _collected(connections: Sequence[Connection], taken: frozenset[str], warn: Callable[[str], None]) -> McpTools:
    async with asyncio.TaskGroup() as group:
        listings = [group.create_task(_listed(connection)) for connection in connections]
    offers: list[tuple[Connection, Any]] = []
    for connection, listing in zip(connections, listings, strict=True):
        found = listing.result()
        if isinstance(found, McpError):
            if connection.server.required:
                raise ConfigError(f"{found} ([mcp.{connection.server.name}] is required)")
            warn(f"{found}. Its tools are missing")
            continue
        offers += [(connection, offer) for offer in _wanted(connection.server, found, warn)]
    return _named(offers, taken, warn)


async def _listed(connection: Connection) -> list[Any] | McpError:
    try:
        return await connection.tools()
    except McpError as error:
        return error


def _wanted(server: McpServer, found: Sequence[Any], warn: Callable[[str], None]) -> list[Any]:
    """The tools that the configuration takes; names in it that the server doesn't know are pointed out."""
    there = [offer.name for offer in found]
    for key, names in (
        ("tools", server.tools or ()),
        ("read_only", server.read_only),
        ("idempotent", server.idempotent),
    ):
        if missing := missing_names(names, there):
            warn(f"[mcp.{server.name}] {key}: the server has no tool {', '.join(missing)}")
    return [offer for offer in found if server.tools is None or offer.name in server.tools]


def _named(offers: Sequence[tuple[Connection, Any]], taken: frozenset[str], warn: Callable[[str], None]) -> McpTools:
    """Tools with names that are valid for every provider and given once."""
    often = Counter(name for _, name in {(connection.server.name, _valid(offer.name)) for connection, offer in offers})
    tools: dict[str, Tool] = {}
    hints: dict[str, str] = {}
    for connection, offer in offers:
        server, name = connection.server, _valid(offer.name)
        if name in taken or often[name] > 1 or not name:
            name = _valid(f"{server.name}_{offer.name}")
        if name in taken or name in tools:
            warn(f"MCP server {server.name!r}: there is a tool {name!r} already; {offer.name!r} is left out")
            continue
        try:
            tools[name] = _tool(connection, offer, name)
        except UsageError as error:
            warn(f"MCP server {server.name!r}: {error}; it is left out")
            continue
        if hint := _hint(offer.annotations):
            hints[name] = hint
    return McpTools(tuple(tools.values()), hints)


def _valid(name: str) -> str:
    return _ODD.sub("_", clean(name)).strip("_")[:MAX_NAME]


def _tool(connection: Connection, offer: Any, name: str) -> Tool:
    server = connection.server

    async def run(**arguments: Any) -> str | Artifact:
        return result_of(await connection.call(offer.name, arguments))

    def vouched(names: Sequence[str]) -> bool:
        return "*" in names or offer.name in names

    try:
        parameters = safe_schema(offer.input_schema)
    except ValueError as error:
        raise UsageError(f"the tool {offer.name!r} can't be used: {error}") from None
    described = clean(offer.description or offer.title or "").strip()
    return Tool(
        name,
        described or f"The tool {offer.name} of the MCP server {server.name}, which says no more of it.",
        parameters,
        run,
        read_only=vouched(server.read_only),
        idempotent=vouched(server.idempotent),
        network=True,
        origin=f"mcp:{server.name}",
        timeout=START_LIMIT + STOP_LIMIT + server.timeout + 5,
    )


def _hint(annotations: Any) -> str:
    """What the server claims of a tool, in words."""
    if annotations is None:
        return ""
    claims = {
        "read-only": annotations.read_only_hint,
        "idempotent": annotations.idempotent_hint,
        "destructive": annotations.destructive_hint,
    }
    return ", ".join(claim for claim, made in claims.items() if made)
