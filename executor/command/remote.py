"""A running service as the command talks to it: over HTTP, with a key where it has keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from registry.errors import DagwrightError, UsageError
from registry.redaction import know_secret

if TYPE_CHECKING:
    import aiohttp

    from executor.settings_model import Settings

KEY_VARIABLE = "DAGWRIGHT_API_KEY"
"""The environment variable with the key."""
PATIENCE = 120.0
"""Seconds that a service may be away, such as for its restart, before the command gives up."""
PAUSES = (0.2, 5.0)
"""Seconds between two tries: the first and the longest."""
IDLE = 60.0
"""Seconds without a byte after which a connection counts as lost."""


class ServiceError(DagwrightError):
    """The service said no."""

    code: ClassVar[str] = "service"

    def __init__(self, message: str, code: str, problems: Any = None) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the service's own
        self.problems = problems or []


class UnreachableError(DagwrightError):
    """The service can't be reached."""

    code: ClassVar[str] = "unreachable"


class Remote:
    """The service at an address. What fails on the way is tried again for `PATIENCE` seconds."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, url

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, key: str | None) -> AsyncIterator[Remote]:
        """A service, within the block."""
        import aiohttp

        know_secret(key)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=IDLE)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            yield cls(session, url.rstrip("/"))

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Callable[[], Any] | None = None,
        **query: str,
    ) -> dict[str, Any]:
        """The JSON of an answer. `body()` gives the body anew for each try: the request must do no harm when it comes
        twice. Raises ServiceError and UnreachableError."""
        lost = _losses()
        async for last in _tries():
            try:
                data = None if body is None else body()
                async with self._session.request(
                    method, self.url + path, headers=headers, data=data, params=query
                ) as answer:
                    if answer.status < 400:
                        found: dict[str, Any] = await answer.json()
                        return found
                    error = await _refusal(answer)
                if answer.status not in (429, 502, 503, 504) or last:
                    raise error
            except lost as error_:
                if last:
                    raise UnreachableError(self._away(error_)) from None
        raise AssertionError("the last try ends it")

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """An answer's body, piece by piece; not tried again. Raises ServiceError and UnreachableError."""
        try:
            async with self._session.get(self.url + path) as answer:
                if answer.status >= 400:
                    raise await _refusal(answer)
                async for piece in answer.content.iter_any():
                    yield piece
        except _losses() as error:
            raise UnreachableError(self._away(error)) from None

    def _away(self, error: Exception) -> str:
        why = str(error) or type(error).__name__
        return f"the service at {self.url} can't be reached: {why} (is `dagwright serve` running? see --url)"


def address(given: str | None, settings: Settings) -> str:
    """Where the service is: what was given, else where `serve` listens on this machine. Raises UsageError."""
    if given is None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.username or parts.password:
        raise UsageError(f"--url {given}: must be http://HOST:PORT or https://HOST; the key goes into {KEY_VARIABLE}")
    return given


async def _tries() -> AsyncIterator[bool]:
    """One item a try, with growing pauses between; whether it is the last one."""
    loop = asyncio.get_running_loop()
    end, pause = loop.time() + PATIENCE, PAUSES[0]
    while loop.time() < end:
        yield False
        await asyncio.sleep(pause)
        pause = min(2 * pause, PAUSES[1])
    yield True


def _losses() -> tuple[type[Exception], ...]:
    """What a connection that is lost raises."""
    import aiohttp

    return (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError, TimeoutError)


async def _refusal(answer: aiohttp.ClientResponse) -> ServiceError:
    """The problem that an answer tells."""
    import aiohttp

    try:
        told = await answer.json(content_type=None)
    except (aiohttp.ClientError, ValueError):
        told = None
    if not isinstance(told, dict):
        return ServiceError(f"the service answered {answer.status} {answer.reason or ''}".rstrip(), "service")
    detail = told.get("detail") or told.get("title") or answer.reason
    if answer.status == 401:
        detail = f"{detail} (the variable {KEY_VARIABLE} holds the key)"
    return ServiceError(str(detail), str(told.get("code", "service")), told.get("problems"))
