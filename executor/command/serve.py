"""`dagwright serve`: the server, its workers, and where no database is given an embedded one."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.plain_errors import plain_errors
from executor.routing_settings import check_policies, routed_models
from executor.settings import FILE_VARIABLE, PREFIX, read_environment
from executor.store.database import Database
from executor.store.migrate import migrate
from executor.telemetry_setup import exporting
from executor.workers.supervisor import Supervisor, default_workers
from registry.config import load_models
from registry.errors import ConfigError, NoModelError
from registry.models import ModelRegistry

from . import log
from .out import note, say, say_json
from .setup import all_tools, data_dir, demonstration_model, settings_of

if TYPE_CHECKING:
    from executor.http_server import HttpServer
    from executor.settings_model import Settings
    from executor.workers.worker import WorkerEnvironment

POOL = 10
"""Connections of the server."""


async def serve(options: argparse.Namespace) -> int:
    """Serves until it is told to end: SIGTERM or Ctrl-C; twice: at once."""
    settings = service_settings(options)
    from executor.http_server import listening_socket

    listener = listening_socket(settings.host, settings.port)
    with listener, exporting(settings), plain_errors():
        async with AsyncExitStack() as stack:
            dsn = await _database(stack, settings)
            database = await stack.enter_async_context(Database.open(dsn, size=POOL))
            await migrate(database)
            await _may_listen(database, settings.host)
            await _serve(stack, _Parts(options, settings, listener, dsn, database))
    return 0


def service_settings(options: argparse.Namespace) -> Settings:
    """The settings of a command that runs for long: everything is logged that they say."""
    settings = settings_of(options)
    log.configure(options.log_level or settings.log_level)
    check_policies(settings)
    return settings


@dataclass(frozen=True, slots=True)
class _Parts:
    options: argparse.Namespace
    settings: Settings
    listener: socket.socket
    dsn: str
    database: Database


async def _database(stack: AsyncExitStack, settings: Settings) -> str:
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    from executor.embedded import embedded

    return await stack.enter_async_context(embedded(data_dir(settings)))


async def _may_listen(database: Database, host: str) -> None:
    """Without API keys only the machine itself may reach the service. Raises ConfigError."""
    from executor.service.auth import is_loopback
    from executor.store.keys import KeyStore

    if not is_loopback(host) and not await KeyStore(database).configured():
        raise ConfigError(
            f"without API keys the service listens on this machine's own address only, not on {host}: "
            "`dagwright keys create NAME` makes one"
        )


async def _serve(stack: AsyncExitStack, parts: _Parts) -> None:
    from executor.demo.serve import HEADER
    from executor.http_server import HttpServer
    from executor.service.app import create_app
    from executor.service.state import Offer
    from executor.workers.worker import WorkerEnvironment

    settings = parts.settings
    models, demo = await _models(stack, parts)
    if models.names():
        routed_models(settings, models)  # what is wrong with it is told before any job is taken
    async with all_tools(settings) as (tools, _):
        offer = Offer(models, tools, None if demo is None else HEADER)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dagwright-")))  # 0700, and a short path
    live = folder / "live"
    app = create_app(settings, database=parts.database, workshop=offer, live_socket=live)
    server = HttpServer(app, started_up=lambda: _announce(parts), last_word=lambda: _last_word(app))
    told = WorkerEnvironment(str(live), demo)
    supervisor = workers_of(parts.options, settings, parts.dsn, told) if models.names() else None
    await _until_told(server, supervisor, parts.listener)


async def _models(stack: AsyncExitStack, parts: _Parts) -> tuple[ModelRegistry, str | None]:
    """The models, and the address of the demonstration model where that is the one. With none at all the service runs
    and says of each job what is missing."""
    unconfigured: list[bool] = []
    try:
        models = load_models(parts.options.models, read_environment(), demo=lambda: unconfigured.append(True))
    except NoModelError as missing:
        if not unconfigured:
            raise
        return await _demonstration(stack, parts, missing)
    stack.push_async_callback(models.aclose)
    return models, None


async def _demonstration(
    stack: AsyncExitStack, parts: _Parts, missing: NoModelError
) -> tuple[ModelRegistry, str | None]:
    """The demonstration model, run once for all workers, where it is installed or asked for; else none."""
    from executor.demo.serve import HEADER, demo_server

    try:
        await demonstration_model(parts.settings, missing, wanted=parts.options.quick_start)
    except NoModelError:
        note(f"warning: {missing}\nThe service runs, and refuses jobs until there is one.")
        return ModelRegistry(), None
    note(f"No model is configured; using the demonstration model. {HEADER}.")
    llm = await stack.enter_async_context(demo_server(data_dir(parts.settings)))
    models = ModelRegistry()
    models.register("demo", llm, roles=["general"], origin="the installed demonstration model")
    stack.push_async_callback(models.aclose)
    return models, llm.base_url


def workers_of(options: argparse.Namespace, settings: Settings, dsn: str, told: WorkerEnvironment) -> Supervisor:
    """The supervisor of this machine's workers."""
    env = {**os.environ, f"{PREFIX}LOG_LEVEL": options.log_level or settings.log_level}
    if options.settings is not None:
        env[FILE_VARIABLE] = options.settings
    count = settings.workers or default_workers()
    return Supervisor(count, told.variables(settings, env, dsn, options.models), grace=settings.drain_seconds)


async def _until_told(server: HttpServer, supervisor: Supervisor | None, listener: socket.socket) -> None:
    def stop() -> None:
        server.stop()
        if supervisor is not None:
            supervisor.stop()

    with signals(stop):
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listener]), name="server")
            if supervisor is not None:
                group.create_task(supervisor.run(), name="workers")


@contextmanager
def signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block SIGTERM and Ctrl-C call `stop`; the second one cancels the task that is in it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    told = 0

    def heard() -> None:
        nonlocal told
        told += 1
        if told == 1:
            stop()
        elif task is not None:
            task.cancel()

    both = (signal.SIGTERM, signal.SIGINT)
    for one in both:
        loop.add_signal_handler(one, heard)
    try:
        yield
    finally:
        for one in both:
            loop.remove_signal_handler(one)


def _announce(parts: _Parts) -> None:
    from executor.http_server import url_of

    url = url_of(parts.listener)
    if parts.options.json:
        say_json({"url": url, "pid": os.getpid()})
        return
    say(f"dagwright serves on {url}")


def _last_word(app: Any) -> None:
    hub = getattr(app.state, "hub", None)
    if hub is not None:
        hub.stop()
