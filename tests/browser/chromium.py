"""A real Chromium, the distribution's, and pages of it that tell everything that goes wrong in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 20_000.0
"""Milliseconds that a wait may take on a busy machine."""
WATCH = """
window.__faults = [];
document.addEventListener('securitypolicyviolation', (event) =>
    window.__faults.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
window.canary = (what) => window.__faults.push(`canary ${what}`);
"""
"""Runs before the page: collects what the policy stopped, and tells when a text has run as a script."""


def executable() -> str:
    """The browser's program. Without one the tests fail: `make test-heavy` installs it."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail("no Chromium: `apt-get install chromium`, or set CHROMIUM to its program")
    return found


@dataclass
class Watched:
    """A page, and what went wrong in it."""

    page: Page
    faults: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Parts of messages that a test provokes."""

    async def all_faults(self) -> list[str]:
        """Errors, violations of the policy, dialogs, scripts that ran and should not have."""
        return [*self.faults, *self.dialogs, *await self.page.evaluate("window.__faults ?? []")]

    async def leave(self) -> None:
        """Leaves the page, before the service goes."""
        self.faults += await self.page.evaluate("window.__faults ?? []")
        await self.page.goto("about:blank")


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser for the block."""
    async with async_playwright() as playwright:
        yield await launched(playwright)


async def launched(playwright: Playwright, *more: str) -> Browser:
    arguments = ["--disable-dev-shm-usage", "--force-color-profile=srgb", "--font-render-hinting=none", *more]
    return await playwright.chromium.launch(executable_path=executable(), args=arguments)


async def watched(context: BrowserContext) -> Watched:
    """A new page."""
    page = await context.new_page()
    found = Watched(page)
    page.set_default_timeout(PATIENCE)
    await page.add_init_script(WATCH)

    def console(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(part in message.text for part in found.expected):
            found.faults.append(f"{message.text} {message.location.get('url', '')}")

    def error(raised: Any) -> None:
        found.faults.append(f"{raised.message}\n{raised.stack}")

    async def dialog(opened: Any) -> None:
        found.dialogs.append(f"dialog: {opened.message}")
        await opened.dismiss()

    page.on("console", console)
    page.on("pageerror", error)
    page.on("dialog", dialog)
    return found
