"""web_fetch: a real site on loopback behind the allow-list, and every way to a private address that must be closed."""

import asyncio
import gzip
import socket
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver

from registry.errors import UsageError
from registry.tool_run import run_tool
from registry.toolbox import web_fetch
from registry.toolbox.addresses import refusal
from registry.toolbox.outside import Site
from registry.toolbox.web_fetch import web_fetch_tool
from tests.support.http_script import serving

PAGE = """<!doctype html><html><head><title>Mountains &amp; lakes</title></head><body>
<nav><a href="/">Home</a> <a href="/about">About</a></nav>
<article><h1>Mountains</h1><p>Mount Etna is an active volcano on the east coast of Sicily, and one of the tallest
in Europe. It has been erupting for a very long time and people still live on its slopes.</p>
<p>The following table lists the heights of two mountains in metres, as they were measured in recent years.</p>
<table><tr><th>Name</th><th>Height</th></tr><tr><td>Etna</td><td>3357</td></tr><tr><td>Vesuvius</td><td>1281</td></tr>
</table></article><script>alert("no")</script></body></html>"""


class Resolver(AbstractResolver):
    """Answers each look-up with the next list of addresses; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(self, host, port=0, family=socket.AF_INET):
        self.asked.append(host)
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": 0,
            }
            for address in addresses
        ]

    async def close(self) -> None: ...


@asynccontextmanager
async def site(**routes):
    """A server on loopback; yields its port. A route is a response's arguments or a handler."""
    hits = []

    async def handle(request: web.Request) -> web.StreamResponse:
        hits.append(request)
        route = routes[request.path.strip("/") or "index"]
        return await route(request) if callable(route) else web.Response(**route)

    async with serving(handle) as port:
        yield port, hits


async def fetch(url: str, allow=(), resolver=None):
    tool = web_fetch_tool(allow, resolver=resolver)
    return await run_tool(tool, tool.check({"url": url}))


def moved(target: str, status: int = 302) -> dict:
    return {"status": status, "headers": {"Location": target}}


async def test_a_page_becomes_markdown():
    async with site(index={"text": PAGE, "content_type": "text/html"}) as (port, hits):
        got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert not got.is_error
        assert got.text.startswith(f"URL: http://127.0.0.1:{port}/\nTitle: Mountains & lakes\n")
        assert "active volcano" in got.text
        assert "| Etna | 3357 |" in got.text
        assert "alert" not in got.text
        assert "About" not in got.text
        assert hits[0].headers["Host"] == f"127.0.0.1:{port}"
        assert "Cookie" not in hits[0].headers


@pytest.mark.parametrize(
    ("route", "shows"),
    [
        ({"text": "plain é", "content_type": "text/plain"}, "plain é"),
        ({"text": '{"a": [1]}', "content_type": "application/json"}, '{"a": [1]}'),
        ({"text": "<a/>", "content_type": "application/atom+xml"}, "<a/>"),
        ({"body": b"caf\xe9", "headers": {"Content-Type": "text/plain; charset=latin-1"}}, "café"),
        ({"body": b"caf\xe9", "headers": {"Content-Type": "text/plain; charset=nonsense"}}, "caf\ufffd"),
        (
            {"body": gzip.compress(b"zipped"), "headers": {"Content-Encoding": "gzip", "Content-Type": "text/plain"}},
            "zipped",
        ),
        ({"text": "", "content_type": "text/plain"}, "no readable text"),
    ],
)
async def test_other_text_is_passed_on(route, shows):
    async with site(index=route) as (port, _):
        got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert not got.is_error
        assert shows in got.text


