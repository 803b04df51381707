"""The service on a real port with a real database, as its users meet it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2
import uvicorn
from fastapi import FastAPI

from executor import create_app
from executor.service.state import Offer
from executor.settings_model import Settings
from executor.store.database import Database
from executor.store.jobs import JobStore
from registry.models import ModelRegistry
from registry.testing import ScriptedLLM
from registry.tools import ToolRegistry, tool


@tool(read_only=True)
def lookup(word: str) -> str:
    """Looks up a word."""
    return word.upper()


@dataclass
class Service:
    """A running service: an HTTP client to it, its database, and where it listens."""

    http: httpx2.AsyncClient
    app: FastAPI
    database: Database
    url: str

    @property
    def jobs(self) -> JobStore:
        return JobStore(self.database)

    def client(self, key: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """A client of its own, with a key."""
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=30)


def offer() -> Offer:
    """Two models and a tool that jobs may name."""
    models = ModelRegistry()
    models.register("small", ScriptedLLM([]), roles=("general", "fast"))
    models.register("large", ScriptedLLM([]), roles=("smart",))
    return Offer(models, ToolRegistry([lookup]))


@asynccontextmanager
async def running(
    dsn: str, workshop: Any = None, *, size: int = 5, port: int = 0, **settings: Any
) -> AsyncIterator[Service]:
    """The service on a port of this machine, a free one by default."""
    async with Database.open(dsn, size=size) as database:
        app = create_app(
            Settings.of(settings, {}), database=database, workshop=offer() if workshop is None else workshop
        )
        async with listening(app, port) as url, httpx2.AsyncClient(base_url=url, timeout=30) as http:
            yield Service(http, app, database, url)


async def written(
    database: Database,
    job: str,
    events: list[dict[str, Any]],
    *,
    at_once: bool = False,
    status: str | None = None,
    release: bool = True,
) -> AsyncIterator[int]:
    """Writes events as a worker that owns the job would, one after the other or all at once; yields how many there are.
    `release`: nobody owns the job afterwards."""
    owner = uuid4()
    assert await database.row("log.claim", job, owner) is not None
    for at, part in enumerate([events] if at_once else [[event] for event in events]):
        row = await database.row(
            "log.append", job, owner, at, status, None,
            [(event["channel"], 1.0 * at, event["step_id"], True, event["payload"]) for event in part], None, False,
        )  # fmt: skip
        assert row is not None
        yield at + len(part)
    if release:
        async with database.connection() as connection:
            await connection.execute("update dw_jobs set owner = null where id = $1", job)


@asynccontextmanager
async def listening(app: FastAPI, port: int = 0) -> AsyncIterator[str]:
    """The address of an application that uvicorn serves meanwhile."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", log_config=None, timeout_graceful_shutdown=5))
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve([listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
