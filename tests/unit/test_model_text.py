"""Texts of models from public bug reports: each gives the value that was meant, or a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.extract import extract_json, parse_tool_arguments, parse_tool_text

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "model_text.jsonl").read_text(encoding="utf-8").splitlines()
]
ERROR = {"error": True}


def outcome(case: dict[str, Any]) -> Any:
    context, text = case["context"], case["input"]
    finish = context.get("finish_reason")
    try:
        if context["mode"] == "json":
            value = extract_json(text, context.get("schema"), finish)
            return ERROR if value is None else value
        if context["mode"] == "tool_arguments":
            return parse_tool_arguments(text, context["schema"], finish)
        return parse_tool_text(text, context["tools"], finish)
    except ValueError:
        return ERROR


def spelled(value: Any) -> str:
    """Exact comparison: 1, 1.0, "1" and true are four values."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    accepted = [spelled(value) for value in (case["expect"], *case.get("also_ok", []))]
    assert spelled(outcome(case)) in accepted, case["why"]
