"""Searching the web through whichever service is configured: SearXNG, Tavily or DuckDuckGo."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

from registry.errors import ConfigError, DagwrightError
from registry.redaction import know_secret, know_url
from registry.text import clean, cut_end
from registry.threads import shared_pool
from registry.tools import Tool, tool

TIME_LIMIT = 20.0
"""Seconds for a search."""

MAX_RESULTS = 20
MAX_BYTES = 2_000_000
"""Bytes of an answer that are read."""

MAX_QUERY_CHARS = 400
"""Characters of a query; Tavily refuses longer ones."""

TITLE_CHARS, URL_CHARS, SNIPPET_CHARS = 200, 1_000, 500

TAVILY_URL = "https://api.tavily.com/search"
TAVILY_KEY = "TAVILY_API_KEY"

HOW_TO_GET = (
    'web_search is not there: set search = "searxng:http://HOST:PORT" (a SearXNG server with its JSON format on), '
    f'{TAVILY_KEY} (and search = "tavily", or nothing), or search = "duckduckgo" (no key)'
)
"""What to do for the tool to exist."""


RIGHT_SETTING = "searxng:URL, tavily, duckduckgo or none"


class SearchError(DagwrightError, ValueError):
    """The search failed."""

    code = "search"


@dataclass(frozen=True, slots=True)
class Hit:
    """A result: texts of strangers."""

    title: str
    url: str
    snippet: str


class SearchProvider(Protocol):
    """A search service. `name` says which, for `dagwright tools`."""

    @property
    def name(self) -> str:
        """The service, and where it is."""

    async def search(self, query: str, max_results: int) -> list[Hit]:
        """At most so many results, the best first. Raises SearchError, in whose text there is no key."""


def search_provider(setting: str | None, env: Mapping[str, str]) -> SearchProvider | None:
    """The service that the setting names; where it names none, Tavily if its key is in the environment.

    `setting` is `searxng:URL`, `tavily`, `duckduckgo`, `none` or None. Raises ConfigError.
    """
    key = env.get(TAVILY_KEY, "").strip()
    if setting is None:
        return Tavily(key) if key else None
    kind, _, url = checked_setting(setting).partition(":")
    match kind:
        case "searxng":
            return SearXNG(url)
        case "tavily":
            if not key:
                raise ConfigError(f"search = {setting!r} needs {TAVILY_KEY}, which is not set")
            return Tavily(key)
        case "duckduckgo":
            return DuckDuckGo()
        case _:
            return None


def checked_setting(setting: str) -> str:
    """The setting, if a service could be made of it. Raises ConfigError."""
    kind, _, url = setting.partition(":")
    if kind == "searxng":
        SearXNG(url)
    elif setting not in ("tavily", "duckduckgo", "none"):
        raise ConfigError(f"search = {setting!r}: must be {RIGHT_SETTING}")
    return setting


class SearXNG:
    """A SearXNG server's JSON interface (`/search?format=json`). Its address is the operator's word: it may be private.

    Raises ConfigError for what is no URL.
    """

    def __init__(self, url: str) -> None:
        know_url(url)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("http", "https"):
            raise ConfigError(f"search = 'searxng:{cut_end(url, 100)}': after searxng: comes the server's URL")
        if parts.username is not None or parts.password is not None:
            raise ConfigError("search: the URL after searxng: must not hold a user name or password")
        self._url = url.rstrip("/").removesuffix("/search") + "/search"
        self.name = f"SearXNG at {host}{f':{port}' if port else ''}"

    async def search(self, query: str, max_results: int) -> list[Hit]:
        """See SearchProvider."""
        answer = await _ask(self.name, "GET", self._url, params={"q": query, "format": "json"})
        if answer.status == 403:
            raise SearchError(f"{self.name} refuses JSON: its settings.yml must list json under search.formats")
        data = _json(self.name, answer, "Is its JSON format on (search.formats in settings.yml)?")
        hits = _hits(data.get("results"), "title", "url", "content")
        silent = data.get("unresponsive_engines")
        if not hits and isinstance(silent, list) and silent:
            raise SearchError(f"{self.name} got no answer from its engines: {cut_end(clean(json.dumps(silent)), 300)}")
        return hits[:max_results]


class Tavily:
    """Tavily's search interface. `url` is another address for tests."""

    name = "Tavily"

    def __init__(self, key: str, *, url: str = TAVILY_URL) -> None:
        know_secret(key)
        self._key = key
        self._url = url

    def __repr__(self) -> str:
        return "Tavily()"

    async def search(self, query: str, max_results: int) -> list[Hit]:
        """See SearchProvider."""
        answer = await _ask(
            self.name,
            "POST",
            self._url,
            json={"query": query, "max_results": max_results},
            headers={"Authorization": f"Bearer {self._key}"},
        )
        if answer.status in (401, 403):
            raise SearchError(f"{self.name} refused the key in {TAVILY_KEY}")
        if answer.status in (432, 433):
            raise SearchError(f"{self.name}: the plan's limit is reached")
        data = _json(self.name, answer, "")
        return _hits(data.get("results"), "title", "url", "content")[:max_results]


