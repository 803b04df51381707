"""Experiments in the database: batches whose items are cells, begun a few at a time within one budget.

All that a batch can do already, being counted, cancelled, expired and closed, is done by `executor.store.batches`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from registry.budget import Budget
from registry.messages import money

from .batches import BatchStore, NewBatch, claimed
from .database import Connection, Database, Row
from .jobs import new_id
from .queue import release
from .statements import statement

CHUNK = 250
"""Cells of one statement."""
READ = 100
"""Ended cells that are read at once: each may be large."""


@dataclass(frozen=True, slots=True)
class CellJob:
    """A cell that is a job: what it is asked, and which cell it is (arm, task, repeat). `line` is its place among all
    cells, from 1."""

    line: int
    cell: tuple[str, str, int]
    goal: str
    mode: str
    request: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewExperiment:
    """What an experiment is created from, beside its cells. `asked`: as it came; `shown`: what lists show of it;
    `cells` counts all of them, those of recorded arms among them. `budget`: what all together may cost."""

    name: str
    asked: Mapping[str, Any]
    shown: Mapping[str, Any]
    cells: int
    concurrency: int
    budget: Budget | None
    seconds: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    request_hash: bytes | None = None

    def batch(self) -> NewBatch:
        """The batch that its cells belong to."""
        return NewBatch("experiment", self.seconds, self.metadata, self.idempotency_key, self.request_hash, held=True)


class ExperimentStore:
    """The experiments of one database."""

    def __init__(self, database: Database) -> None:
        self.database, self.batches = database, BatchStore(database)

    async def create(self, tenant: str, new: NewExperiment, cells: Iterable[CellJob]) -> tuple[str, bool]:
        """Stores an experiment with its cells and begins the first of them, all or nothing; its id, and whether it is
        new. Raises IdempotencyError as `JobStore.create`, and whatever taking the cells raises."""
        experiment = new_id("experiment")
        usd, tokens = (None, None) if new.budget is None else (new.budget.usd, new.budget.tokens)
        async with self.database.transaction() as connection:
            known = await claimed(connection, tenant, experiment, new.batch())
            if known is not None:
                return known, False
            await connection.execute(
                statement("experiments.create"), experiment, new.name, json.dumps(new.asked), dict(new.shown),
                new.cells, new.concurrency, usd, tokens,
            )  # fmt: skip
            total = 0
            for chunk in _chunks(cells):
                await _add(connection, tenant, experiment, chunk)
                total += len(chunk)
            await connection.execute(statement("batches.set_total"), experiment, total)
            await release(connection, tenants=[tenant])
        return experiment, True

    async def get(self, tenant: str, experiment: str) -> dict[str, Any] | None:
        """A tenant's experiment in its public shape; None where there is none of this id."""
        row = await self.database.row("experiments.get", experiment, tenant)
        batch = None if row is None else await self.batches.get(tenant, experiment)
        return None if row is None or batch is None else _shown(row, batch)

    async def page(self, tenant: str, *, limit: int, after: str | None = None) -> tuple[list[dict[str, Any]], bool]:
        """A page of a tenant's experiments, newest first; and whether there are more."""
        rows = await self.database.rows("experiments.page", tenant, after, limit + 1)
        found = [await self.get(tenant, row["id"]) for row in rows[:limit]]
        return [one for one in found if one is not None], len(rows) > limit

    async def row(self, tenant: str, experiment: str) -> Row | None:
        """A tenant's experiment as it is stored, without what was asked and its report."""
        return await self.database.row("experiments.get", experiment, tenant)

    async def asked(self, experiment: str) -> Any:
        """The experiment as it was asked for, its keys in their order."""
        row = await self.database.row("experiments.asked", experiment)
        return None if row is None else json.loads(row["asked"])

    async def report(self, experiment: str) -> bytes | None:
        """The report that was kept, as JSON; None where there is none."""
        row = await self.database.row("experiments.report", experiment)
        return None if row is None or row["report"] is None else row["report"].encode()

    async def cells(self, experiment: str, *, limit: int, after: int = 0) -> tuple[list[Row], bool]:
        """The cells that are jobs, in their order, after a line; and whether there are more."""
        rows = await self.database.rows("experiments.cells", experiment, after, limit + 1)
        return list(rows[:limit]), len(rows) > limit

    async def not_yet_told(self, experiment: str) -> list[Row]:
        """Some of the cells that have ended and of which it does not stand yet what came of them."""
        return list(await self.database.rows("experiments.not_yet_told", experiment, READ))

    async def log_of(self, job: str) -> list[Row]:
        """A cell's events, without what is large in them."""
        return list(await self.database.rows("experiments.log_of", job))

    async def tell(self, outcomes: Mapping[str, Mapping[str, Any]]) -> None:
        """Keeps what came of cells, by their jobs; what stands there already stays."""
        await self.database.rows("experiments.tell", list(outcomes), [dict(one) for one in outcomes.values()])

    async def outcomes(self, experiment: str) -> AsyncIterator[dict[str, Any]]:
        """What came of the cells, in their order."""
        after = 0
        while rows := await self.database.rows("experiments.outcomes", experiment, after, CHUNK):
            after = rows[-1]["line"]
            for row in rows:
                yield row["outcome"]

    async def unreported(self, after: str = "") -> Row | None:
        """The next experiment all of whose cells have ended and that has no report yet."""
        return await self.database.row("experiments.unreported", after)

    async def keep_report(self, experiment: str, report: bytes | None, problem: Mapping[str, Any] | None) -> None:
        """Keeps the report of an experiment that has ended, as JSON, or why there can be none; the first one stays."""
        text = None if report is None else report.decode()
        await self.database.rows("experiments.keep_report", experiment, text, problem)


def _chunks(cells: Iterable[CellJob]) -> Iterator[list[CellJob]]:
    left = iter(cells)
    while chunk := list(islice(left, CHUNK)):
        yield chunk


async def _add(connection: Connection, tenant: str, experiment: str, cells: Sequence[CellJob]) -> None:
    await connection.execute(
        statement("experiments.add_cells"),
        tenant,
        experiment,
        [new_id() for _ in cells],
        [cell.line for cell in cells],
        [cell.goal for cell in cells],
        [cell.mode for cell in cells],
        [dict(cell.request) for cell in cells],
        [dict(cell.metadata) for cell in cells],
        [dict(zip(("arm", "task", "repeat"), cell.cell, strict=True)) for cell in cells],
    )


def _shown(row: Row, batch: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment in its public shape."""
    asked = {name: value for name, value in batch.items() if name not in ("mode", "counts")}
    spent = {"cost_usd": money(row["usd"]), "partial": row["partial"]}
    counts = batch["counts"]
    return {
        **asked,
        "name": row["name"],
        **row["shown"],
        "concurrency": row["concurrency"],
        "counts": {**counts, "running": row["running"], "recorded": row["cells"] - counts["total"]},
        "cells": row["cells"],
        "ended": row["cells"] - counts["processing"],
        "usage": spent,
        "budget_spent": row["spent_at"] is not None,
        "conclusion": row["conclusion"],
        "report_problem": row["report_problem"],
    }
