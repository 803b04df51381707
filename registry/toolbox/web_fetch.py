"""Fetching a page for a model: public addresses only (see `outside`), capped, as readable Markdown."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from registry.text import cut_end
from registry.threads import shared_pool
from registry.toolbox.outside import FetchError, Outside, reason, shown
from registry.tools import Tool, tool

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

MAX_BYTES = 2_000_000
"""Bytes of a page that are read, after decompression."""

TIME_LIMIT = 20.0
"""Seconds for a fetch with all its redirects."""

MAX_REDIRECTS = 5
ERROR_CHARS = 300
"""Characters of an error page that are shown."""

USER_AGENT = "Mozilla/5.0 (compatible; dagwright; web_fetch)"

_REDIRECTS = (301, 302, 303, 307, 308)
_PAGES = ("text/html", "application/xhtml+xml")
_TEXTS = re.compile(
    r"text/.+|application/(json|xml|javascript|ecmascript|yaml|x-yaml|toml|x-ndjson|sql|rtf)|.+\+(json|xml|yaml)"
)
_TITLE = re.compile(r"<title[^>]*>(.{1,1000}?)</title", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """What a URL led to: the final URL, the bare media type, the charset the server names, the first bytes."""

    url: str
    mime: str
    charset: str | None
    data: bytes
    cut: bool


class Fetcher:
    """Fetches pages. `allow`: sites whose addresses are not checked. `resolver`: aiohttp's, for tests."""

    def __init__(self, allow: Iterable[str] = (), *, resolver: AbstractResolver | None = None) -> None:
        self._outside = Outside(allow, resolver=resolver)

    async def fetch(self, url: str) -> Page:
        """The page behind a URL, redirects followed. Raises FetchError."""
        await self._outside.prepare()
        try:
            async with asyncio.timeout(TIME_LIMIT):
                return await self._follow(url.strip())
        except TimeoutError:
            raise FetchError(f"{shown(url)} took more than {TIME_LIMIT:g} s") from None

    async def _follow(self, url: str) -> Page:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._hop(url)
            if isinstance(answer, Page):
                return answer
            url = answer
        raise FetchError(f"{shown(url)}: more than {MAX_REDIRECTS} redirects")

    async def _hop(self, url: str) -> Page | str:
        """One request: the page, or the URL that it redirects to."""
        import aiohttp

        target = self._outside.target(url)
        refused: list[str] = []
        headers = {"User-Agent": USER_AGENT, "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.5"}
        try:
            async with (
                self._outside.session(target, refused, headers) as session,
                session.get(target, allow_redirects=False) as answer,
            ):
                return await self._answered(url, answer)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, FetchError | TimeoutError):
                raise
            if refused:
                raise FetchError(f"{shown(url)} is refused: {refused[0]}") from None
            raise FetchError(f"{shown(url)}: {reason(error)}") from None

    async def _answered(self, url: str, answer: aiohttp.ClientResponse) -> Page | str:
        if answer.status in _REDIRECTS and (target := answer.headers.get("Location")):
            return urljoin(url, target)
        if not 200 <= answer.status < 300:
            text = (await _read(answer, 20_000))[0].decode("utf-8", "replace")
            body = cut_end(" ".join(re.sub(r"<[^>]{0,1000}>", " ", text).split()), ERROR_CHARS)
            raise FetchError(f"{shown(url)} answered {answer.status} {answer.reason or ''}".rstrip() + f": {body}")
        mime = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if mime and mime not in _PAGES and not _TEXTS.fullmatch(mime):
            raise FetchError(f"{shown(url)} is {mime}: only text, HTML, JSON and XML are read")
        data, cut = await _read(answer, MAX_BYTES)
        return Page(url, mime, answer.charset, data, cut)


async def _read(answer: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(65_536):
        data += chunk
        if len(data) > limit:
            return bytes(data[:limit]), True
    return bytes(data), False


def readable(page: Page) -> str:
    """The page as text for a model: HTML as Markdown without menus and advertisements, other text as it is."""
    text = _decoded(page)
    is_page = page.mime in _PAGES or (not page.mime and re.search(r"<html|<!doctype html", text[:1_000], re.IGNORECASE))
    if not page.mime and "\x00" in text:
        raise FetchError(f"{shown(page.url)} is not text")
    body = _markdown(text, page.url) if is_page else text
    title = _TITLE.search(text[:100_000]) if is_page else None
    lines = [f"URL: {page.url}"]
    if title and (name := " ".join(html.unescape(title[1]).split())):
        lines.append(f"Title: {cut_end(name, 300)}")
    if page.cut:
        lines.append(f"[only the first {MAX_BYTES:,} bytes were read]")
    return "\n".join([*lines, "", body.strip() or "(the page has no readable text)"])


def _decoded(page: Page) -> str:
    charset = page.charset
    if charset is None and (named := re.search(rb"<meta[^>]{0,200}charset=[\"']?([\w-]{2,40})", page.data[:2_048])):
        charset = named[1].decode("ascii", "replace")
    try:
        return page.data.decode(charset or "utf-8-sig", "replace")
    except (LookupError, UnicodeError):
        return page.data.decode("utf-8", "replace")


def _markdown(text: str, url: str) -> str:
    import trafilatura

    found = trafilatura.extract(text, url=url, output_format="markdown", include_tables=True, include_links=True)
    return found or str(trafilatura.html2txt(text) or "")


def web_fetch_tool(allow: Iterable[str] = (), *, resolver: AbstractResolver | None = None) -> Tool:
    """The tool `web_fetch`.

    `allow`: `host:port` of sites whose addresses are not checked, for tests and intranets. Raises UsageError for an
    entry of another form.
    """
    fetcher = Fetcher(allow, resolver=resolver)

    @tool(read_only=True, idempotent=True, network=True, timeout=TIME_LIMIT + 10)
    async def web_fetch(url: str) -> str:
        """Fetches a public web page or text file and returns its main text as Markdown; JSON and plain text as it is.

        Pages that need a login or run as scripts only can't be read.

        Args:
            url: The full address, with http:// or https:// in front.
        """
        page = await fetcher.fetch(url)
        returned = await shared_pool().run(lambda: readable(page))
        if returned.error is not None:
            raise returned.error
        return str(returned.value)

    return web_fetch
