"""Who asks: an API key, which is a tenant; without any key the machine itself, and nobody else."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from executor.store.keys import Key, Proof, proof_of

from .guard import exchange_of
from .keyring import Keyring
from .problems import ProblemError

COOKIE = "dagwright_session"

_bearer = HTTPBearer(auto_error=False, scheme_name="bearer", description="An API key")
_header = APIKeyHeader(name="x-api-key", auto_error=False, scheme_name="x-api-key", description="An API key")
_cookie = APIKeyCookie(name=COOKIE, auto_error=False, scheme_name="session", description="What /v1/session gave")
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]+))(?::\d+)?")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `tenant` is the key's id, '' where the service has no keys."""

    tenant: str
    key: Key | None = None
    session: str | None = None


async def caller(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    header: Annotated[str | None, Depends(_header)],
    cookie: Annotated[str | None, Depends(_cookie)],
) -> Caller:
    """Who asks. Raises the problems 401, 403 and 429."""
    secret = (bearer.credentials if bearer is not None else None) or header
    proof = proof_of(secret or None, cookie)
    asker = await keyring(request).asker(proof)
    if asker.key is None and (asker.configured or secret):
        raise _unauthorized(given=bool(secret or cookie))
    if not asker.configured:
        from_here(request)
    if secret is None:
        same_origin(request)
    _end_with(request, None if asker.key is None else proof)
    if asker.key is None:
        return Caller("")
    request.app.state.requests.count(asker.key)
    return Caller(asker.key.id, asker.key, None if secret else cookie)


async def tenant(who: Annotated[Caller, Depends(caller)]) -> str:
    """Whose objects the request is about: the key's id, '' where the service has no keys."""
    return who.tenant


def keyring(request: Request) -> Keyring:
    """What is known of the service's keys."""
    found: Keyring = request.app.state.keyring
    return found


def _end_with(request: Request, proof: Proof | None) -> None:
    """The request ends when what it was let in with is no longer valid (None: when the first key is made)."""
    exchange, watch = exchange_of(request), request.app.state.watch
    exchange.held.enter_context(watch.over(proof, partial(exchange.end, _unauthorized(given=proof is not None))))


def _unauthorized(*, given: bool) -> ProblemError:
    detail = "this key is not valid" if given else "send an API key: `Authorization: Bearer KEY` or `x-api-key: KEY`"
    return ProblemError(
        401, "unauthorized", "An API key is needed", detail, headers={"WWW-Authenticate": 'Bearer realm="dagwright"'}
    )


def from_here(request: Request) -> None:
    """Without keys only this machine may ask, under its own name: a page of somebody's that points its own name at
    127.0.0.1 (DNS rebinding) has another one. Raises 403."""
    if request.client is not None and not is_loopback(request.client.host):
        raise _forbidden(
            "without API keys the service answers this machine only: `dagwright keys create NAME` makes one"
        )
    host = _HOST.fullmatch(request.headers.get("host", ""))
    if host is None or not is_loopback(host[1] or host[2]):
        raise _forbidden("without API keys the service must be called as localhost or 127.0.0.1")


def same_origin(request: Request) -> None:
    """What a browser sends by itself (a cookie, or nothing) must come from our own page. Raises 403."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in (None, "same-origin", "none"):
        raise _forbidden("requests of other sites' pages need an API key")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise _forbidden("requests of other sites' pages need an API key")


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _forbidden(detail: str) -> ProblemError:
    return ProblemError(403, "forbidden", "This is not allowed", detail)
