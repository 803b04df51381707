"""The local comparison's own parts: the scoring is fair and exact, and an interrupted run goes on."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planner import parse_plan

LOCAL = Path(__file__).parents[2] / "benchmarks" / "local"


@pytest.fixture(scope="module")
def common() -> Any:
    spec = importlib.util.spec_from_file_location("bench_local_common", LOCAL / "common.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("answer", "must", "must_not", "expected"),
    [
        ("Fay earns 57,250.", [57250], [], True),
        ("57 250 euros", [57250], [], True),
        ("157250", [57250], [], False),
        ("38.5 years", [38.5], [], True),
        ("38.50", [38.5], [], True),
        ("38", [38.5], [], False),
        ("about 9416.67 a month", [[9416.66, 9416.67]], [], True),
        ("Turin is 615,000 larger, at 847,000 against 232,000.", [615000], [], True),
        ("the difference is -24", [24], [], True),
        ("PAYMENTS", ["Payments"], ["Search"], True),
        ("Payments or Search", ["Payments"], ["Search"], False),
        ("Research", ["Search"], [], False),
        ("No, Portugal and Belgium", ["no", "Portugal"], ["yes"], True),
        ("I do not know", ["no"], [], False),
        (None, [5], [], False),
    ],
)
def test_right(common: Any, answer: str | None, must: list[Any], must_not: list[Any], expected: bool) -> None:
    assert common.right(answer, {"must": must, "must_not": must_not}) is expected


def step(name: str, *needs: str) -> dict[str, Any]:
    return {"id": name, "task": "do it", "dependencies": list(needs), "tool_hint": None, "model_hint": None}


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        ({"steps": [step("a"), step("b", "a")]}, None),
        ({"steps": [step("b", "a"), step("a")]}, None),
        ([step("a")], "no list of steps"),
        ({"steps": []}, "no list of steps"),
        ({"steps": [step("a"), step("a")]}, "an id twice"),
        ({"steps": [step("a", "z")]}, "an unknown dependency"),
        ({"steps": [step("a", "b"), step("b", "a")]}, "a cycle"),
        ({"steps": [step("a", "a")]}, "a cycle"),
        ({"steps": [{"id": "a", "task": " "}]}, "a step without id, task or list of dependencies"),
    ],
)
def test_strict_plan(common: Any, plan: Any, fault: str | None) -> None:
    assert common.strict_plan(plan) == fault
    if fault is None:
        assert parse_plan(plan).repairs == ()  # what is strictly right, ours takes as it is


def test_tools(common: Any) -> None:
    assert common.calculator("(418 + 77) / 5") == "99"
    assert common.calculator("0.1 + 0.2") == "0.3"
    assert common.calculator("57250 * 1.1") == "62975"
    for wrong in ("2 ** 9 ** 9", "__import__('os')", "1 / 0", "12%", "", "True + 1"):
        with pytest.raises((ValueError, ZeroDivisionError)):
            common.calculator(wrong)
    assert common.lookup(" fay ") == "Fay: team Design, age 47, city Lyon, salary 57250"
    with pytest.raises(ValueError, match="nothing is known"):
        common.lookup("Fay's salary")


def test_the_set_is_what_the_readme_says(common: Any) -> None:
    assert len(common.GOALS) == len(common.QUESTIONS) == 30
    assert sum(question["calls"] > 1 for question in common.QUESTIONS) == 20


def test_interrupted_record_goes_on(common: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "HERE", tmp_path)
    record = common.Record.load("arm")
    record.begin("q01")
    assert record.known({"ask": 1}) is None
    record.keep({"ask": 1}, raw="first")
    with record.path.open("a") as file:
        file.write('{"kind": "reply", "item": "q0')  # the process was killed here
    record = common.Record.load("arm")
    record.begin("q01")
    assert record.known({"ask": 1})["raw"] == "first"
    assert record.known({"ask": 1}) is None  # the second turn is another one
    record.keep({"ask": 1}, raw="second")
    record.finish(answer="x")
    lines = [json.loads(line) for line in record.path.read_text().splitlines()]
    assert [line.get("raw") for line in lines] == ["first", "second", None]
    assert common.Record.load("arm").outcomes["q01"]["answer"] == "x"
