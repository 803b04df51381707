"""Experiments: the same tasks by several arms, as jobs or from recorded answers, and a report of what came of them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from executor.results import rfc3339
from executor.service.experiment_orders import ExperimentIn, experiment_ordered
from executor.service.experiment_reports import Format, Reports
from executor.service.orders import hash_of
from executor.service.problems import not_found
from executor.service.schemas import Empty, Out
from executor.service.state import database, offer, reply, reply_page, settings
from executor.service.talk import IdempotencyKey, Who, is_id, used_before
from executor.store.experiments import ExperimentStore
from executor.store.jobs import IdempotencyError
from registry.messages import money

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])

KINDS: dict[Format, tuple[str, str]] = {
    "json": ("application/json", "json"),
    "csv": ("text/csv; charset=utf-8", "csv"),
    "html": ("text/html; charset=utf-8", "html"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
}
POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
"""Of a report in a browser: it has an origin of its own, runs nothing and loads nothing."""
REPORT: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind.partition(";")[0]: {"schema": {} if form == "json" else {"type": "string"}}
                      for form, (kind, _) in KINDS.items()}}
}  # fmt: skip


class ExperimentCountsOut(Out):
    """Cells that are jobs, by what became of them (the first five make `total`), those at work just now, and those of
    recorded arms, which are no jobs."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int
    total: int
    running: int
    recorded: int


class CostOut(Out):
    """USD as a decimal string; `partial`: a part of it is not known."""

    cost_usd: str | None
    partial: bool


class ExperimentOut(Out):
    """An experiment as it stands. `status` is in_progress, canceling or ended; `conclusion` is the report's, once all
    cells have ended; `report_problem` says why there is no report."""

    id: str
    name: str
    status: str
    arms: list[str]
    tasks: int
    repeats: int
    seed: int
    grader: str
    budget: str | None
    concurrency: int
    cells: int
    ended: int
    counts: ExperimentCountsOut
    usage: CostOut
    budget_spent: bool
    created_at: str
    expires_at: str
    cancelled_at: str | None
    ended_at: str | None
    conclusion: str | None
    report_problem: dict[str, Any] | None
    metadata: dict[str, Any]


class ExperimentsOut(Out):
    """A page of experiments, newest first; the next one begins `after` its last."""

    data: list[ExperimentOut]
    has_more: bool
    next: str | None


class CellOut(Out):
    """A cell that is a job."""

    line: int
    arm: str
    task: str
    repeat: int
    job: str
    status: str
    error_code: str | None
    cost_usd: str | None
    elapsed: float | None
    ended_at: str | None


class CellsOut(Out):
    """A page of cells, in the order in which they begin; the next one begins `after` its last line."""

    data: list[CellOut]
    has_more: bool
    next: int | None


async def own_experiment(request: Request, experiment_id: str, who: Who) -> dict[str, Any]:
    """The caller's experiment of the path. Raises 404."""
    found = None
    if is_id(experiment_id):
        found = await ExperimentStore(database(request)).get(who.tenant, experiment_id)
    if found is None:
        raise not_found("experiment", experiment_id[:64])
    if found["status"] == "ended" and found["conclusion"] is None and found["report_problem"] is None:
        request.app.state.upkeep.report_soon()
    return found


OwnExperiment = Annotated[dict[str, Any], Depends(own_experiment)]


@router.post("", status_code=202, summary="Create an experiment", responses={202: {"model": ExperimentOut}})
async def create_experiment(
    request: Request, body: ExperimentIn, who: Who, idempotency_key: IdempotencyKey = None
) -> Response:
    """Tasks by arms by repeats, with the keys of an experiment's file as JSON; tasks and recorded answers stand in it,
    nothing names a file or code of the server's. Each cell is a job of its own, a few at a time; arms of recorded
    answers need none."""
    digest = hash_of("experiments", body)
    new, cells = await asyncio.to_thread(
        experiment_ordered, body, offer(request), settings(request), idempotency_key, digest
    )
    store = ExperimentStore(database(request))
    try:
        known = await store.batches.known(who.tenant, new.batch())
        if known is None:
            rows = await asyncio.to_thread(list, cells)
            async with request.app.state.starts.start(who, batch=True):
                known, _ = await store.create(who.tenant, new, rows)
    except IdempotencyError as error:
        raise used_before(error) from None
    request.app.state.upkeep.look()
    return reply(await store.get(who.tenant, known), 202, {"Location": f"/v1/experiments/{known}"})


@router.get("", summary="List experiments, newest first", responses={200: {"model": ExperimentsOut}})
async def list_experiments(
    request: Request,
    who: Who,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The last one seen")] = None,
) -> Response:
    page, more = await ExperimentStore(database(request)).page(who.tenant, limit=limit, after=after)
    return reply_page(page, more)


@router.get("/{experiment_id}", summary="An experiment as it stands", responses={200: {"model": ExperimentOut}})
async def get_experiment(experiment: OwnExperiment) -> Response:
    return reply(experiment)


@router.get("/{experiment_id}/cells", summary="Its cells and their jobs", responses={200: {"model": CellsOut}})
async def list_cells(
    request: Request,
    experiment: OwnExperiment,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    after: Annotated[int, Query(ge=0, le=1_000_000_000, description="The last line seen")] = 0,
) -> Response:
    """Those that are jobs; arms of recorded answers have none."""
    rows, more = await ExperimentStore(database(request)).cells(experiment["id"], limit=limit, after=after)
    return reply_page([_cell(row) for row in rows], more, "line")


@router.get(
    "/{experiment_id}/report", summary="The report of what has ended", response_class=Response, responses=REPORT
)
async def get_report(request: Request, experiment: OwnExperiment, who: Who, format: Format = "json") -> Response:
    """409 where no cell has ended yet. It is made anew when cells have ended since, which takes seconds; the last one
    stays."""
    reports: Reports = request.app.state.reports
    made = await reports.report(who.tenant, experiment["id"], format)
    kind, ending = KINDS[format]
    place = "inline" if format in ("json", "html") else "attachment"
    headers = {
        "Content-Type": kind,
        "Content-Disposition": f'{place}; filename="{experiment["name"]}.{ending}"',
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "private, no-store",
    }
    return Response(made, headers=headers)


@router.post("/{experiment_id}/cancel", status_code=202, summary="End an experiment",
             responses={202: {"model": ExperimentOut}})  # fmt: skip
async def cancel_experiment(
    request: Request, experiment: OwnExperiment, who: Who, body: Empty | None = None
) -> Response:
    """What has not begun never does, what runs is asked to end; the report is of what has ended. Cancelling one that
    has ended changes nothing."""
    store = ExperimentStore(database(request))
    await store.batches.cancel(who.tenant, experiment["id"])
    return reply(await store.get(who.tenant, experiment["id"]), 202)


def _cell(row: Any) -> dict[str, Any]:
    ended = row["ended_at"]
    return {
        "line": row["line"],
        **row["cell"],
        "job": row["id"],
        "status": row["status"],
        "error_code": row["error_code"],
        "cost_usd": money(row["cost_usd"]),
        "elapsed": row["elapsed"],
        "ended_at": None if ended is None else rfc3339(ended.timestamp()),
    }
