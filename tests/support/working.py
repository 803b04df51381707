"""A worker beside a running service, in the test's own process: real jobs on a provider's fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from executor.settings_model import Settings
from executor.workers.workshop import Workshop
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.models import ModelRegistry
from registry.tools import ToolRegistry
from tests.fakes import ProviderFake
from tests.support.service import Service, running
from tests.support.workers import worker


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
    """The service on a free port, with a worker for its jobs; those that run at its end are handed over."""
    work = Workshop(models, ToolRegistry(tools), Settings.of(settings, {}))
    async with running(dsn, work, size=10, **settings) as service:
        live = service.app.state.hub.on_piece
        async with worker(service.database, work, slots=slots, grace=0.0, live=live):
            yield service
    await models.aclose()
