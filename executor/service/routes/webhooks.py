"""What a receiver of webhooks needs to know."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from executor.service.problems import ProblemError
from executor.service.schemas import Out
from executor.service.state import reply
from executor.service.talk import Who
from executor.service.webhooks import Secrets

router = APIRouter(tags=["webhooks"])


class SecretOut(Out):
    """What the caller's webhooks are signed with (Standard Webhooks): nobody else's are."""

    secret: str


@router.get("/v1/webhooks/secret", summary="What your webhooks are signed with", responses={200: {"model": SecretOut}})
async def get_secret(request: Request, who: Who) -> Response:
    """404 where the service has none: then it sends no webhooks."""
    secrets: Secrets | None = request.app.state.secrets
    if secrets is None:
        raise ProblemError(404, "no_webhooks", "There are no webhooks", "the service is not set up to send webhooks")
    return reply({"secret": secrets.of(who.tenant)}, headers={"Cache-Control": "no-store"})
