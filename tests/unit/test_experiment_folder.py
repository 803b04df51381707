"""A run's folder: what is put in comes out again, half a line is none, and one process works in it at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.experiments.codec import (
    answer_from_json,
    answer_to_json,
    grade_from_json,
    grade_to_json,
    outcome_from_json,
    outcome_to_json,
    task_from_json,
    task_to_json,
)
from executor.experiments.experiment_file import experiment_of
from executor.experiments.folder import Folder
from executor.experiments.types import Cell, Experiment, Grade, Outcome, RecordedAnswer, Task
from executor.log.group_commit import WriteFailedError
from planner.plan import Plan, PlanStep
from registry.errors import ConfigError, UsageError
from registry.messages import Usage
from registry.whole_files import appendable

TEXT = st.text(max_size=20)
MONEY = st.none() | st.decimals(0, 1000, places=9)
SHARE = st.none() | st.floats(0, 1)
CELL = st.builds(Cell, TEXT, TEXT, st.integers(1, 9))
USAGE = st.builds(
    Usage, st.integers(0, 9**9), st.integers(0, 9**9), calls=st.integers(0, 99), cost=MONEY, partial=st.booleans()
)
OUTCOME = st.builds(
    Outcome,
    CELL,
    TEXT,
    TEXT,
    st.none() | TEXT,
    st.none() | TEXT,
    MONEY,
    st.none() | USAGE,
    st.dictionaries(TEXT, USAGE, max_size=2),
    st.dictionaries(TEXT, USAGE, max_size=2),
    SHARE,
    *[st.integers(0, 9)] * 3,
    st.dictionaries(TEXT, st.integers(1, 9), max_size=2),
    st.integers(0, 9),
    st.integers(0, 9),
    SHARE,
    st.none() | TEXT,
    MONEY,
    st.integers(0, 9**9),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT, lambda inner: st.lists(inner, max_size=2), max_leaves=4
)


def through(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(OUTCOME)
def test_outcomes_come_back(outcome: Outcome) -> None:
    assert outcome_from_json(through(outcome_to_json(outcome))) == outcome


@given(st.builds(Grade, CELL, SHARE, TEXT, st.dictionaries(TEXT, JSON, max_size=2), MONEY))
def test_grades_come_back(grade: Grade) -> None:
    assert grade_from_json(through(grade_to_json(grade))) == grade


@given(st.builds(RecordedAnswer, TEXT, SHARE, MONEY, SHARE, SHARE))
def test_recorded_answers_come_back(answer: RecordedAnswer) -> None:
    assert answer_from_json(through(answer_to_json(answer))) == answer


@given(st.builds(Task, TEXT, TEXT, JSON, st.dictionaries(TEXT, JSON, max_size=2)))
def test_tasks_come_back(task: Task) -> None:
    assert task_from_json(through(task_to_json(task))) == task


def test_a_task_s_plan_comes_back() -> None:
    plan = Plan("goal", (PlanStep("a", "do"), PlanStep("b", "do more", ("a",), on_failure="continue")))
    assert task_from_json(through(task_to_json(Task("t", "x", plan=plan)))).plan == plan


# The folder


HEAD = ("seed", "repeats", "name", "concurrency", "budget")


def experiment(*, tasks: int = 3, **changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "experiment": {
            "name": "x",
            "tasks": [{"id": str(number), "input": f"question {number}"} for number in range(tasks)],
            **{key: value for key, value in changes.items() if key in HEAD},
        },
        "grader": {"use": changes.get("grader", "exact")},
        "recorded": {"weak": {"rows": [{"id": str(n), "score": changes.get("score", 1)} for n in range(tasks)],
                              "id": "id", "score": "score"}},
        "arms": {"weak": {"among": ["weak"]}, **changes.get("arms", {"job": {"mode": "react"}})},
    }  # fmt: skip
    return experiment_of(values, base=None)


def outcome(task: int, arm: str = "weak") -> Outcome:
    return Outcome(Cell(arm, str(task), 1), "completed", "42", cost=Decimal("0.1"))


def test_a_folder_is_whole_by_itself(tmp_path: Path) -> None:
    made = experiment()
    folder = Folder.create(tmp_path / "run", made)
    with folder.locked():
        folder.append(outcome(0), outcome(1))
        folder.append(outcome(2))
    folder.put_grades([Grade(Cell("weak", "0", 1), 1.0)])
    again = Folder.open(tmp_path / "run")
    assert again.experiment.tasks == made.tasks
    assert again.experiment.arms == made.arms
    assert again.experiment.recorded == made.recorded
    assert again.outcomes() == [outcome(0), outcome(1), outcome(2)]
    assert again.grades() == [Grade(Cell("weak", "0", 1), 1.0)]
    assert again.key == folder.key
    assert len(again.key) == 32
    assert (tmp_path / "run" / "experiment.json").stat().st_mode & 0o077 == 0, "it has the key"
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0, "it has all that was said"


def test_a_folder_is_made_once_and_opened_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no run's folder"):
        Folder.open(tmp_path)
    Folder.create(tmp_path, experiment())
    with pytest.raises(UsageError, match="has a run in it already"):
        Folder.create(tmp_path, experiment())


@given(cut=st.integers(0, 400))
def test_a_line_that_was_cut_is_none_and_the_next_one_begins_anew(cut: int, tmp_path_factory: Any) -> None:
    folder = Folder.create(tmp_path_factory.mktemp("run") / "run", experiment())
    with folder.locked():
        folder.append(outcome(0))
        folder.append(outcome(1))
    path = folder.path / "outcomes.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    left = folder.outcomes()
    assert left == [outcome(0), outcome(1)][: len(left)]
    assert len(left) == data[: max(0, len(data) - cut)].count(b"\n")
    with folder.locked():
        folder.append(outcome(2))
    assert folder.outcomes() == [*left, outcome(2)]


@given(
    lines=st.lists(st.binary(max_size=6), max_size=6), tail=st.binary(max_size=9).filter(lambda tail: b"\n" not in tail)
)
def test_only_whole_lines_are_kept(lines: list[bytes], tail: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    whole = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    path.write_bytes(whole + tail)
    with appendable(path) as file:
        file.write(b"next\n")
    assert path.read_bytes() == whole + b"next\n"


def test_a_long_last_line_is_cut_off_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first\n" + b"x" * 200_000)
    appendable(path).close()
    assert path.read_bytes() == b"first\n"


def test_a_line_that_is_no_outcome_is_told_with_its_number(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "run", experiment())
    (folder.path / "outcomes.jsonl").write_text('{"arm": 1}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"outcomes.jsonl:1: cannot be read: KeyError"):
        folder.outcomes()


def test_one_process_at_a_time_and_a_dead_one_lets_go(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "run", experiment())
    holds = (
        "import sys, time\nfrom executor.experiments.folder import Folder\n"
        "with Folder(sys.argv[1]).locked():\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", holds, str(folder.path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another process runs the experiment"), folder.locked():
            pytest.fail("two at once")
        other.kill()
        other.wait()
    with folder.locked():
        folder.append(outcome(0))


# Going on with it


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": 5},
        {"repeats": 2},
        {"arms": {"job": {"mode": "react"}, "more": {"mode": "dag"}}},
        {"grader": "numeric"},
        {"concurrency": 9},
        {"budget": "1usd"},
    ],
)
def test_tasks_arms_and_repeats_may_be_added(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "run", experiment())
    key, began = folder.key, folder.started_at
    folder.append(outcome(0))
    folder.take_up(experiment(**changes))
    again = Folder.open(folder.path)
    assert again.experiment.arms == experiment(**changes).arms
    assert again.experiment.tasks == experiment(**changes).tasks
    assert (again.key, again.started_at, again.outcomes()) == (key, began, [outcome(0)])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": 2}, "tasks that are no longer there: '2'"),
        ({"seed": 1}, "the seed: 0 before, 1 now"),
        ({"name": "y"}, "the name: 'x' before, 'y' now"),
        ({"arms": {}}, "arms that are no longer there: 'job'"),
        ({"arms": {"job": {"mode": "dag"}}}, "arms that have changed: 'job'"),
        ({"score": 0}, "the recorded answers of 'weak' have changed: '0', '1', '2'"),
    ],
)
def test_anything_else_is_another_experiment(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "run", experiment())
    with pytest.raises(ConfigError) as wrong:
        folder.take_up(experiment(**changes))
    assert said in str(wrong.value).replace("'2', '1', '0'", "'0', '1', '2'").replace("'1', '0', '2'", "'0', '1', '2'")
    assert "--output" in str(wrong.value)
    assert Folder.open(folder.path).experiment.arms == experiment().arms, "nothing was changed"


def test_fewer_repeats_and_another_input_are_another_experiment(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "run", experiment(repeats=2))
    with pytest.raises(ConfigError, match="repeats: 2 before, 1 now"):
        folder.take_up(experiment(repeats=1))
    other = experiment(repeats=2)
    tasks = (replace(other.tasks[0], input="another question"), *other.tasks[1:])
    with pytest.raises(ConfigError, match=f"tasks that have changed: '{tasks[0].id}'"):
        folder.take_up(replace(other, tasks=tasks))


def test_a_policy_s_file_must_stay_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("{}", encoding="utf-8")
    values: dict[str, Any] = {
        "experiment": {"name": "x", "tasks": [{"id": "a", "input": "b"}]},
        "grader": {"use": "exact"},
        "arms": {"learned": {"routing": {"use": "learned", "file": "policy.json"}}},
    }
    folder = Folder.create(tmp_path / "run", experiment_of(values, base=tmp_path))
    folder.take_up(experiment_of(values, base=tmp_path))
    (tmp_path / "policy.json").write_text("{ }", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"policy\.json has other contents now"):
        folder.take_up(experiment_of(values, base=tmp_path))


def test_what_can_not_be_written_is_told_and_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    folder = Folder(tmp_path)
    folder.write("report.md", "before")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(WriteFailedError, match=r"report.md can't be written: No space left on device"):
            folder.write("report.md", "after")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == "before"


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"format": 99}'])
def test_a_folder_of_another_format_is_told_as_such(text: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"experiment.json: (its format is|cannot be read)"):
        _ = Folder.open(tmp_path).experiment
