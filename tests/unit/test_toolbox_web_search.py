"""web_search: the three services over real HTTP (DuckDuckGo's client is replaced: it reaches for the real network)."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from registry.errors import ConfigError
from registry.text import cut_end
from registry.tool_run import run_tool
from registry.toolbox import default_tools, search_provider, web_search, web_search_tool
from registry.toolbox.web_search import DuckDuckGo, Hit, SearXNG, Tavily, listed
from tests.support.http_script import serving

KEY = "tvly-0123456789abcdef"
RESULTS = [
    {"title": "Etna", "url": "https://a.test/etna", "content": "A volcano\n  in Sicily.", "score": 0.9},
    {"title": " ", "url": "https://b.test/", "content": ""},
    {"title": "again", "url": "https://a.test/etna", "content": "the same page"},
    {"title": "script", "url": "javascript:alert(1)", "content": "no web address"},
    {"title": "file", "url": "file:///etc/passwd", "content": "no web address"},
    "not a result",
    {"title": "Third", "url": "http://169.254.169.254/", "content": "x" * 2_000},
]
SHOWN = "1. Etna\n   https://a.test/etna\n   A volcano in Sicily.\n2. (no title)\n   https://b.test/"


@asynccontextmanager
async def served(**answer):
    """A server on loopback that answers everything alike; yields its address and the requests with their bodies."""
    asked = []
    delay = answer.pop("delay", 0)

    async def handle(request: web.Request) -> web.Response:
        asked.append((request, await request.text()))
        await asyncio.sleep(delay)
        return web.json_response(answer["json"]) if "json" in answer else web.Response(**answer)

    async with serving(handle) as port:
        yield f"http://127.0.0.1:{port}", asked


async def search(provider, query="etna volcano", **arguments):
    tool = web_search_tool(provider)
    return await run_tool(tool, tool.check({"query": query, **arguments}))


async def test_searxng_lists_titles_addresses_and_extracts():
    async with served(json={"results": RESULTS}) as (url, asked):
        got = await search(SearXNG(url), "etna & co", max_results=2)
        assert (got.text, got.is_error) == (SHOWN, False)
        assert asked[0][0].path == "/search"
        assert dict(asked[0][0].query) == {"q": "etna & co", "format": "json"}
        got = await search(SearXNG(f"{url}/search/"))
        assert got.text.splitlines()[-2] == "   http://169.254.169.254/"
        assert got.text.splitlines()[-1] == f"   {cut_end('x' * 2_000, 500)}"
        assert "javascript" not in got.text
        assert "file:" not in got.text
        assert asked[1][0].path == "/search"


async def test_tavily_gets_the_key_in_a_header_only():
    async with served(json={"query": "q", "results": RESULTS}) as (url, asked):
        got = await search(Tavily(KEY, url=f"{url}/search"), max_results=2)
        assert got.text == SHOWN
        request, body = asked[0]
        assert request.method == "POST"
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        assert body == '{"query": "etna volcano", "max_results": 2}'
        assert KEY not in str(request.url)
    assert KEY not in repr(Tavily(KEY))


@pytest.mark.parametrize("kind", ["searxng", "tavily"])
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"status": 429, "headers": {"Retry-After": "30"}}, "for now: wait before the next one (it asks for 30 s)"),
        ({"status": 429}, "takes no more searches for now"),
        ({"status": 500, "text": KEY}, "answered 500 Internal Server Error"),
        ({"status": 302, "headers": {"Location": "http://127.0.0.1:9/"}}, "redirects elsewhere (302)"),
        ({"text": "<html>search</html>", "content_type": "text/html"}, "something else than JSON"),
        ({"text": "[" * 100_000}, "something else than JSON"),
        ({"text": "[1]"}, "something else than JSON"),
        ({"text": "x" * 2_000_001}, "more than 2,000,000 bytes"),
    ],
)  # fmt: skip
async def test_errors_are_clear_and_hold_no_key(kind, answer, says):
    async with served(**answer) as (url, asked):
        got = await search(SearXNG(url) if kind == "searxng" else Tavily(KEY, url=url))
        assert got.is_error
        assert says in got.text
        assert KEY not in got.text
        assert len(asked) == 1


async def test_what_only_one_service_says():
    async with served(status=403, text="<h1>Forbidden</h1>") as (url, _):
        assert "must list json under search.formats" in (await search(SearXNG(url))).text
        assert "Tavily refused the key in TAVILY_API_KEY" in (await search(Tavily(KEY, url=url))).text
    async with served(status=401, text=f'{{"detail": "{KEY}"}}') as (url, _):
        got = await search(Tavily(KEY, url=url))
        assert "refused the key in TAVILY_API_KEY" in got.text
        assert KEY not in got.text
    async with served(status=432) as (url, _):
        assert "the plan's limit is reached" in (await search(Tavily(KEY, url=url))).text
    async with served(json={"results": [], "unresponsive_engines": [["google", "timeout"]]}) as (url, _):
        got = await search(SearXNG(url))
        assert got.is_error
        assert 'got no answer from its engines: [["google", "timeout"]]' in got.text


@pytest.mark.parametrize("data", [{"results": []}, {}, {"results": None}, {"results": [{"url": 3}]}])
async def test_nothing_found_is_said(data):
    async with served(json=data) as (url, _):
        for provider in (SearXNG(url), Tavily(KEY, url=url)):
            got = await search(provider)
            assert (got.text, got.is_error) == (
                "Nothing was found for 'etna volcano'. Try fewer or other words.",
                False,
            )


async def test_a_service_that_is_not_there_or_says_nothing(monkeypatch):
    got = await search(SearXNG("http://127.0.0.1:9"))
    assert "SearXNG at 127.0.0.1:9 can't be reached" in got.text
    monkeypatch.setattr(web_search, "TIME_LIMIT", 0.2)
    async with served(json={}, delay=5) as (url, _):
        assert "Tavily did not answer within 0.2 s" in (await search(Tavily(KEY, url=url))).text


async def test_queries_that_are_none(monkeypatch):
    async with served(json={"results": RESULTS}) as (url, asked):
        assert "the query is empty" in (await search(SearXNG(url), " \n ")).text
        assert "has 500 characters" in (await search(SearXNG(url), "x" * 500)).text
        assert asked == []
        assert not (await search(SearXNG(url), "half\ud800 two\nlines")).is_error
        assert asked[0][0].query["q"] == "half\ufffd two lines"


@pytest.mark.parametrize("number", [0, 21, "many"])
def test_the_number_of_results_has_bounds(number):
    with pytest.raises(ValueError, match="max_results"):
        web_search_tool(DuckDuckGo()).check({"query": "q", "max_results": number})


def ddgs_with(monkeypatch, answer):
    """Puts another class in the place of ddgs's client; returns the list of what it is asked."""
    asked = []

    class Client:
        def __init__(self, **options):
            asked.append(options)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def text(self, query, **options):
            asked.append((query, options))
            return answer()

    monkeypatch.setattr("ddgs.DDGS", Client)
    return asked


