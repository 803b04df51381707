"""A browser's session: a key is exchanged for a cookie that scripts can't read and other sites can't use."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from executor.service.auth import COOKIE, Caller
from executor.service.problems import ProblemError
from executor.service.schemas import Empty, SessionOut
from executor.service.state import reply
from executor.service.talk import Who
from executor.store.keys import SESSION_SECONDS, KeyStore

router = APIRouter(tags=["session"])


@router.get("/v1/session", summary="Whose session it is", responses={200: {"model": SessionOut}})
async def get_session(who: Who) -> Response:
    return reply(_shown(who))


@router.post("/v1/session", summary="Exchange a key for a cookie", responses={200: {"model": SessionOut}})
async def open_session(request: Request, who: Who, body: Empty | None = None) -> Response:
    """The key stands in a header, as ever. Without any key in the service there is nothing to exchange."""
    response = reply(_shown(who))
    if who.key is None:
        return response
    if who.session is not None:
        raise ProblemError(409, "session_open", "There is a session already", "send a key to open another one")
    keys: KeyStore = request.app.state.keys
    response.set_cookie(
        COOKIE,
        await keys.open_session(who.key),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
    )
    return response


@router.delete("/v1/session", summary="End the session", status_code=204)
async def close_session(request: Request, who: Who) -> Response:
    keys: KeyStore = request.app.state.keys
    if who.session is not None:
        await keys.close_session(who.session)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _shown(who: Caller) -> dict[str, str | None]:
    return {"tenant": who.tenant, "name": None if who.key is None else who.key.name}