@pytest.mark.parametrize(
    ("route", "says"),
    [
        ({"body": b"\x89PNG", "content_type": "image/png"}, "image/png"),
        ({"body": b"x", "content_type": "application/octet-stream"}, "octet-stream"),
        ({"text": "<p>gone</p>", "content_type": "text/html", "status": 404}, "answered 404 Not Found: gone"),
        ({"text": "", "status": 500}, "answered 500"),
        ({"status": 204}, None),
        (moved("ftp://127.0.0.1/x"), "only http:// and https://"),
        (moved("file:///etc/passwd"), "only http:// and https://"),
        (moved("/"), "more than 5 redirects"),
    ],
)
async def test_refusals(route, says):
    async with site(index=route) as (port, hits):
        got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert got.is_error is (says is not None)
        assert says is None or says in got.text
        assert len(hits) <= 6


async def test_redirects_are_followed_and_the_last_address_is_told():
    routes = {"index": moved("/a", 301), "a": moved("b", 307), "b": {"text": "there", "content_type": "text/plain"}}
    async with site(**routes) as (port, _):
        got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert got.text == f"URL: http://127.0.0.1:{port}/b\n\nthere"


async def test_big_pages_are_cut():
    async def big(request):
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        for _ in range(60):
            try:
                await answer.write(b"x" * 50_000)
            except ConnectionError:  # the reader had enough
                break
        return answer

    async with site(index=big) as (port, _):
        got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert "only the first 2,000,000 bytes" in got.text
        assert len(got.text) <= 20_000


async def test_slow_pages_time_out(monkeypatch):
    monkeypatch.setattr(web_fetch, "TIME_LIMIT", 0.3)

    async def slow(request):
        await asyncio.sleep(5)
        return web.Response()

    async with site(index=slow) as (port, _):
        got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert got.is_error
        assert "took more than 0.3 s" in got.text


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "192.88.99.1",
        "198.18.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2002:808:808::1",
        "::a9fe:a9fe",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9fe::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "100::1",
        "169.254.170.2",
        "fe80::a9fe:a9fe%1",
        "127.0.0.1%eth0",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "١٢٧.٠.٠.١",
        "",
        "2001::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "nonsense",
        "0177.0.0.1",
    ],
)
def test_addresses_that_are_not_public(address):
    assert refusal(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "::ffff:8.8.8.8", "2606:4700::1111", "2a00:1450:4001::1"])
def test_public_addresses(address):
    assert refusal(address) is None


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.1",
        "127.1",
        "0",
        "0.0.0.0",
        "[::]",
        "127。0。0。1",
        "①②⑦.0.0.1",
        "017700000001",
        "0177.0.1",
        "0x7F.0x0.0x0.0x1",
        "00000177.0.0.1",
        "4294967295",
        "127.0.0.1.",
        "127.0.0.1%00.test",
        "[::127.0.0.1]",
        "[0:0:0:0:0:ffff:7f00:1]",
        "[2002:7f00:1::]",
        "[::ffff:0:7f00:1]",
        "[::1%25lo]",
        "localhost.localdomain",
        "ｌｏｃａｌｈｏｓｔ",
        "loc\u00adalhost",
    ],
)
async def test_a_real_server_on_loopback_is_never_reached(host):
    async with site(index={"text": "inside", "content_type": "text/plain"}) as (port, hits):
        got = await fetch(f"http://{host}:{port}/")
        assert got.is_error
        assert "inside" not in got.text
        assert hits == []


