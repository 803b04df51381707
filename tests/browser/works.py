"""What the browser's tests share: a tool, a model that can be held, events as a worker would write them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from playwright.async_api import Page

from registry.tools import tool
from tests.fakes import View


@tool(pure=True)
def calculate(expression: str) -> str:
    """Works out an expression."""
    return str(eval(expression, {"__builtins__": {}}))


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
