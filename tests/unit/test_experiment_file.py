"""The experiment's file: read strictly, each mistake told with its place."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from executor.experiments.cells import cells_of, in_order
from executor.experiments.experiment_file import experiment_of, read_experiment
from executor.experiments.types import Arm, Cell, Task
from registry.budget import Budget
from registry.errors import ConfigError

TASKS = [{"id": "a", "input": "1+1?", "target": 2}, {"id": "b", "input": "2+2?", "metadata": {"kind": "sums"}}]
WHOLE = """
[experiment]
name = "sums"
tasks = "tasks.jsonl"
repeats = 3
concurrency = 2
budget = "2usd"
seed = 7
reference = "weak"
cache = false
[grader]
use = "numeric"
tolerance = 0.01
[arms.weak]
mode = "react"
routing = "fixed:fast"
options = { max_iterations = 5 }
budget = "0.1usd"
roles = { smart = "large" }
[arms.cascade]
mode = "dag"
routing = "cascade"
sweep = { threshold = [0.3, 0.7], max_concurrency = [1, 2] }
"""


def values(**changes: Any) -> dict[str, Any]:
    """The least that an experiment needs, with these tables changed."""
    base: dict[str, Any] = {
        "experiment": {"name": "x", "tasks": TASKS},
        "grader": {"use": "exact"},
        "arms": {"one": {"routing": "fixed:fast"}},
    }
    return {**base, **changes}


def head(**changes: Any) -> dict[str, Any]:
    return values(experiment={"name": "x", "tasks": TASKS, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS), encoding="utf-8")
    (tmp_path / "e.toml").write_text(WHOLE, encoding="utf-8")
    return tmp_path


def test_a_whole_file(folder: Path) -> None:
    experiment = read_experiment(folder / "e.toml")
    assert (experiment.name, experiment.repeats, experiment.concurrency, experiment.seed) == ("sums", 3, 2, 7)
    assert (experiment.budget, experiment.reference, experiment.cache) == (Budget(usd=Decimal(2)), "weak", False)
    assert (experiment.grader.use, experiment.grader.options) == ("numeric", {"tolerance": 0.01})
    assert {task.id: (task.input, task.target, task.kind) for task in experiment.tasks} == {
        "a": ("1+1?", 2, None),
        "b": ("2+2?", None, "sums"),
    }
    weak, *swept = experiment.arms
    assert weak == Arm(
        "weak",
        "job",
        "react",
        {"max_iterations": 5, "routing": "fixed:fast", "roles": {"smart": "large"}, "budget": "0.1usd"},
        "fixed:fast",
    )
    assert [arm.name for arm in swept] == [
        "cascade[threshold=0.3,max_concurrency=1]",
        "cascade[threshold=0.3,max_concurrency=2]",
        "cascade[threshold=0.7,max_concurrency=1]",
        "cascade[threshold=0.7,max_concurrency=2]",
    ]
    assert swept[2].routing == {"use": "cascade", "threshold": 0.7}
    assert swept[2].options == {"routing": {"use": "cascade", "threshold": 0.7}, "max_concurrency": 1}


def test_recorded_arms_and_what_data_stands_for(folder: Path) -> None:
    (folder / "answers").mkdir()
    rows = "q,weak,strong\n1+1?,true,true\n2+2?,false,true\n"
    (folder / "answers" / "all.csv").write_text(rows, encoding="utf-8")
    text = """