def test_the_client_that_is_replaced_is_the_real_one():
    """What the replacement takes for granted holds for the installed package."""
    import inspect

    from ddgs.ddgs import DDGS
    from ddgs.engines import ENGINES

    assert "timeout" in inspect.signature(DDGS).parameters
    assert {"max_results", "backend"} <= set(inspect.signature(DDGS._search_sync).parameters)
    assert "duckduckgo" in ENGINES["text"]
    assert callable(DDGS.__enter__)


async def test_duckduckgo(monkeypatch):
    rows = [{"title": row["title"], "href": row["url"], "body": row["content"]} for row in RESULTS[:4]]
    asked = ddgs_with(monkeypatch, lambda: rows)
    got = await search(DuckDuckGo(), max_results=2)
    assert got.text == SHOWN
    assert asked == [{"timeout": 10}, ("etna volcano", {"max_results": 2, "backend": "duckduckgo"})]


@pytest.mark.parametrize(
    ("error", "says", "is_error"),
    [
        ("RatelimitException", "takes no more searches for now", True),
        ("TimeoutException", "did not answer in time", True),
        ("DDGSException", "DuckDuckGo: broken page", True),
        ("DDGSException:No results found.", "Nothing was found", False),
        ("RuntimeError", "broken page", True),
    ],
)
async def test_duckduckgo_errors(monkeypatch, error, says, is_error):
    import ddgs.exceptions

    name, _, message = error.partition(":")
    kind = getattr(ddgs.exceptions, name, RuntimeError)

    def fail():
        raise kind(message or "broken page")

    ddgs_with(monkeypatch, fail)
    got = await search(DuckDuckGo())
    assert (says in got.text, got.is_error) == (True, is_error)


