"""The JSON Schemas of what planner, analyzer and router ask for. Every array and text has a bound: models that decode
under a grammar otherwise may run on until the output limit."""

from __future__ import annotations

from typing import Any

ID_CHARS = 60
TASK_CHARS = 2_000
SHORT_MAX_STEPS = 6


def plan_schema(max_steps: int, task_chars: int = TASK_CHARS) -> dict[str, Any]:
    """The schema of a plan."""
    return _object({"steps": _steps(max_steps, task_chars)})


def replan_schema(
    max_steps: int, finished: int, task_chars: int = TASK_CHARS, *, may_rest: bool = False
) -> dict[str, Any]:
    """The schema of a change to a plan of which `finished` steps may be kept; `may_rest`: it may add no step."""
    keep = {"type": "array", "items": _text(ID_CHARS), "maxItems": max(1, finished)}
    return _object({"keep": keep, "steps": {**_steps(max_steps, task_chars), "minItems": 0 if may_rest else 1}})


def verdict_schema() -> dict[str, Any]:
    """The schema of a verdict."""
    return _object(
        {
            "reasoning": _text(4_000),
            "achieved": {"type": "boolean"},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            "final_answer": _text(20_000),
        }
    )


def route_schema() -> dict[str, Any]:
    """The schema of a route."""
    return _object(
        {
            "mode": {"type": "string", "enum": ["react", "dag"]},
            "domain_hint": {"type": ["string", "null"], "enum": ["legal", "medical", "financial", None]},
        }
    )


def check_schema() -> dict[str, Any]:
    """The schema of a second look at a result."""
    return _object({"feedback": _text(4_000), "passed": {"type": "boolean"}})


def citations_schema(count: int) -> dict[str, Any]:
    """The schema of what a check of `count` citations found."""
    number = {"type": "integer", "minimum": 1, "maximum": count}
    item = _object({"number": number, "reason": _text(500)})
    return _object({"unsupported": {"type": "array", "items": item, "maxItems": count}})


def _steps(max_steps: int, task_chars: int) -> dict[str, Any]:
    step = _object(
        {
            "id": _text(ID_CHARS),
            "task": _text(task_chars),
            "dependencies": {"type": "array", "items": _text(ID_CHARS), "maxItems": max_steps},
            "tool_hint": {**_text(ID_CHARS), "type": ["string", "null"]},
            "model_hint": {**_text(ID_CHARS), "type": ["string", "null"]},
        },
        optional=("tool_hint", "model_hint"),
    )
    return {"type": "array", "items": step, "minItems": 1, "maxItems": max_steps}


def _text(max_chars: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": max_chars}


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
