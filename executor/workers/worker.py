"""`python -m executor.workers.worker`: one worker process, a supervisor's child, which runs jobs out of the database.

All it needs stands in variables, so that no secret is on a command line: the settings' own (DAGWRIGHT_DATABASE_URL and
so on), and those of `WorkerEnvironment`. It ends when its standard input closes, that is, with its supervisor; on
SIGTERM its jobs begin nothing new, and each is handed over when what it has under way has ended, after the setting
`drain_seconds` at the latest; and at once, with exit code 75, when it finds that another worker owns one of its jobs:
whatever it still holds must not be written. A job that may have killed its last worker gets a process like this one for
itself (`executor.workers.suspects`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID, uuid4

import structlog

from executor.log.stored import LivePieces, OwnershipLostError, nowhere
from executor.plain_errors import plain_errors
from executor.settings import PREFIX, load_settings, read_environment
from executor.store.database import Database, UnreachableError
from registry.errors import ConfigError
from registry.redaction import error_fields

from .engine import Engine
from .handover import HandOver, Outcome
from .inbox import Inbox
from .live import LiveSender
from .stored_job import run_stored_job
from .supervisor import LOST, MISCONFIGURED, UNREACHABLE
from .suspects import ALONE, OWNER, Suspects, is_suspect
from .workshop import Workshop

if TYPE_CHECKING:
    from executor.settings_model import Settings
    from registry.models import ModelRegistry

LIVE, DEMO = "DAGWRIGHT_LIVE_SOCKET", "DAGWRIGHT_DEMO_URL"
ORPHAN_GRACE = 2.0
"""Seconds that jobs have when the supervisor is gone: nobody answers for this process any more."""
ORPHANED = 70
"""Exit code of an orphan that had to be ended by force (EX_SOFTWARE)."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """What a worker is told beside the settings. `live`: the unix socket for live pieces; `demo`: the address of the
    demonstration model, where it is the one that is used; `alone`: the one job it is for, and `owner`: under which name
    it claims that."""

    live: str | None = None
    demo: str | None = None
    alone: str | None = None
    owner: str | None = None

    @classmethod
    def read(cls, env: Mapping[str, str]) -> WorkerEnvironment:
        """Out of the variables."""
        return cls(*(env.get(name) or None for name in (LIVE, DEMO, ALONE, OWNER)))

    def variables(self, settings: Settings, env: Mapping[str, str], dsn: str, models: str | None) -> dict[str, str]:
        """The variables of a worker: `env`, with what was given to the command, and the database. `models`: the
        models' file that was given."""
        given = {name: getattr(settings, name) for name, origin in settings.origins.items() if origin == "the command"}
        mine = {
            PREFIX + name.upper(): ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for name, value in given.items()
        }
        mine |= {f"{PREFIX}DATABASE_URL": dsn, LIVE: self.live or "", DEMO: self.demo or ""}
        if models is not None:
            mine[f"{PREFIX}MODELS"] = models
        return {**env, **mine}


def main() -> int:
    """Runs a worker; its exit code."""
    from executor.logging_setup import configure_logging
    from executor.telemetry_setup import exporting

    try:
        settings = load_settings()
        configure_logging(settings.log_level)
        with exporting(settings), plain_errors():
            asyncio.run(work(settings, WorkerEnvironment.read(os.environ)))
    except UnreachableError as error:
        log.error("database_unreachable", error=str(error))
        return UNREACHABLE
    except ConfigError as error:
        log.error("worker_misconfigured", **error_fields(error))
        return MISCONFIGURED
    return 0


async def work(settings: Settings, told: WorkerEnvironment) -> None:
    """Runs jobs until the process is told to end. Raises ConfigError, also where the schema is not this version's."""
    from executor.store.migrate import check

    if settings.database_url is None:
        raise ConfigError("a worker needs a database: set DAGWRIGHT_DATABASE_URL")
    async with Database.open(settings.database_url.get_secret_value()) as database:
        await check(database)
        async with Inbox.open(database) as inbox, workshop(settings, told, inbox) as shop:
            await _run(database, settings, told, shop)


async def _run(database: Database, settings: Settings, told: WorkerEnvironment, shop: Workshop) -> None:
    live = LiveSender(told.live) if told.live else None
    async with asyncio.TaskGroup() as group:
        sending = None if live is None else group.create_task(live.serve(), name="live pieces")
        if told.alone is None:
            await _run_queue(database, settings, shop, live or nowhere)
        else:
            await _run_one(database, settings, told, shop, live or nowhere)
        if sending is not None:
            sending.cancel()
    log.info("worker_ended")