async def test_a_refusal_says_why():
    got = await fetch("http://169.254.169.254/latest/meta-data/")
    assert got.text.endswith("is refused: 169.254.169.254 is a link-local address")


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{inner}/",
        "//localhost:{inner}/",
        "http://[::ffff:7f00:1]:{inner}/",
        "http://2130706433:{inner}/",
        "http://0177.0.0.1:{inner}/",
        "http:\\\\127.0.0.1:{inner}/",
        "\\\\127.0.0.1:{inner}/",
        " http://127.0.0.1:{inner}/",
        "http://me:x@127.0.0.1:{inner}/",
        "HTTP://LOCALHOST:{inner}",
    ],
)
async def test_a_redirect_to_loopback_is_refused(target):
    async with site(index={"text": "inside", "content_type": "text/plain"}) as (inner, inner_hits):
        async with site(index=moved(target.format(inner=inner))) as (port, hits):
            got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert {hit.host.partition(":")[0] for hit in hits} == {"127.0.0.1"}  # the site itself, asked again at most
        assert inner_hits == []
        assert got.is_error
        assert "inside" not in got.text


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("http://169.254.169.254/latest/meta-data/", "169.254.169.254 is a link-local address"),
        ("http://[fd00:ec2::254]/", "fd00:ec2::254 is not a public address"),
        ("http://[64:ff9b::a9fe:a9fe]/", "64:ff9b::a9fe:a9fe is not a public address"),
        ("http://[2002:a9fe:a9fe::1]/", "is not a public address"),
        ("http://[::ffff:10.0.0.1]/", "is not a public address"),
        ("http://100.100.100.200/", "is not a public address"),
        ("file:///etc/passwd", "only http:// and https://"),
        ("gopher://127.0.0.1:6379/_INFO", "only http:// and https://"),
        ("data:text/plain,inside", "only http:// and https://"),
        ("javascript:alert(1)", "only http:// and https://"),
    ],
)
async def test_a_redirect_elsewhere_than_to_a_public_site_is_refused(status, target, says):
    async with site(index=moved(target, status)) as (port, hits):
        got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert got.is_error
        assert says in got.text
        assert len(hits) == 1


async def test_a_chain_of_redirects_that_ends_inside_is_refused():
    async with site(index={"text": "inside"}) as (inner, inner_hits):
        routes = {"index": moved("/a"), "a": moved("/b", 307), "b": moved(f"http://127.0.0.1:{inner}/")}
        async with site(**routes) as (port, hits):
            got = await fetch(f"http://127.0.0.1:{port}/", [f"127.0.0.1:{port}"])
        assert (len(hits), len(inner_hits)) == (3, 0)
        assert "is a loopback address" in got.text


async def test_the_allow_list_counts_port_and_host():
    async with site(index={"text": "inside", "content_type": "text/plain"}) as (port, hits):
        for allow in ([f"127.0.0.1:{port + 1}"], [f"localhost:{port}"], [f"8.8.8.8:{port}"]):
            assert (await fetch(f"http://127.0.0.1:{port}/", allow)).is_error
        assert hits == []
        assert not (await fetch(f"http://localhost:{port}/", [f"LocalHost:{port}"])).is_error


@pytest.mark.parametrize(
    "url",
    [
        "http://allowed.test:{port}@127.0.0.1:{other}/",
        "http://127.0.0.1:{other}\\@allowed.test:{port}/",
        "http://127.0.0.1:{other}#@allowed.test:{port}/",
        "http://127.0.0.1:{other}?@allowed.test:{port}/",
        "http://allowed.test:{port} @127.0.0.1:{other}/",
    ],
)
async def test_the_allow_list_is_asked_about_the_site_that_is_connected_to(url):
    async with site(index={"text": "inside", "content_type": "text/plain"}) as (other, hits):
        got = await fetch(url.format(port=80, other=other), ["allowed.test:80"], Resolver(["127.0.0.1"]))
        assert got.is_error
        assert hits == []


async def test_a_name_that_resolves_to_loopback_is_refused():
    async with site(index={"text": "inside", "content_type": "text/plain"}) as (port, hits):
        resolver = Resolver(["127.0.0.1"])
        got = await fetch(f"http://innocent.test:{port}/", resolver=resolver)
        assert resolver.asked == ["innocent.test"]
        assert "127.0.0.1 is a loopback address" in got.text
        assert hits == []


async def test_rebinding_between_look_up_and_connection_is_no_way_in():
    """The first answer would be public; whatever is answered later, the address connected to is the one checked."""
    async with site(index={"text": "inside", "content_type": "text/plain"}) as (port, hits):
        resolver = Resolver(["127.0.0.1"], ["8.8.8.8"])
        assert (await fetch(f"http://rebinding.test:{port}/", resolver=resolver)).is_error
        assert len(resolver.asked) == 1  # one look-up for one connection: no second one to be told otherwise
        mixed = Resolver(["127.0.0.1", "::1", "64:ff9b::7f00:1"])
        assert "refused" in (await fetch(f"http://mixed.test:{port}/", resolver=mixed)).text
        assert hits == []


