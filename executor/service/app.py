"""`create_app`: the service as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from executor.store.database import Database, DatabaseError
from executor.store.jobs import JobStore
from executor.store.keys import CHANNEL, KeyStore
from executor.store.migrate import check
from registry.errors import ConfigError

from . import problems
from .chat.errors import answer_at
from .experiment_reports import Reports
from .figures import Counted, HttpFigures
from .guard import Guard
from .keyring import Keyring, Watch
from .limits import Requests, Starts
from .parameters import known_parameters
from .routes import (
    batches,
    chat,
    docs,
    events,
    experiments,
    health,
    jobs,
    metrics,
    page,
    plans,
    results,
    session,
    tools,
    webhooks,
)  # fmt: skip
from .state import Offer
from .upkeep import Upkeep

if TYPE_CHECKING:
    from executor.settings_model import Settings

    from .webhooks import Secrets

ROUTES = (
    health,
    session,
    jobs,
    results,
    plans,
    tools,
    events,
    batches,
    experiments,
    chat,
    webhooks,
    metrics,
    docs,
    page,
)
"""The modules of routes, in the order in which they are tried."""
STRICT = (session, jobs, results, plans, tools, events, batches, experiments, webhooks)
"""Those whose routes refuse parameters that they don't have. OpenAI's clients, scrapers and probes may send more."""


def create_app(
    settings: Settings | None = None,
    *,
    database: Database | None = None,
    workshop: Any = None,
    live_socket: str | Path | None = None,
) -> FastAPI:
    """The service as an ASGI application.

    `settings` None: they are loaded as the command does. `database` None: the one of `settings.database_url`, opened
    while the application runs. `workshop`: what a worker has (`models` and `tools`), of which only the names are used;
    None: both as the settings and models.toml say. `live_socket`: where the workers of this machine send pieces of
    answers ahead of their storage. The schema is checked at the start; raises DatabaseError there.
    """
    if settings is None:
        from executor.settings import load_settings

        settings = load_settings()
    app = FastAPI(
        title="dagwright",
        summary="Turns a goal into finished work: a plan of steps, each run by an agent on the model that fits it.",
        version="1",
        lifespan=_lifespan(settings, database, workshop, live_socket),
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages come from other hosts: docs.py has one of our own
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.requests = Requests()
    for module in ROUTES:
        checks = [Depends(known_parameters)] if module in STRICT else []
        app.include_router(module.router, responses=problems.RESPONSES, dependencies=checks)
    own = [route for module in ROUTES for route in module.router.routes if isinstance(route, APIRoute)]
    problems.handle(app, own, answer_at)
    app.state.figures = HttpFigures()
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Counted, figures=app.state.figures)
    return app


def _lifespan(
    settings: Settings, given: Database | None, workshop: Any, live_socket: str | Path | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            database = given
            if database is None:
                database = await stack.enter_async_context(Database.open(_dsn(settings)))
            await check(database)
            state = app.state
            state.database, state.jobs, state.keys = database, JobStore(database), KeyStore(database)
            state.keyring = Keyring(state.keys)
            state.watch = Watch(state.keyring)
            state.starts = Starts(database)
            state.workshop = workshop if workshop is not None else await _offer(stack, settings)
            state.secrets = _secrets(settings)
            await _start_hub(stack, app, live_socket)
            await stack.enter_async_context(state.watch.watching())
            state.reports = Reports(database, settings)
            upkeep = Upkeep(database, state.secrets, settings.fetch_allow, state.reports)
            state.upkeep = await stack.enter_async_context(upkeep.running())
            yield

    return lifespan


def _secrets(settings: Settings) -> Secrets | None:
    """What webhooks are signed with; None: there are none."""
    name = settings.webhook_secret_env
    if name is None:
        return None
    from executor.settings import read_environment

    from .webhooks import Secrets

    secret = read_environment().get(name)
    if not secret:
        raise ConfigError(f"the variable {name} is not set: webhook_secret_env says that it holds the webhooks' secret")
    return Secrets(secret)


async def _start_hub(stack: AsyncExitStack, app: FastAPI, live_socket: str | Path | None) -> None:
    """The hub that readers of events share, closed with the application."""
    from executor.workers.live import LiveServer

    from .hub import EventHub

    live = None if live_socket is None else lambda on_piece: LiveServer(on_piece).listening(live_socket)
    hub = EventHub(app.state.database, live, {CHANNEL: app.state.watch.changed})
    app.state.hub = await stack.enter_async_context(hub.serving())


def _dsn(settings: Settings) -> str:
    if settings.database_url is None:
        raise DatabaseError("the service needs a database: set DAGWRIGHT_DATABASE_URL, or use `dagwright serve`")
    return settings.database_url.get_secret_value()


async def _offer(stack: AsyncExitStack, settings: Settings) -> Offer:
    """The models and tools that jobs may name, as a worker has them; servers of tools run only until they have named
    theirs."""
    from executor.command.setup import all_tools
    from executor.settings import read_environment
    from registry.config import load_models
    from registry.errors import NoModelError
    from registry.models import ModelRegistry

    try:
        models = load_models(None, read_environment())
        stack.push_async_callback(models.aclose)
    except NoModelError:
        models = ModelRegistry()  # jobs are refused, each with the reason
    async with all_tools(settings) as (tools, _):
        return Offer(models, tools)
