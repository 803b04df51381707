"""What jobs brought beside their answers: plans, and what tools made for the reader."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from executor.service.layout import MOST_ROUNDS, drawing
from executor.service.problems import ProblemError, not_found
from executor.service.schemas import ArtifactsOut, DrawingOut, PlanOut
from executor.service.state import database, reply
from executor.service.talk import OwnJob
from executor.store.database import cleaned
from planner.plan import Plan

router = APIRouter(tags=["jobs"])

SHOWN_INLINE = (
    "text/plain", "text/csv", "application/json", "application/pdf", "image/png", "image/jpeg", "image/gif",
    "image/webp",
)  # fmt: skip
"""Types that a browser may show: none of them runs anything."""
BINARY = "application/octet-stream"
DRAWN = {"mermaid": "text/vnd.mermaid", "dot": "text/vnd.graphviz"}
LONGEST_NAME = 500
"""Characters; no artifact has a longer name."""
PLAN: dict[int | str, dict[str, Any]] = {
    200: {"model": PlanOut | DrawingOut, "content": {kind: {"schema": {"type": "string"}} for kind in DRAWN.values()}}
}
FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}, "description": "The artifact"}
}


@router.get("/v1/jobs/{job_id}/plan", summary="A job's plan", responses=PLAN)
async def get_plan(
    request: Request,
    job: OwnJob,
    format: Literal["json", "mermaid", "dot", "layout"] = "json",
    round: Annotated[int | None, Query(ge=1, le=MOST_ROUNDS, description="Format layout: null is the last")] = None,
) -> Response:
    """404 where there is none (yet): the job is not planned, or one agent does it all. `layout` says where each step
    of a round is drawn: layers as `x`, places along them as `y`."""
    if format == "layout":
        return reply(await drawing(request, job, round))
    row = await database(request).row("fold.plan", job["id"])
    plan = row["payload"] if row is not None else job["request"].get("plan")
    if plan is None:
        raise ProblemError(404, "no_plan", "The job has no plan", "the job has no plan so far")
    if format == "json":
        return reply(plan)
    drawn = Plan.from_json(plan)
    text = drawn.mermaid() if format == "mermaid" else drawn.dot()
    kind = f"{DRAWN[format]}; charset=utf-8"
    return Response(text, headers={"Content-Type": kind, "X-Content-Type-Options": "nosniff"})


@router.get("/v1/jobs/{job_id}/artifacts", summary="What tools made", responses={200: {"model": ArtifactsOut}})
async def list_artifacts(request: Request, job: OwnJob) -> Response:
    """Their names, types and sizes in bytes."""
    rows = await database(request).rows("jobs.artifacts", job["id"], job["tenant"])
    return reply({"data": [dict(row) for row in rows]})


@router.get("/v1/jobs/{job_id}/artifacts/{name}", summary="An artifact", response_class=Response, responses=FILE)
async def get_artifact(request: Request, job: OwnJob, name: str) -> Response:
    """It can run nothing in a browser: what is more than a text or a picture is only downloaded."""
    row = None
    if len(name) <= LONGEST_NAME:
        row = await database(request).row("jobs.artifact", job["id"], job["tenant"], cleaned(name))
    if row is None:
        raise not_found("artifact", cleaned(name)[:100])
    kind = row["mime"].partition(";")[0].strip().lower()
    shown = kind in SHOWN_INLINE
    if not re.fullmatch(r"[\w.+-]+/[\w.+-]+", kind, re.ASCII):
        kind = BINARY
    place = f"{'inline' if shown else 'attachment'}; filename*=UTF-8''{quote(row['name'], safe='')}"
    headers = {
        "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
        "Content-Disposition": place,
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-store",
    }
    return Response(row["data"], headers=headers)
