"""The API's description as a page: of our own files alone, whatever the network."""

from __future__ import annotations

import asyncio
import html
import re
import shutil
from collections.abc import AsyncIterator

import pytest

from tests.support.service import Service, running

PARTS = {"/docs": "text/html", "/docs/docs.css": "text/css", "/docs/docs.js": "text/javascript"}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as found:
        yield found


async def test_nothing_is_referred_to_that_is_not_ours(service: Service) -> None:
    for path, kind in PARTS.items():
        response = await service.http.get(path)
        assert (response.status_code, response.headers["content-type"].partition(";")[0]) == (200, kind)
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
        assert "unsafe" not in policy
        assert not re.search(r"https?:|[\"'(]//|@import|wss?:", response.text), path
        for place in re.findall(r"(?:href|src)=\"([^\"]*)\"", response.text):
            assert place == "data:," or (await service.http.get(place)).status_code == 200, place
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|innerHTML|\beval\b", response.text), path


async def test_fastapi_s_own_pages_are_gone(service: Service) -> None:
    for path in ("/redoc", "/docs/oauth2-redirect", "/docs/", "/docs/docs.html", "/docs/..%2fapp.py"):
        assert (await service.http.get(path)).status_code == 404, path


@pytest.mark.heavy
async def test_a_browser_shows_every_route(service: Service) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser is installed")
    described = (await service.http.get("/openapi.json")).json()
    process = await asyncio.create_subprocess_exec(
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000",
        "--enable-logging=stderr", "--dump-dom", f"{service.url}/docs",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert "CONSOLE" not in err.decode(), "a script failed, or the policy forbade something"
    shown = html.unescape(out.decode())
    assert 'role="alert"' not in shown
    paths = re.findall(r'<span class="path">([^<]*)', shown)
    assert sorted(set(paths)) == sorted(described["paths"])
    assert len(paths) == sum(len(methods) for methods in described["paths"].values())
