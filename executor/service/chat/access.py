"""Who asks, where the client can't but send some key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from executor.service.auth import Caller, caller, keyring

_bearer = HTTPBearer(auto_error=False, scheme_name="bearer", description="An API key")
_header = APIKeyHeader(name="x-api-key", auto_error=False, scheme_name="x-api-key", description="An API key")


async def chat_caller(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    header: Annotated[str | None, Depends(_header)],
) -> Caller:
    """Who asks. Where the service has no keys, one that is sent all the same means nothing: OpenAI's clients don't
    work without one. Raises the problems 401, 403 and 429."""
    if not (await keyring(request).asker(None)).configured:
        bearer = header = None
    return await caller(request, bearer, header, None)


ChatCaller = Annotated[Caller, Depends(chat_caller)]
