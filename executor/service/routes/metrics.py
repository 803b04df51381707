"""Figures for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from executor.service.figures import HttpFigures, ServiceFigures, page
from executor.service.state import database
from executor.service.talk import Who
from registry.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(request: Request, who: Who) -> Response:
    """`dagwright_service_…` is of the whole service, the same on every server; all else is of this process alone."""
    figures: HttpFigures = request.app.state.figures
    return Response(page(figures.registry, await ServiceFigures.read(database(request))), media_type=CONTENT_TYPE)
