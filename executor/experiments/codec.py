"""Outcomes, grades, tasks, arms and recorded answers as plain JSON data, for the lines of a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from planner.plan import Plan
from registry.messages import Usage, money

from .types import Arm, Cell, Grade, Outcome, RecordedAnswer, Task


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain JSON data, money as text; `outcome_from_json` reads it back."""
    return {
        **_cell(outcome.cell),
        "status": outcome.status,
        "answer": outcome.answer,
        "error": outcome.error,
        "error_code": outcome.error_code,
        "cost_usd": money(outcome.cost),
        "usage": None if outcome.usage is None else outcome.usage.to_json(),
        "by_role": {name: usage.to_json() for name, usage in outcome.by_role.items()},
        "by_model": {name: usage.to_json() for name, usage in outcome.by_model.items()},
        "latency": outcome.latency,
        "rounds": outcome.rounds,
        "steps": outcome.steps,
        "failed_steps": outcome.failed_steps,
        "models": dict(outcome.models),
        "escalated": outcome.escalated,
        "cached_calls": outcome.cached_calls,
        "recorded_score": outcome.recorded_score,
        "job_id": outcome.job_id,
        "spent_usd": money(outcome.spent_usd),
        "spent_tokens": outcome.spent_tokens,
    }


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """Reads what `outcome_to_json` wrote."""
    usage = data["usage"]
    return Outcome(
        _cell_of(data),
        data["status"],
        data["answer"],
        data["error"],
        data["error_code"],
        _money(data["cost_usd"]),
        None if usage is None else Usage.from_json(usage),
        {name: Usage.from_json(part) for name, part in data["by_role"].items()},
        {name: Usage.from_json(part) for name, part in data["by_model"].items()},
        data["latency"],
        data["rounds"],
        data["steps"],
        data["failed_steps"],
        data["models"],
        data["escalated"],
        data["cached_calls"],
        data["recorded_score"],
        data["job_id"],
        _money(data["spent_usd"]),
        data["spent_tokens"],
    )


def grade_to_json(grade: Grade) -> dict[str, Any]:
    """A grade as plain JSON data, money as text; `grade_from_json` reads it back."""
    return {
        **_cell(grade.cell),
        "score": grade.score,
        "reason": grade.reason,
        "details": dict(grade.details),
        "cost_usd": money(grade.cost),
    }


def grade_from_json(data: Mapping[str, Any]) -> Grade:
    """Reads what `grade_to_json` wrote."""
    return Grade(_cell_of(data), data["score"], data["reason"], data["details"], _money(data["cost_usd"]))


def task_to_json(task: Task) -> dict[str, Any]:
    """A task as a line of a tasks' file; `task_from_json` reads it back."""
    plan = {} if task.plan is None else {"plan": task.plan.to_json()}
    target = {} if task.target is None else {"target": task.target}
    return {"id": task.id, "input": task.input, **target, "metadata": dict(task.metadata), **plan}


def task_from_json(data: Mapping[str, Any]) -> Task:
    """Reads what `task_to_json` wrote."""
    plan = data.get("plan")
    read = None if plan is None else Plan.from_json(plan)
    return Task(data["id"], data["input"], data.get("target"), data.get("metadata", {}), read)


def arm_to_json(arm: Arm) -> dict[str, Any]:
    """An arm as plain JSON data."""
    return {
        "name": arm.name, "kind": arm.kind, "mode": arm.mode, "options": dict(arm.options), "routing": arm.routing,
        "among": list(arm.among), "checker": arm.checker,
    }  # fmt: skip


def answer_to_json(answer: RecordedAnswer) -> dict[str, Any]:
    """A recorded answer as plain JSON data, money as text; `answer_from_json` reads it back."""
    return {
        "text": answer.text,
        "score": answer.score,
        "cost": money(answer.cost),
        "latency": answer.latency,
        "confidence": answer.confidence,
    }


def answer_from_json(data: Mapping[str, Any]) -> RecordedAnswer:
    """Reads what `answer_to_json` wrote."""
    return RecordedAnswer(data["text"], data["score"], _money(data["cost"]), data["latency"], data["confidence"])


def _cell(cell: Cell) -> dict[str, Any]:
    return {"arm": cell.arm, "task": cell.task, "repeat": cell.repeat}


def _cell_of(data: Mapping[str, Any]) -> Cell:
    return Cell(data["arm"], data["task"], data["repeat"])


def _money(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