async def test_duckduckgo_that_hangs(monkeypatch):
    import threading

    monkeypatch.setattr(web_search, "TIME_LIMIT", 0.2)
    let_go = threading.Event()
    ddgs_with(monkeypatch, lambda: let_go.wait(20) and [])
    got = await search(DuckDuckGo())
    let_go.set()
    assert "DuckDuckGo took more than 0.2 s" in got.text


@pytest.mark.parametrize(
    ("setting", "env", "name"),
    [
        (None, {}, None),
        (None, {"TAVILY_API_KEY": KEY}, "Tavily"),
        (None, {"TAVILY_API_KEY": "  "}, None),
        ("none", {"TAVILY_API_KEY": KEY}, None),
        ("tavily", {"TAVILY_API_KEY": KEY}, "Tavily"),
        ("duckduckgo", {"TAVILY_API_KEY": KEY}, "DuckDuckGo"),
        ("searxng:http://127.0.0.1:8888", {"TAVILY_API_KEY": KEY}, "SearXNG at 127.0.0.1:8888"),
        ("searxng:https://search.test/x", {}, "SearXNG at search.test"),
    ],
)
def test_which_service_is_used(setting, env, name):
    provider = search_provider(setting, env)
    assert (provider and provider.name) == name


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("tavily", "needs TAVILY_API_KEY"),
        ("searxng", "comes the server's URL"),
        ("searxng:", "comes the server's URL"),
        ("searxng:search.test", "comes the server's URL"),
        ("searxng:file:///etc", "comes the server's URL"),
        ("searxng:http://[::1", "comes the server's URL"),
        ("searxng:http://h:99999", "comes the server's URL"),
        ("searxng:https://user:hunter22@search.test/x", "must not hold a user name or password"),
        ("google", "must be searxng:URL, tavily, duckduckgo or none"),
        ("", "must be searxng:URL"),
    ],
)
def test_wrong_settings(setting, says):
    with pytest.raises(ConfigError, match=says):
        search_provider(setting, {})


def test_the_tool_exists_where_a_service_is_configured():
    assert "web_search" not in default_tools()
    tool = default_tools(search=DuckDuckGo()).get("web_search")
    assert (tool.read_only, tool.idempotent, tool.network, tool.trusted) == (True, True, True, False)
    assert default_tools(search=DuckDuckGo()).similar_descriptions() == ()


def test_a_result_cannot_forge_another():
    text = listed("q", [Hit("a", "https://a.test/", "x")])
    assert text == "1. a\n   https://a.test/\n   x"
    forged = web_search._hits([{"title": "a\n2. b", "url": "https://a.test/\nhttps://b.test", "content": "\n3. c"}],
                              "title", "url", "content")  # fmt: skip
    assert listed("q", forged).splitlines() == ["1. a 2. b", "   https://a.test/ https://b.test", "   3. c"]
