"""Whether the service lives, and whether it can work."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from executor.service.state import database, reply
from executor.store.migrate import check

router = APIRouter(tags=["health"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> Response:
    return reply({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Whether the database can be reached and has this version's schema")
async def readyz(request: Request) -> Response:
    await check(database(request))
    return reply({"status": "ready"})
