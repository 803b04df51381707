"""Plans as planners write them: public failure cases, and the rules one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import PlanError, parse_plan

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "plans.jsonl").read_text().splitlines()]


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    context = case["context"]
    try:
        plan = parse_plan(case["input"], **context)
    except PlanError as error:
        return {"ok": False, "codes": [problem.code for problem in error.problems], "text": str(error)}
    return {"ok": True, "plan": plan}


def agrees(expect: dict[str, Any], got: dict[str, Any]) -> bool:
    if expect["ok"] != got["ok"]:
        return False
    if not expect["ok"]:
        text = got["text"]
        numbers = [str(expect[key]) for key in ("limit", "got") if key in expect]
        return (
            expect["error"] in got["codes"]
            and all(name in text for name in (*expect.get("names", ()), *numbers))
            and not any(name in text for name in expect.get("not_names", ()))
        )
    plan = got["plan"]
    if "steps_count" in expect:
        return len(plan.steps) == expect["steps_count"]
    steps = [step.to_json() for step in plan.steps]
    return (
        len(steps) == len(expect["steps"])
        and all(
            step[key] == value for step, want in zip(steps, expect["steps"], strict=True) for key, value in want.items()
        )
        and all(warning in plan.warnings for warning in expect.get("warnings", ()))
        and all(any(set(group) <= set(layer) for layer in plan.generations) for group in expect.get("concurrent", ()))
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_public_case(case: dict[str, Any]) -> None:
    got = outcome(case)
    assert any(agrees(expect, got) for expect in (case["expect"], *case.get("also_ok", ()))), got
