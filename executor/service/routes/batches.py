"""Batches: thousands of goals in one request, their results line by line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.responses import Response, StreamingResponse

from executor.service.auth import Caller
from executor.service.batch_lines import Items
from executor.service.guard import LINES, is_json
from executor.service.problems import ProblemError, not_found
from executor.service.schemas import MAX_METADATA, Empty, MetadataValue, Out, Strict
from executor.service.state import database, offer, reply, reply_page, settings
from executor.service.talk import IdempotencyKey, Who, used_before
from executor.store.batches import BatchStore, EmptyBatchError, Item, Mode, NewBatch
from executor.store.database import cleaned
from executor.store.jobs import IdempotencyError

router = APIRouter(prefix="/v1/batches", tags=["batches"])

IN_MEMORY = 1 << 20
"""Bytes of a body that are held in memory; the rest goes to a temporary file."""
RESULTS = "application/jsonl"


class BatchIn(Strict):
    """A batch as one JSON object."""

    mode: Mode = Field(description="plan: plans only; run: whole jobs")
    requests: list[Any] = Field(min_length=1, description="As the lines of a JSONL body: see PlanLine and RunLine")
    metadata: dict[Annotated[str, Field(min_length=1, max_length=64)], MetadataValue] | None = Field(
        None, max_length=MAX_METADATA, description="Yours"
    )


class CountsOut(Out):
    """How many items are in which state, all of one moment; the first five make `total`."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int
    total: int


class BatchOut(Out):
    """A batch as it stands. `status` is in_progress, canceling or ended."""

    id: str
    mode: Mode
    status: str
    counts: CountsOut
    created_at: str
    expires_at: str
    cancelled_at: str | None
    ended_at: str | None
    metadata: dict[str, Any]


class BatchesOut(Out):
    """A page of batches, newest first; the next one begins `after` its last."""

    data: list[BatchOut]
    has_more: bool
    next: str | None


def _body() -> dict[str, Any]:
    """The two bodies that a batch may be made of, for the description."""
    batch = BatchIn.model_json_schema(ref_template="#/components/schemas/{model}")
    lines = {"type": "string", "description": "One object a line, each with custom_id and goal; `?mode=` is needed"}
    kinds = {"application/json": {"schema": batch}, **{kind: {"schema": lines} for kind in LINES[:2]}}
    return {"requestBody": {"required": True, "content": kinds}}


async def own_batch(request: Request, batch_id: str, who: Who) -> dict[str, Any]:
    """The caller's batch of the path. Raises 404."""
    found = None
    if batch_id.isascii() and batch_id.isprintable() and len(batch_id) <= 64:
        found = await BatchStore(database(request)).get(who.tenant, batch_id)
    if found is None or found["mode"] == "experiment":
        raise not_found("batch", cleaned(batch_id)[:64])
    return found


OwnBatch = Annotated[dict[str, Any], Depends(own_batch)]


