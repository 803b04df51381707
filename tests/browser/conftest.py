"""The page in a real browser, on the real service with a real worker; only the models are a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, BrowserContext, expect

from . import chromium
from .chromium import Watched

expect.set_options(timeout=chromium.PATIENCE)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium.browser() as found:
        yield found


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    async with await browser.new_context(viewport={"width": 1280, "height": 860}, locale="en-GB") as found:
        yield found


@pytest.fixture
async def watched(context: BrowserContext) -> AsyncIterator[Watched]:
    """A page in which nothing went wrong when the test is over."""
    found = await chromium.watched(context)
    yield found
    assert await found.all_faults() == []
