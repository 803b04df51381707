"""A worker beside a running service, in the test's own process: real jobs on a provider's fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from executor.engine import Engine
from executor.handover import Outcome
from executor.inbox import Inbox
from executor.settings_model import Settings
from executor.stored_job import run_stored_job
from executor.workshop import Workshop
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.models import ModelRegistry
from registry.tools import ToolRegistry
from tests.fakes import ProviderFake
from tests.support.service import Service, running


def models_of(fake: ProviderFake, key: str = "k") -> ModelRegistry:
    """Two models at the fake, by chat completions."""
    models = ModelRegistry()
    models.register("small", OpenAIChatLLM("fake-small", base_url=fake.openai_url, api_key=key), roles=("general",))
    models.register("large", OpenAIChatLLM("fake-large", base_url=fake.openai_url, api_key=key), roles=("smart",))
    return models


@asynccontextmanager
async def working(
    dsn: str, models: ModelRegistry, tools: Iterable[Any] = (), *, slots: int = 4, **settings: Any
) -> AsyncIterator[Service]:
    """The service on a free port, with a worker for its jobs."""
    work = Workshop(models, ToolRegistry(tools), Settings.of(settings, {}))
    async with running(dsn, work, size=10, **settings) as service, worker(service, work, slots):
        yield service
    await models.aclose()


@asynccontextmanager
async def worker(service: Service, work: Workshop, slots: int = 4) -> AsyncIterator[Engine]:
    """Runs the service's jobs within the block; those that run at its end are handed over."""
    database, live = service.database, service.app.state.hub.on_piece
    engine = Engine(database, poll=0.5)
    async with Inbox.open(database) as inbox, asyncio.TaskGroup() as group:
        work = Workshop(work.models, work.tools, work.settings, inbox=inbox)
        handle = partial(_run, service, engine, work, live)
        task = group.create_task(engine.run(handle, slots))
        try:
            yield engine
        finally:
            engine.stop(0)
            await asyncio.wait({task})


async def _run(service: Service, engine: Engine, work: Workshop, live: Any, job_id: str) -> Outcome:
    return await run_stored_job(service.database, engine.owner, job_id, work, live=live, handover=engine.handover)
