"""What the browser's tests share: a tool, a model that can be held, events as a worker would write them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page

from registry.tools import tool
from tests.fakes import ProviderFake, View
from tests.support.service import Service, running
from tests.support.working import models_of, working

from .chromium import Watched


@tool(pure=True)
def calculate(expression: str) -> str:
    """Works out an expression."""
    return str(eval(expression, {"__builtins__": {}}))


@asynccontextmanager
async def serving(dsn: str, watched: Watched) -> AsyncIterator[Service]:
    """The service, without a worker; the page has left before it ends."""
    async with running(dsn) as service:
        try:
            yield service
        finally:
            await watched.leave()


@asynccontextmanager
async def at_work(
    dsn: str, fake: ProviderFake, watched: Watched, tools: Iterable[Any] = (calculate,)
) -> AsyncIterator[Service]:
    """The service and a worker on the fake's models."""
    async with working(dsn, models_of(fake), tools) as service:
        try:
            yield service
        finally:
            await watched.leave()


async def open_page(page: Page, url: str, place: str = "") -> None:
    """Opens the page; its policy allows nothing but its own files."""
    response = await page.goto(f"{url}/{place}")
    assert response is not None
    assert response.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")


class Gate:
    """Holds the models of steps until it is opened."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self.reached = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    def held(self, script: Callable[[View], Any], fits: Callable[[View], bool] | None = None) -> Callable[[View], Any]:
        """The script, of which those requests wait that fit, those of steps by default."""

        async def answer(view: View) -> Any:
            if fits(view) if fits is not None else bool(view.tools) and view.forced is None:
                self.reached.set()
                await self._opened.wait()
            return script(view)

        return answer
