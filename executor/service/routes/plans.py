"""Plans without running them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from executor.service.orders import hash_of, ordered
from executor.service.problems import ProblemError
from executor.service.schemas import JobOut, PlannedOut, PlanningIn
from executor.service.state import database, offer, reply, settings
from executor.service.talk import IdempotencyKey, Who, create, until_ended
from executor.store.fold import job_json

router = APIRouter(tags=["plans"])

WAIT = 60.0
"""Seconds that the reply is held where the request does not say."""
OF_THE_REQUEST = ("plan_invalid", "context_length", "refusal", "content_filter", "budget_exceeded", "usage")
"""Why no plan came about, where another request would bring one; all else is the provider's side."""


@router.post(
    "/v1/plans",
    summary="Plan a goal, run nothing",
    responses={200: {"model": PlannedOut}, 202: {"model": JobOut, "description": "Not planned yet"}},
)
async def create_plan(
    request: Request,
    body: PlanningIn,
    who: Who,
    idempotency_key: IdempotencyKey = None,
    wait: Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds to wait, 600 at most")] = WAIT,
) -> Response:
    """The plan; where it is not there in time, 202 with the job that makes it."""
    job = ordered(body, offer(request), settings(request))
    row = await create(request, who, job, idempotency_key, hash_of("plans", body))
    row = await until_ended(request, row, wait)
    shown = await job_json(database(request), row)
    place = {"Location": f"/v1/jobs/{row['id']}"}
    if row["ended_at"] is None:
        return reply(shown, 202, place)
    if shown["plan"] is None or shown["status"] != "completed":
        code = shown.get("error_code") or "failed"
        status = 409 if shown["status"] == "cancelled" else 422 if code in OF_THE_REQUEST else 502
        raise ProblemError(status, code, "No plan was made", shown["error"], headers=place, job=row["id"])
    return reply({**shown["plan"], "job": row["id"], "usage": shown["usage"]}, 200, place)