[experiment]
name = "r"
data = "nowhere"
tasks = { file = "{data}/all.csv", input = "q" }
[grader]
use = "recorded"
[recorded.weak]
file = "{data}/*.csv"
input = "q"
score = "weak"
cost = 0.0004
[recorded.strong]
file = "{data}/*.csv"
input = "q"
score = "strong"
[arms.weak]
among = ["weak"]
[arms.cascade]
among = ["weak", "strong"]
routing = "cascade"
checker = 0.9
sweep = { checker = [0.5, 1] }
"""
    (folder / "r.toml").write_text(text, encoding="utf-8")
    experiment = read_experiment(folder / "r.toml", data=folder / "answers")
    assert [(arm.name, arm.kind, arm.among, arm.checker) for arm in experiment.arms] == [
        ("weak", "recorded", ("weak",), None),
        ("cascade[checker=0.5]", "recorded", ("weak", "strong"), 0.5),
        ("cascade[checker=1]", "recorded", ("weak", "strong"), 1.0),
    ]
    by_input = {task.input: experiment.recorded["weak"].answers[task.id].score for task in experiment.tasks}
    assert by_input == {"1+1?": 1.0, "2+2?": 0.0}
    assert experiment.source["experiment"]["data"] == str(folder / "answers")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"arm": {}}, "unknown key 'arm': did you mean 'arms'?"),
        (head(seeds=1), "[experiment] unknown key 'seeds': did you mean 'seed'?"),
        (head(name="a b"), "[experiment] name = 'a b': must be letters"),
        (head(repeats=0), "[experiment] repeats = 0: must be a whole number of repeats, at least 1"),
        (head(seed=True), "[experiment] seed = true: must be a whole number"),
        (head(cache="no"), "[experiment] cache = 'no': must be true or false"),
        (head(budget="much"), "[experiment] budget 'much': must be an amount"),
        (head(budget="10m"), "the run's budget limits money or tokens"),
        (head(reference="two"), "[experiment] reference = 'two': no arm has this name: there are one"),
        (head(tasks=[]), "there are no tasks in it"),
        (head(tasks=7), "[experiment] tasks = 7: must be a file of JSON lines"),
        (head(tasks="{data}/x"), "{data} is not known: set `data` in [experiment], or give --data PATH"),
        (head(tasks=[{"id": "a", "input": "x"}, {"id": "a", "input": "y"}]), "task 2: the id 'a' is that of"),
        (head(tasks=[{"id": "a", "inputs": "x"}]), "task 1: unknown key 'inputs': did you mean 'input'?"),
        (head(tasks=[{"id": "a", "input": " "}]), "task 1: input = ' ': must be the task's text"),
        (head(tasks=[{"input": "x"}]), "task 1: id = None: must be a text that no other task has"),
        (head(tasks=[{"id": "a", "input": "x", "metadata": 1}]), "metadata = 1: must be an object"),
        (head(tasks=[{"id": "a", "input": "x", "plan": {"steps": []}}]), "the plan is not valid"),
        (values(grader={}), "[grader] use is missing"),
        (values(arms={}), "the file needs at least one arm"),
        (values(arms={"a": 1}), "must be a table: [arms.a]"),
        (values(arms={"a": {"rooting": "x"}}), "[arms.a] unknown key 'rooting': did you mean 'routing'?"),
        (values(arms={"a": {"mode": "plan"}}), "[arms.a] mode = 'plan': must be one of auto, dag, react"),
        (values(arms={"a": {"checker": 0.5}}), "[arms.a] checker = 0.5: is for arms of recorded answers"),
        (values(arms={"a": {"options": {"max_itrations": 1}}}), "did you mean 'max_iterations'?"),
        (values(arms={"a": {"budget": "x"}}), "[arms.a] budget 'x': must be an amount"),
        (values(arms={"a": {"budget": "1usd", "options": {"budget": "1usd"}}}), "give it once"),
        (values(arms={"a": {"among": ["weak"]}}), "no answers of 'weak' are recorded: there is no [recorded.NAME]"),
        (values(arms={"a": {"among": ["weak"], "mode": "dag"}}), "[arms.a] mode = 'dag': is for arms that run jobs"),
        (values(arms={"a": {"sweep": {"threshold": 0.5}}}), "[arms.a.sweep] threshold = 0.5: must be a list of values"),
        (values(arms={"a": {"sweep": {}}}), "[arms.a] sweep = {}: must name a key and its values"),
        (values(arms={"a": {"sweep": {"threshold": [1, 1]}, "routing": "cascade"}}), "two arms are named"),
        (values(arms={"a": {"sweep": {"threshold": [1]}}}), "[arms.a]"),
    ],
)
def test_mistakes_are_told_with_their_place(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as wrong:
        experiment_of(given, base=tmp_path, path="e.toml")
    assert said in str(wrong.value)
    assert str(wrong.value).startswith("e.toml")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"id": "a", "input": "x"}\n{"id": "b"\n', "tasks.jsonl:2: not JSON"),
        ('{"id": "a", "input": "x", "target": NaN}\n', "tasks.jsonl:1: not JSON: NaN is no number"),
        ('{"id": "a", "input": "x"}\n\n[]\n', "tasks.jsonl:3: must be an object"),
        ('{"id": "a", "input": "x"}\n{"id": "a", "input": "y"}\n', "tasks.jsonl:2: the id 'a' is that of"),
        ("\n", "tasks.jsonl: there are no tasks in it"),
        (None, "tasks.jsonl: cannot be read"),
    ],
)
def test_mistakes_in_tasks_are_told_with_their_line(lines: str | None, said: str, folder: Path) -> None:
    if lines is None:
        (folder / "tasks.jsonl").unlink()
    else:
        (folder / "tasks.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(ConfigError) as wrong:
        read_experiment(folder / "e.toml")
    assert said in str(wrong.value)


@pytest.mark.parametrize(
    "given",
    [
        head(tasks="tasks.jsonl"),
        head(tasks={"file": "x.csv", "input": "q"}),
        head(data="/etc"),
        values(grader={"use": "os:system"}),
        values(recorded={"weak": {"file": "/etc/passwd"}}),
        values(arms={"a": {"routing": {"use": "learned", "file": "x"}}}),
        values(arms={"a": {"routing": "os:system"}}),
    ],
)
def test_who_is_not_trusted_names_no_file_and_no_module(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        experiment_of(given, base=None)


def test_without_files_all_stands_in_the_data() -> None:
    assert {task.id for task in experiment_of(values(), base=None).tasks} == {"a", "b"}


def test_the_order_is_the_seed_s_and_what_is_added_changes_nothing() -> None:
    tasks = [Task(str(number), "x") for number in range(40)]
    first = [task.id for task in in_order(tasks, 1)]
    assert first == [task.id for task in in_order(reversed(tasks), 1)]
    assert first != [task.id for task in in_order(tasks, 2)]
    more = [task.id for task in in_order([*tasks, Task("new", "x")], 1)]
    assert [name for name in more if name != "new"] == first


def test_cells_come_task_by_task_with_all_arms_at_once() -> None:
    given = head(repeats=2, tasks=[{"id": str(number), "input": "x"} for number in range(6)])
    given["arms"] = {"a": {}, "b": {}, "c": {}}
    cells = list(cells_of(experiment_of(given, base=None)))
    assert len(cells) == len(set(cells)) == 36
    assert {cell.repeat for cell in cells[:18]} == {1}
    blocks = [cells[start : start + 3] for start in range(0, 36, 3)]
    assert all(len({cell.task for cell in block}) == 1 for block in blocks)
    assert len({tuple(cell.arm for cell in block) for block in blocks}) > 1, "no arm always goes first"
    assert cells == list(cells_of(experiment_of(given, base=None)))
    assert isinstance(cells[0], Cell)


def test_a_limit_takes_the_first_of_the_seed_s_order() -> None:
    tasks = [{"id": str(number), "input": "x"} for number in range(20)]
    whole = experiment_of(head(tasks=tasks, seed=3), base=None)
    part = experiment_of(head(tasks=tasks, seed=3, limit=5), base=None)
    assert part.tasks == whole.tasks[:5]
