"""The same plans by six ways of routing, over real HTTP, on models of stated quality: the report says what can be
worked out beforehand, and its closing sentence follows from the CSV."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.routing_plans import SKILLS, run
from executor.experiments.report.build import MARGIN
from tests.fakes.skilled import Skill, is_hard, is_right, plan_task, says_sure
from tests.support.sentence import expected_sentence

TASKS = 14


def items_of(task: dict) -> list[tuple[str, str]]:
    """What the steps of a task look up, each with the plan's hint."""
    steps = task["plan"]["steps"][:-1]
    return [(step["task"].removeprefix("Find the value of ").rstrip("."), step["model_hint"]) for step in steps]


def right(model: str, item: str) -> bool:
    return is_right(model, SKILLS[model], item)


def sure(item: str) -> bool:
    return says_sure("weak", SKILLS["weak"], item)


def expected(arm: str, task: dict) -> bool:
    """Whether the arm gets the sum right: it does where it gets each value right."""
    items = items_of(task)
    match arm:
        case "hint":
            return all(right("weak" if hint == "fast" else "strong", item) for item, hint in items)
        case "cascade":
            return all(
                right("weak" if says_sure("weak", SKILLS["weak"], item) else "strong", item) for item, _ in items
            )
        case _:
            return all(right(arm, item) for item, _ in items)


async def test_the_report_of_routed_plans(tmp_path: Path) -> None:
    assert await run(tmp_path, TASKS) == 0
    folder = tmp_path / "run"
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    arms = {arm["name"]: arm for arm in report["arms"]}
    assert list(arms) == ["strong", "weak", "hint", "cascade", "cascade-checked", "budget"]
    tasks = [plan_task(number) for number in range(TASKS)]
    for name in ("strong", "weak", "hint", "cascade"):
        assert arms[name]["quality"]["mean"] == pytest.approx(mean(expected(name, task) for task in tasks)), name
    assert arms["weak"]["cost"]["mean"] < arms["cascade"]["cost"]["mean"] < arms["strong"]["cost"]["mean"]
    assert arms["budget"]["statuses"] == {"completed": TASKS}
    assert arms["budget"]["cost"]["total"] / TASKS < 0.045
    assert all(arm["latency"]["n"] == TASKS for arm in arms.values())  # time stands beside quality and cost
    text = (folder / "report.csv").read_text(encoding="utf-8")
    unsure = sum(not sure(item) for task in tasks for item, _ in items_of(task))
    assert arms["cascade"]["escalated"] == unsure
    assert sum(int(row["escalated"]) for row in csv.DictReader(text.splitlines()) if row["arm"] == "cascade") == unsure
    sentence, told = expected_sentence(text, "strong", MARGIN), report["conclusion"]
    assert sentence["best"] == sentence["chosen"] == "cascade-checked"  # no cheaper one is shown to do as well
    assert told.startswith("Use cascade-checked, the best: ")
    assert "That cascade-checked is better than strong is not shown" in told
    nearest = re.search(r"the nearest, (\w+), is .*95 % jointly for 5 comparisons: ([+-][\d.]+) to ([+-][\d.]+)", told)
    assert nearest is not None
    ends = [max(-100, 100 * end) for end in sentence["interval"][nearest[1]]]
    assert [float(nearest[2]), float(nearest[3])] == pytest.approx(ends, abs=0.051)
    saved = re.search(r"it costs (\d+) % less than strong \[(\d+), (\d+)\]", told)
    assert saved is not None
    assert float(saved[1]) == pytest.approx(sentence["saved"], abs=0.51)
    # the report's bootstrap corrects for bias and skewness, which with few tasks is worth some points
    assert (float(saved[2]), float(saved[3])) == pytest.approx(sentence["saved_interval"], abs=4)


def test_hard_items_are_what_the_strong_model_is_for() -> None:
    weak, strong = SKILLS["weak"], SKILLS["strong"]
    assert isinstance(weak, Skill)
    items = [item for number in range(300) for item, _ in items_of(plan_task(number)) if is_hard(item)]
    assert mean(right("strong", item) for item in items) - mean(right("weak", item) for item in items) > 0.3
    assert strong.easy - weak.easy < 0.1