async def _run_queue(database: Database, settings: Settings, shop: Workshop, live: LivePieces) -> None:
    engine = Engine(database, heartbeat=settings.heartbeat_timeout)
    suspects = Suspects(database, engine.handover)

    async def handle(job_id: str) -> Outcome:
        if await is_suspect(database, job_id):
            return await suspects.run(job_id)
        return await _run_job(database, engine.owner, job_id, shop, live, engine.handover)

    _on_signals(partial(engine.stop, settings.drain_seconds))
    _end_with_supervisor(partial(engine.stop, ORPHAN_GRACE))
    with suppress(ImportError):  # the call that needs it says so
        await asyncio.to_thread(shop.models.warm_up)  # while jobs run it would keep the loop from giving signs of life
    log.info("worker_ready", owner=str(engine.owner), slots=settings.jobs_per_worker)
    await engine.run(handle, settings.jobs_per_worker)


async def _run_one(
    database: Database, settings: Settings, told: WorkerEnvironment, shop: Workshop, live: LivePieces
) -> None:
    assert told.alone is not None
    handover, owner = HandOver(), uuid4() if told.owner is None else UUID(told.owner)
    _on_signals(partial(handover.begin, settings.drain_seconds))
    _end_with_supervisor(partial(handover.begin, ORPHAN_GRACE))
    outcome = await _run_job(database, owner, told.alone, shop, live, handover)
    log.info("job_left", job_id=told.alone, outcome=outcome)


async def _run_job(
    database: Database, owner: UUID, job_id: str, shop: Workshop, live: LivePieces, handover: HandOver
) -> Outcome:
    try:
        return await run_stored_job(database, owner, job_id, shop, live=live, handover=handover)
    except OwnershipLostError:
        leave(job_id)


def _on_signals(stop: Callable[[], Any]) -> None:
    loop = asyncio.get_running_loop()
    for sent in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sent, stop)


def leave(job_id: str) -> NoReturn:
    """Ends the process at once: another worker owns a job of ours, so we were away for long, and whatever else we
    hold may be as stale. Nothing is flushed, nothing is written."""
    log.warning("ownership_lost", job_id=job_id)
    os._exit(LOST)


@asynccontextmanager
async def workshop(settings: Settings, told: WorkerEnvironment, inbox: Inbox) -> AsyncIterator[Workshop]:
    """What jobs are run with: the models and tools of this machine, closed afterwards. Raises ConfigError."""
    from executor.command.setup import all_tools, with_retries
    from registry.config import load_models

    if told.demo is None:
        models, demo = load_models(None, read_environment()), False
    else:
        models, demo = _demonstration(told.demo), True
    with_retries(models, settings)
    try:
        async with all_tools(settings, warn=lambda text: log.warning("tools_incomplete", reason=text)) as (tools, _):
            shop = Workshop(models, tools, settings, inbox=inbox)
            yield _adapted(shop) if demo else shop
    finally:
        await models.aclose()


def _demonstration(url: str) -> ModelRegistry:
    from executor.demo.serve import model
    from registry.models import ModelRegistry

    models = ModelRegistry()
    models.register("demo", model(url), roles=["general"], origin="the installed demonstration model")
    return models


def _adapted(shop: Workshop) -> Workshop:
    """With what suits a small, slow model, as the command has it."""
    from executor.demo.profile import adapted, profile
    from executor.demo.serve import HEADER
    from executor.job_options import JobOptions

    def options_of(settings: Settings) -> JobOptions:
        return adapted(profile(), JobOptions.from_settings(settings), shop.tools, said=settings.origins).options

    tools = adapted(profile(), options_of(shop.settings), shop.tools).tools
    return replace(shop, tools=tools, options_of=options_of, notice=HEADER)


def _end_with_supervisor(stop: Callable[[], Any]) -> None:
    """Standard input is the supervisor's: when it closes, the supervisor is gone, however it ended.

    A thread reads it, so that it works also where a job keeps the loop busy.
    """

    loop = asyncio.get_running_loop()

    def watch() -> None:
        while os.read(0, 1024):
            pass
        try:
            loop.call_soon_threadsafe(stop)
        except RuntimeError:  # the loop has ended
            return
        time.sleep(2 * ORPHAN_GRACE)
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="supervisor's end", daemon=True).start()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # taking the interpreter apart costs a second of a stop that has a bound
