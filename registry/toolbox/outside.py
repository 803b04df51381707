"""Going out to addresses that others name: web pages of a model's choice, webhooks of a caller's.

The address is checked where the socket is made, so that it is the one connected to: whatever the URL's spelling, the
name server's answer or a redirect say. A fresh connector for each request keeps no look-ups and no connections.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from registry.errors import DagwrightError, UsageError
from registry.text import cut_end
from registry.threads import shared_pool
from registry.toolbox.addresses import blocked_networks, refusal

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver
    from yarl import URL

MAX_URL_CHARS = 4_000


class FetchError(DagwrightError, ValueError):
    """The page can't be fetched."""

    code = "fetch"


class _RefusedAddressError(OSError):
    """The address must not be connected to."""


@dataclass(frozen=True, slots=True)
class Site:
    """The host and port of a URL, as the allow-list has them."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Site:
        """Reads `host:port`, `[::1]:port` for IPv6. Raises UsageError."""
        try:
            parts = urlsplit(f"//{text}")
            host, port = (parts.hostname or "").rstrip(".").lower(), parts.port
        except ValueError:
            host, port = "", None
        if not host or port is None or parts.path:
            raise UsageError(f"the allow-list takes host:port, not {text!r}")
        return cls(host, port)


class Outside:
    """The public part of the network, and the sites of the allow-list `allow`, whose addresses are not checked.
    `resolver`: aiohttp's, for tests."""

    def __init__(self, allow: Iterable[str] = (), *, resolver: AbstractResolver | None = None) -> None:
        self._allow = frozenset(Site.parse(text) for text in allow)
        self._resolver = resolver

    @staticmethod
    async def prepare() -> None:
        """To be awaited before the first session: the list of networks imports a good deal."""
        await shared_pool().run(blocked_networks)

    @staticmethod
    def target(url: str) -> URL:
        """The URL as the client reads it: the allow-list must not be asked about another reading. Raises FetchError."""
        from yarl import URL

        if len(url) > MAX_URL_CHARS:
            raise FetchError(f"the URL has {len(url):,} characters, at most {MAX_URL_CHARS:,} are taken")
        if url.partition(":")[0].lower() not in ("http", "https"):
            raise FetchError(f"{shown(url)}: only http:// and https:// are fetched")
        try:
            target = URL(url)
        except ValueError as error:
            raise FetchError(f"{shown(url)} is not a valid URL: {error}") from None
        if not target.host:
            raise FetchError(f"{shown(url)} is not a valid URL: it names no host")
        if target.raw_user is not None or target.raw_password is not None:
            raise FetchError(f"{target.host}: a URL with a user name or password is not fetched")
        return target

    def session(self, target: URL, refused: list[str], headers: dict[str, str]) -> aiohttp.ClientSession:
        """A session for one request to `target`, without cookies and proxies. Where an address is not to be connected
        to, the request fails and the reason stands in `refused`."""
        import aiohttp

        return aiohttp.ClientSession(
            connector=self._connector(target, refused),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            trust_env=False,
            auto_decompress=True,
        )

    def _connector(self, target: URL, refused: list[str]) -> aiohttp.TCPConnector:
        import aiohttp

        site = Site((target.host or "").rstrip(".").lower(), target.port or 0)

        def make_socket(info: tuple[Any, ...]) -> socket.socket:
            family, kind, protocol, _, address = info
            if site not in self._allow and (why := refusal(address[0])):
                refused.append(f"{address[0]} is {why}")
                raise _RefusedAddressError(f"{address[0]} is {why}")
            return socket.socket(family, kind, protocol)

        return aiohttp.TCPConnector(
            resolver=self._resolver or aiohttp.ThreadedResolver(),
            use_dns_cache=False,
            force_close=True,
            socket_factory=make_socket,
        )


def reason(error: Exception) -> str:
    """An exception in words."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(url: str) -> str:
    """A URL as it is told: on one line, not too long."""
    return cut_end(" ".join(url.split()), 200)
