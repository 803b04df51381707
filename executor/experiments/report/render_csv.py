"""The machine-readable twins of a report as CSV: a line per cell, and a line per arm."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from executor.experiments.types import Cell, Experiment, Grade, Outcome
from registry.messages import money

from .data import data_of
from .figures import printable
from .types import Report

COLUMNS = (
    "arm", "task", "kind", "repeat", "status", "score", "cost_usd", "cost_known", "latency_s", "cached_calls", "rounds",
    "steps", "failed_steps", "escalated", "models", "error_code", "grade_reason",
)  # fmt: skip
ARM_COLUMNS = (
    "arm", "kind", "mode", "routing", "tasks", "cells", "missing", "ungraded", "quality", "quality_low", "quality_high",
    "cost_usd", "cost_low", "cost_high", "cost_total", "cost_unknown_cells", "latency_p50_s", "latency_p95_s",
    "latency_cells", "replans", "failures", "escalated", "pgr", "pareto",
)  # fmt: skip

FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""How texts begin that spreadsheets take for formulas."""


def render_csv(experiment: Experiment, outcomes: Iterable[Outcome], grades: Iterable[Grade]) -> str:
    """A line per ended cell, by arm, task and repeat. An empty field is not known. `cost_usd` is exact; `cost_known`
    false: it lacks a part. After the named columns come each role's tokens, `tokens_ROLE_in` and `_out`."""
    grade_of = {grade.cell: grade for grade in grades}
    kinds = {task.id: task.kind for task in experiment.tasks}
    cells = [outcome for arm in data_of(experiment, outcomes, grade_of.values()).values() for outcome in arm.cells]
    roles = sorted({role for outcome in cells for role in outcome.by_role})
    tokens = [f"tokens_{role}_{way}" for role in roles for way in ("in", "out")]
    rows = (_row(outcome, grade_of, kinds, roles) for outcome in cells)
    return _csv((*COLUMNS, *tokens), rows)


def _row(
    outcome: Outcome, grade_of: Mapping[Cell, Grade], kinds: Mapping[str, str | None], roles: Sequence[str]
) -> list[Any]:
    cell, grade = outcome.cell, grade_of.get(outcome.cell)
    usages = [outcome.by_role.get(role) for role in roles]
    score = None if grade is None else grade.score
    return [
        cell.arm, cell.task, kinds.get(cell.task) or "", cell.repeat, outcome.status,
        "" if score is None else repr(float(score)),
        "" if outcome.cost is None else money(outcome.cost),
        "" if outcome.cost is None else str(outcome.known_cost is not None).lower(),
        "" if outcome.latency is None else repr(outcome.latency),
        outcome.cached_calls, outcome.rounds, outcome.steps, outcome.failed_steps, outcome.escalated,
        " ".join(f"{model}={count}" for model, count in sorted(outcome.models.items())),
        outcome.error_code or "", "" if grade is None else " ".join(grade.reason.split()),
        *(part for usage in usages for part in
          (("", "") if usage is None else (usage.input_tokens, usage.output_tokens))),
    ]  # fmt: skip


def render_arms_csv(report: Report) -> str:
    """A line per arm. An empty field is not known."""
    rows = []
    for arm in report.arms:
        quality = arm.quality or (None, None, None)
        cost = arm.cost
        money_of = (None,) * 5 if cost is None else (cost.mean, cost.low, cost.high, cost.total, cost.unknown)
        latency = arm.latency
        times = (None,) * 3 if latency is None else (latency.p50, latency.p95, latency.n)
        rows.append(
            [arm.name, arm.kind, arm.mode, arm.routing, arm.n_tasks, arm.n_cells, arm.missing, arm.ungraded, *quality,
             *money_of, *times, arm.replans, arm.failures, arm.escalated, arm.pgr, str(arm.pareto).lower()]
        )  # fmt: skip
    return _csv(ARM_COLUMNS, rows)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_tame(value) if isinstance(value, str) else value for value in row] for row in rows)
    return out.getvalue()


def _tame(text: str) -> str:
    """A text, whoever wrote it: one that a spreadsheet would take for a formula begins with an apostrophe, and what
    can't be seen is escaped, a carriage return say, which ends a line for some readers."""
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) else text
