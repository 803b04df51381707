"""Plans as planners write them: public failure cases, and the rules one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import Plan, PlanError, PlanStep, parse_plan

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


def step(step_id: Any, *dependencies: Any, **more: Any) -> dict[str, Any]:
    return {"id": step_id, "task": "do it", "dependencies": list(dependencies), **more}


@pytest.mark.parametrize(
    ("value", "shape", "repair"),
    [
        ([step("a"), step("b", "a")], {"a": (), "b": ("a",)}, "bare_list:plan"),
        (step("a"), {"a": ()}, "bare_step:plan"),
        ({"output": {"result": [step("a")]}}, {"a": ()}, "wrapper:output"),
        ({"title": "My plan", "tasks": [step("a")]}, {"a": ()}, "wrapper:tasks"),
        ({"a": {"task": "x"}, "b": {"task": "y", "dependencies": ["a"]}}, {"a": (), "b": ("a",)}, "keyed_by_id:plan"),
        ([step(1.0), step(2, 1)], {"1": (), "2": ("1",)}, "numeric_id:1"),
        ([step("1"), step("2", "01"), step("3", "step 2")], {"1": (), "2": ("1",), "3": ("2",)}, "reference:01"),
        ([step("12-03"), step("12-04", "03")], {"12-03": (), "12-04": ("12-03",)}, "reference:03"),
        ([step("a"), step("b", {"id": "a"}, ["a"])], {"a": (), "b": ("a",)}, "doubled_dependency:b"),
        (
            [step("a"), step("b"), step("c") | {"dependencies": "a, b"}],
            {"a": (), "b": (), "c": ("a", "b")},
            "dependencies:c",
        ),
        (
            [step("a"), {"id": "b", "description": "x", "depends_on": "a"}],
            {"a": (), "b": ("a",)},
            "field_name:depends_on",
        ),
        (
            [step("a"), {"id": "b", "task": "x", "dependencies": [], "needs": ["a"]}],
            {"a": (), "b": ("a",)},
            "field_name:needs",
        ),
        ([step("none"), step("b", "None")], {"none": (), "b": ("none",)}, "reference:None"),
    ],
)
def test_shape_is_repaired_and_noted(value: Any, shape: dict[str, tuple[str, ...]], repair: str) -> None:
    plan = parse_plan(value)
    assert dict(plan.deps) == shape
    assert repair in plan.repairs


@pytest.mark.parametrize(
    ("value", "codes"),
    [
        ([step("a"), None], ["not_a_plan"]),
        ([step(True), step(None), step(""), step([1])], ["missing_id"] * 4),
        ([step("a"), step("a ")], ["duplicate_id"]),
        ([step(1), step("1")], ["duplicate_id"]),
        ([step("s1"), step("S1"), step("x", "s 1")], ["unknown_dependency"]),  # two could be meant
        ([step("a-1"), step("b-1", "1")], ["unknown_dependency"]),
        ([step("b-1", "1")], ["unknown_dependency"]),  # a repair never means the step itself
        ([step("a", {"b": True})], ["unknown_dependency"]),
        ([step("a", task="Step 3:"), step("b", task=["x", 1]), step("c", task="…")], ["empty_task"] * 3),
        ([step("x" * 300)], ["too_long"]),
        ([[step("a")], [step("b")]], ["not_a_plan"]),  # groups say an order: it must not be lost
        ({"left": [step("a")], "right": [step("b")]}, ["not_a_plan"]),
        ({"steps": []}, ["empty_plan"]),
        ([step("a", "b"), step("b", "a"), step("c", "c"), step("d", "x", task="")], None),
    ],
)
def test_meaning_is_not_guessed(value: Any, codes: list[str] | None) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(value)
    found = [problem.code for problem in caught.value.problems]
    assert sorted(found) == sorted(codes or ["cycle", "self_dependency", "unknown_dependency", "empty_task"])
    assert all(problem.message in str(caught.value) for problem in caught.value.problems)


def test_hints_that_mean_nothing_are_dropped_with_a_warning() -> None:
    steps = [step("a", tool_hint="web-search", model_hint="general"), step("b", tool_hint="fax", on_failure="explode")]
    plan = parse_plan(steps, tools=("web_search",), models=())
    assert [item.tool_hint for item in plan.steps] == ["web_search", None]
    assert [item.on_failure for item in plan.steps] == ["skip_dependents", "skip_dependents"]
    assert plan.warnings == ("unknown_tool:fax", "unknown_on_failure:explode")
    assert [item.tool_hint for item in parse_plan(steps).steps] == ["web-search", "fax"]  # None: not checked


def test_kept_steps_can_be_depended_on_but_not_replaced() -> None:
    plan = parse_plan([step("b", "A")], kept=("a",))
    assert (plan.kept, plan.steps[0].dependencies) == (("a",), ("a",))
    assert plan.generations == (("b",),)
    with pytest.raises(PlanError) as caught:
        parse_plan([step("a")], kept=("a",))
    assert caught.value.problems[0].code == "duplicate_id"


def test_huge_and_deep_values_are_refused_quickly() -> None:
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    for value in (deep, {"steps": deep}, [step("a", deep)], [1] * 500_000, [step("-" * 200_000, "-" * 200_000)]):
        with pytest.raises(PlanError) as caught:
            parse_plan(value)
        assert len(str(caught.value)) < 2_000


def test_pictures_of_a_plan_escape_what_the_model_wrote() -> None:
    plan = Plan("", (PlanStep('a"]', 'Say "hi"; drop\\'), PlanStep("b", "x", ('a"]',))))
    assert plan.mermaid().splitlines()[-1] == "    n1 --> n2"
    assert '"' not in plan.mermaid().splitlines()[1].removeprefix('    n1["').removesuffix('"]')
    assert 'n1 [label="a\\"]: Say \\"hi\\"; drop\\\\"];' in plan.dot()


def test_a_plan_made_by_hand_is_checked_on_request() -> None:
    with pytest.raises(PlanError) as caught:
        Plan("", (PlanStep("a", "x", ("b",)), PlanStep("b", "", ("a",)), PlanStep("b", "x"))).check()
    assert {problem.code for problem in caught.value.problems} >= {"duplicate_id", "empty_task"}
    assert PlanStep("b", "x", "s1").dependencies == ("s1",)  # type: ignore[arg-type]