class DuckDuckGo:
    """DuckDuckGo by way of `ddgs`, which needs no key and breaks when the page changes."""

    name = "DuckDuckGo"

    async def search(self, query: str, max_results: int) -> list[Hit]:
        """See SearchProvider."""
        try:
            returned = await shared_pool().run(lambda: _duckduckgo(query, max_results), TIME_LIMIT)
        except TimeoutError:
            raise SearchError(f"{self.name} took more than {TIME_LIMIT:g} s") from None
        if returned.error is not None:
            raise returned.error
        return _hits(returned.value, "title", "href", "body")[:max_results]


def _duckduckgo(query: str, max_results: int) -> list[dict[str, Any]]:
    from ddgs import DDGS
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    try:
        with DDGS(timeout=int(TIME_LIMIT) // 2) as client:
            return list(client.text(query, max_results=max_results, backend="duckduckgo"))
    except RatelimitException:
        raise SearchError("DuckDuckGo takes no more searches for now: wait before the next one") from None
    except TimeoutException:
        raise SearchError("DuckDuckGo did not answer in time") from None
    except DDGSException as error:
        if "no results" in str(error).lower():
            return []
        raise SearchError(f"DuckDuckGo: {cut_end(clean(str(error)), 300)}") from None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    reason: str
    retry_after: str
    text: str


async def _ask(name: str, method: str, url: str, **request: Any) -> _Answer:
    """One request; redirects are not followed, since a key goes with it. Raises SearchError."""
    import aiohttp

    try:
        async with (
            asyncio.timeout(TIME_LIMIT),
            aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, url, allow_redirects=False, **request) as answer,
        ):
            data = bytearray()
            async for chunk in answer.content.iter_chunked(65_536):
                data += chunk
                if len(data) > MAX_BYTES:
                    raise SearchError(f"{name} answered with more than {MAX_BYTES:,} bytes")
            later = answer.headers.get("Retry-After", "")
            return _Answer(answer.status, answer.reason or "", later, data.decode("utf-8", "replace"))
    except TimeoutError:
        raise SearchError(f"{name} did not answer within {TIME_LIMIT:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise SearchError(
            f"{name} can't be reached: {cut_end(clean(str(error)) or type(error).__name__, 300)}"
        ) from None


def _json(name: str, answer: _Answer, hint: str) -> Mapping[str, Any]:
    """The answer's object. Raises SearchError where it is an error or no JSON."""
    if answer.status == 429:
        wait = f" (it asks for {answer.retry_after} s)" if answer.retry_after.isdigit() else ""
        raise SearchError(f"{name} takes no more searches for now: wait before the next one{wait}")
    if 300 <= answer.status < 400:
        raise SearchError(f"{name} redirects elsewhere ({answer.status}): set its final address")
    if answer.status != 200:
        raise SearchError(f"{name} answered {answer.status} {cut_end(clean(answer.reason), 100)}".rstrip())
    try:
        data = json.loads(answer.text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise SearchError(f"{name} answered with something else than JSON. {hint}".rstrip())
    return data


def _hits(rows: Any, title: str, url: str, snippet: str) -> list[Hit]:
    """The rows that are results with a web address, each address once."""
    hits: dict[str, Hit] = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        address = _line(row.get(url), URL_CHARS)
        if address.partition(":")[0].lower() in ("http", "https"):
            named = _line(row.get(title), TITLE_CHARS) or "(no title)"
            hits.setdefault(address, Hit(named, address, _line(row.get(snippet), SNIPPET_CHARS)))
    return list(hits.values())


def _line(value: Any, limit: int) -> str:
    """A stranger's text as one line."""
    return cut_end(" ".join(clean(value if isinstance(value, str) else "").split()), limit)


def listed(query: str, hits: Iterable[Hit]) -> str:
    """The results, numbered, for a model."""
    lines = []
    for number, hit in enumerate(hits, 1):
        lines += [f"{number}. {hit.title}", f"   {hit.url}"]
        if hit.snippet:
            lines.append(f"   {hit.snippet}")
    return "\n".join(lines) or f"Nothing was found for {query!r}. Try fewer or other words."


def web_search_tool(provider: SearchProvider) -> Tool:
    """The tool `web_search`, on this service."""
    from pydantic import Field

    @tool(read_only=True, idempotent=True, network=True, timeout=TIME_LIMIT + 10)
    async def web_search(query: str, max_results: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 5) -> str:
        """Searches the web and returns a numbered list of results: title, address and a short extract of each.

        The extracts are short and may be old: read the page itself where facts matter.

        Args:
            query: The words to search for, as one would type them.
            max_results: How many results to return at most.
        """
        words = " ".join(clean(query).split())
        if not words:
            raise SearchError("the query is empty: say what to search for")
        if len(words) > MAX_QUERY_CHARS:
            raise SearchError(f"the query has {len(words)} characters, at most {MAX_QUERY_CHARS} are taken")
        return listed(words, await provider.search(words, max_results))

    return web_search