@router.post("", status_code=202, summary="Create a batch", responses={202: {"model": BatchOut}}, openapi_extra=_body())
async def create_batch(
    request: Request,
    who: Who,
    mode: Annotated[Mode | None, Query(description="Of a JSONL body: plan or run")] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """A line that is no good is an item that has failed; a batch without any good one is refused.

    The body comes first, all of it, into a temporary file where it is large: a client that is slow keeps no connection
    to the database. Then its items are stored in one transaction.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    with SpooledTemporaryFile(max_size=IN_MEMORY) as body:
        digest = hashlib.sha256(f"{mode}\n{kind}\n".encode())
        async for piece in request.stream():
            digest.update(piece)
            body.write(piece)
        body.seek(0)
        batch, items = _batch(request, body, kind, mode)
        held = who.key is not None and who.key.limits.bound_work
        new = NewBatch(
            batch[0], settings(request).batch_hours * 3_600, cleaned(batch[1]), idempotency_key, digest.digest(), held
        )
        batch_id = await _created(request, who, new, items)
    request.app.state.upkeep.look()
    shown = await BatchStore(database(request)).get(who.tenant, batch_id)
    return reply(shown, 202, {"Location": f"/v1/batches/{batch_id}"})


@router.get("", summary="List batches, newest first", responses={200: {"model": BatchesOut}})
async def list_batches(
    request: Request,
    who: Who,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The last batch seen")] = None,
) -> Response:
    page, more = await BatchStore(database(request)).page(who.tenant, limit=limit, after=after)
    return reply_page(page, more)


@router.get("/{batch_id}", summary="A batch and its counts", responses={200: {"model": BatchOut}})
async def get_batch(batch: OwnBatch) -> Response:
    return reply(batch)


@router.get(
    "/{batch_id}/results",
    summary="The results so far, as JSON lines",
    response_class=StreamingResponse,
    responses={200: {"content": {RESULTS: {"schema": {"type": "string"}}}}},
)
async def get_results(request: Request, batch: OwnBatch) -> StreamingResponse:
    """One line for every item that has ended, whatever became of it, in any order: once the batch has ended for all."""
    lines = BatchStore(database(request)).results(batch["id"])
    return StreamingResponse(lines, media_type=RESULTS, headers={"Cache-Control": "no-cache"})


@router.post("/{batch_id}/cancel", status_code=202, summary="End a batch", responses={202: {"model": BatchOut}})
async def cancel_batch(request: Request, batch: OwnBatch, who: Who, body: Empty | None = None) -> Response:
    """What nobody has begun ends at once, what runs is asked to; results stay. Cancelling a batch that has ended
    changes nothing."""
    store = BatchStore(database(request))
    await store.cancel(who.tenant, batch["id"])
    return reply(await store.get(who.tenant, batch["id"]), 202)


def _batch(
    request: Request, body: IO[bytes], kind: str, mode: Mode | None
) -> tuple[tuple[Mode, dict[str, Any]], Iterator[Item]]:
    """Mode, metadata and the items of a body. Raises ProblemError."""
    if is_json(kind):
        whole = _whole(body.read())
        if mode is not None and mode != whole.mode:
            detail = f"the query says {mode}, the body {whole.mode}"
            raise ProblemError(422, "validation", "Two modes are given", detail, problems=[("mode", ["mode"], detail)])
        items = _items(request, whole.mode)
        return (whole.mode, dict(whole.metadata or {})), items.of_values(whole.requests)
    if mode is None:
        detail = "say what is to be done with JSON lines: ?mode=plan or ?mode=run"
        raise ProblemError(422, "validation", "The mode is missing", detail, problems=[("missing", ["mode"], detail)])
    return (mode, {}), _items(request, mode).of_lines(body)


def _items(request: Request, mode: Mode) -> Items:
    return Items(mode, offer(request), settings(request), request.app.state.secrets)


def _whole(body: bytes) -> BatchIn:
    try:
        return BatchIn.model_validate(json.loads(body))
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from None
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, "invalid_json", "The body is no JSON", f"the body is no valid JSON: {error}") from None


async def _created(request: Request, who: Caller, new: NewBatch, items: Iterable[Item]) -> str:
    store = BatchStore(database(request))
    with _told():
        known = await store.known(who.tenant, new)
        if known is not None:  # it is no new batch, whatever the limits say
            return known
        async with request.app.state.starts.start(who, batch=True):
            return (await store.create(who.tenant, new, items))[0]


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except IdempotencyError as error:
        raise used_before(error) from None
    except EmptyBatchError as error:
        problems = [(fault.code, [f"line {line}"], fault.detail) for line, fault in error.faults]
        detail = "; ".join(f"line {line}: {fault.detail}" for line, fault in error.faults[:3]) or "the body is empty"
        raise ProblemError(422, error.code, "No line of the batch is good", detail, problems=problems) from None
