"""Jobs: created, looked at, listed, spoken to, ended."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from agent.waits import ASKED
from executor.fork import Told
from executor.job_types import JobStatus
from executor.service.orders import fork_ordered, hash_of, invalid, ordered
from executor.service.problems import ProblemError, not_found
from executor.service.schemas import (
    DecisionIn,
    Empty,
    ForkIn,
    JobIn,
    JobOut,
    JobsOut,
    SentOut,
    TextIn,
)
from executor.service.state import database, jobs, offer, reply, reply_page, settings
from executor.service.talk import IdempotencyKey, OwnJob, Who, create, ended, say, until_ended
from executor.service.webhooks import check_url
from executor.store.database import cleaned
from executor.store.fold import end_cancelled, job_json, listed
from registry.errors import UsageError

router = APIRouter(tags=["jobs"])

Wait = Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds to wait for the end, 600 at most")]

MAX_FILTERS = 4


@router.post("/v1/jobs", status_code=202, summary="Create a job", responses={202: {"model": JobOut}})
async def create_job(
    request: Request, body: JobIn, who: Who, idempotency_key: IdempotencyKey = None, wait: Wait = 0
) -> Response:
    job = ordered(body, offer(request), settings(request))
    _reachable(body.webhook, request)
    row = await create(request, who, job, idempotency_key, hash_of("jobs", body))
    row = await until_ended(request, row, wait)
    shown = await job_json(database(request), row)
    return reply(shown, 202, {"Location": f"/v1/jobs/{row['id']}"})


def _reachable(webhook: str | None, request: Request) -> None:
    """Raises 422 where the job's end could never be told."""
    if webhook is not None:
        try:
            check_url(webhook, request.app.state.secrets)
        except UsageError as error:
            raise invalid("webhook_invalid", "The webhook can't be called", str(error), "webhook") from None


@router.get("/v1/jobs", summary="List jobs, newest first", responses={200: {"model": JobsOut}})
async def list_jobs(
    request: Request,
    who: Who,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The last job seen")] = None,
    status: Annotated[list[JobStatus] | None, Query(description="Only these")] = None,
    brief: Annotated[bool, Query(description="No plans, steps, answers; 2,000 characters of goals")] = False,
) -> Response:
    """Running jobs are listed without steps and answer. `metadata.KEY=VALUE` lists the jobs with this metadata."""
    rows, more = await jobs(request).page(
        who.tenant, limit=limit, after=after, statuses=status, metadata=_metadata(request), brief=brief
    )
    return reply_page([listed(row) for row in rows], more)


def _wanted(key: str) -> bool:
    return key.startswith("metadata.") and len(key) > len("metadata.")


def _metadata(request: Request) -> list[dict[str, Any]] | None:
    """What one of must stand in a job's metadata: each value as a text, and as the number or truth it may be."""
    found: list[dict[str, Any]] = [{}]
    filters = [(key[len("metadata.") :], value) for key, value in request.query_params.items() if _wanted(key)]
    if len(filters) > MAX_FILTERS:
        raise invalid("validation", "Too many filters", f"at most {MAX_FILTERS} are taken", "metadata")
    for key, value in filters:
        found = [{**one, key: meant} for one in found for meant in _meanings(value)]
    return [cleaned(one) for one in found] if filters else None


def _meanings(value: str) -> list[Any]:
    words: dict[str, Any] = {"true": True, "false": False, "null": None}
    if value in words:
        return [value, words[value]]
    if re.fullmatch(r"-?\d{1,15}", value):
        return [value, int(value)]
    if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", value):
        return [value, float(value)]
    return [value]


@router.get("/v1/jobs/{job_id}", summary="A job as it stands", responses={200: {"model": JobOut}})
async def get_job(request: Request, job: OwnJob) -> Response:
    return reply(await job_json(database(request), job))


@router.post("/v1/jobs/{job_id}/cancel", status_code=202, summary="End a job", responses={202: {"model": JobOut}})
async def cancel_job(request: Request, job: OwnJob, body: Empty | None = None) -> Response:
    """A job that nobody runs yet ends at once, another one within a second or so. Cancelling one that has ended
    changes nothing."""
    row = await jobs(request).cancel(job["tenant"], job["id"])
    if row is not None and row["owner"] is None:
        row = await end_cancelled(database(request), job["id"])
    row = await jobs(request).get(job["tenant"], job["id"])
    return reply(await job_json(database(request), row or job), 202)


@router.post("/v1/jobs/{job_id}/stop", status_code=202, summary="End with grace", responses={202: {"model": SentOut}})
async def stop_job(request: Request, job: OwnJob, body: Empty | None = None) -> Response:
    """What runs finishes, and the answer is made of what there is."""
    await say(database(request), job, "stop", {})
    return reply({"job": job["id"], "sent": "stop"}, 202)


@router.post("/v1/jobs/{job_id}/messages", status_code=202, summary="Say something to a running job",
             responses={202: {"model": SentOut}})  # fmt: skip
async def send_message(request: Request, job: OwnJob, body: TextIn) -> Response:
    if not body.text.strip():
        raise invalid("text_empty", "The message is empty", "say something", "text")
    await say(database(request), job, "message", {"text": body.text})
    return reply({"job": job["id"], "sent": "message"}, 202)


@router.post("/v1/jobs/{job_id}/approvals/{call_id:path}", status_code=202, summary="Decide a call that waits",
             responses={202: {"model": SentOut}})  # fmt: skip
async def decide(request: Request, job: OwnJob, call_id: str, body: DecisionIn, who: Who) -> Response:
    """404: no such call ever asked; 409: it has been decided, or the job has ended."""
    found = None
    if "\x00" not in call_id and len(call_id) <= 500:
        found = await database(request).row("fold.approval", job["id"], cleaned(call_id))
    if found is None:
        raise not_found("call", cleaned(call_id)[:100])
    if job["ended_at"] is not None:
        raise ended(job["id"])
    if found["status"] not in ASKED:
        raise ProblemError(409, "already_decided", "The call does not wait", f"the call was {found['status']}")
    decided_by = who.key.name if who.key is not None else "user"
    letter = {"call_id": call_id, "approve": body.approve, "reason": body.reason, "decided_by": decided_by}
    await say(database(request), job, "decide", letter)
    return reply({"job": job["id"], "sent": "decide"}, 202)


@router.post("/v1/jobs/{job_id}/fork", status_code=202, summary="Run a step of an ended job again",
             responses={202: {"model": JobOut}})  # fmt: skip
async def fork_job(
    request: Request, job: OwnJob, body: ForkIn, who: Who, idempotency_key: IdempotencyKey = None, wait: Wait = 0
) -> Response:
    """A new job with the plan of this one, its `parent`: the step runs again, then what depends on it; the other steps'
    results are kept. The plan is not changed, whatever comes of it."""
    told = Told.of(await database(request).rows("fork.told", job["id"]))
    new = fork_ordered(body, job, told, offer(request))
    _reachable(body.webhook, request)
    row = await create(request, who, new, idempotency_key, hash_of(f"jobs/{job['id']}/fork", body))
    row = await until_ended(request, row, wait)
    return reply(await job_json(database(request), row), 202, {"Location": f"/v1/jobs/{row['id']}"})