@pytest.mark.parametrize(
    "address",
    ["::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "0.0.0.0", "::", "169.254.169.254",
     "fe80::1", "fd00:ec2::254", "10.0.0.1", "192.168.0.1"],
)  # fmt: skip
async def test_a_name_that_resolves_to_a_private_address_in_any_dress_is_refused(address):
    async with site(index={"text": "inside"}) as (port, hits):
        got = await fetch(f"http://innocent.test:{port}/", resolver=Resolver([address]))
        assert "is refused: " in got.text
        assert hits == []


async def test_rebinding_between_two_fetches_is_no_way_in():
    """Nothing is kept from one fetch to the next: what a name was does not count."""
    async with site(index={"text": "inside"}) as (port, hits):
        resolver = Resolver(["192.0.2.1"], ["127.0.0.1"])
        tool = web_fetch_tool(resolver=resolver)
        for _ in range(2):
            got = await run_tool(tool, {"url": f"http://rebinding.test:{port}/"})
            assert "is refused: " in got.text
        assert resolver.asked == ["rebinding.test"] * 2
        assert hits == []


async def test_rebinding_between_redirects_is_no_way_in():
    """An allowed name sends us to a name of its own that now resolves to loopback."""
    async with site(index=moved("http://other.test:{}/"), x={}) as (port, hits):

        async def away(request):
            return web.Response(**moved(f"http://other.test:{port}/secret"))

        async with site(index=away, secret={"text": "inside"}) as (front, front_hits):
            resolver = Resolver(["127.0.0.1"])
            got = await fetch(f"http://front.test:{front}/", [f"front.test:{front}"], resolver)
            assert front_hits[0].headers["Host"] == f"front.test:{front}"
        assert resolver.asked == ["front.test", "other.test"]
        assert "refused" in got.text
        assert hits == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file:///etc/passwd", "only http:// and https://"),
        ("gopher://127.0.0.1/", "only http:// and https://"),
        ("FILE:///etc/passwd", "only http:// and https://"),
        ("ftp://127.0.0.1/", "only http:// and https://"),
        ("dict://127.0.0.1:11211/stat", "only http:// and https://"),
        ("unix:/var/run/docker.sock", "only http:// and https://"),
        ("data:text/html,x", "only http:// and https://"),
        ("http+unix://%2Fvar%2Frun%2Fdocker.sock/", "only http:// and https://"),
        ("view-source:http://127.0.0.1/", "only http:// and https://"),
        ("example", "only http:// and https://"),
        ("", "only http:// and https://"),
        ("http://", "names no host"),
        ("http:///x", "names no host"),
        ("http://a.test:99999/", "not a valid URL"),
        ("http://user:hunter2@a.test/", "user name"),
        ("http://a.test/" + "x" * 5_000, "characters"),
        ("http://[::1", "not a valid URL"),
    ],
)
async def test_bad_urls_are_refused_before_any_look_up(url, says):
    resolver = Resolver(["127.0.0.1"])
    got = await fetch(url, resolver=resolver)
    assert got.is_error
    assert says in got.text
    assert "hunter2" not in got.text
    assert resolver.asked == []


@pytest.mark.parametrize("text", ["host", "host:", ":80", "http://host:80", "host:80/x", "host:port", ""])
def test_allow_list_entries_of_another_form_are_refused(text):
    with pytest.raises(UsageError, match="host:port"):
        web_fetch_tool([text])


def test_allow_list_entries():
    assert Site.parse("[::1]:80") == Site("::1", 80)
    assert Site.parse("Intra.Example.:8080") == Site("intra.example", 8080)
