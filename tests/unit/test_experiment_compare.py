"""Two runs told apart."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from executor.experiments.report.compare import Comparison, Run, compare, document_of_comparison
from executor.experiments.report.render_markdown import document_markdown
from executor.experiments.report.render_text import document_text
from executor.experiments.types import Arm, GraderSpec, Task
from registry.errors import UsageError
from tests.support.experiment_results import Made, Results, results


def run(name: str, made: Results) -> Run:
    return Run(name, made.experiment, made.outcomes, made.grades)


def made(seed: int = 1, **rates: float) -> Results:
    return results({name: Made(rate, 0.001 * (1 + rate)) for name, rate in rates.items()}, tasks=300, seed=seed)


def both(one: Results, two: Results, **more: Any) -> Comparison:
    return compare(run("monday", one), run("tuesday", two), **more)


def test_what_changed_is_told_with_how_sure_it_is() -> None:
    found = both(made(a=0.6, b=0.8), made(a=0.8, b=0.8))
    first, second = found.changes
    assert first.shown
    assert not second.shown
    assert first.difference.low > 0
    assert found.conclusion.startswith("In tuesday, a is better by ")
    assert "For b no change in quality is shown, which is not to say that there is none" in found.conclusion
    assert first.costs is not None
    assert first.cost is not None
    assert first.cost.mean == pytest.approx(first.costs[1] / first.costs[0])
    assert first.time is not None
    assert first.p_corrected >= first.p


def test_a_run_and_itself_differ_in_nothing() -> None:
    one = made(a=0.6, b=0.8)
    found = both(one, one)
    assert [change.difference.mean for change in found.changes] == [0, 0]
    assert all(change.p == 1 and not change.shown for change in found.changes)
    assert found.conclusion.startswith("In tuesday no change in quality is shown.")
    assert "costs" not in found.conclusion


def test_pairs_are_by_task_so_that_the_tasks_own_difficulty_goes() -> None:
    one = results({"a": Made(0.6)}, tasks=300, alike=6, seed=1)
    flipped = {grade.cell for grade in one.grades if grade.score == 0}
    few = set(sorted(flipped)[:12])
    two = replace(one, grades=tuple(replace(grade, score=1.0) if grade.cell in few else grade for grade in one.grades))
    (change,) = both(one, two).changes
    assert change.difference.mean == pytest.approx(12 / 300)
    assert change.p == 2 / 2**12
    assert change.shown


def test_other_graders_are_refused() -> None:
    one = made(a=0.6)
    for spec, told in (
        (GraderSpec("contains"), "by exact and by contains"),
        (GraderSpec("exact", {"strip": True}), "keys"),
    ):
        two = replace(one, experiment=replace(one.experiment, grader=spec))
        with pytest.raises(UsageError, match=told):
            both(one, two)


def test_other_tasks_are_left_out_and_told() -> None:
    one = made(a=0.6)
    tasks = one.experiment.tasks
    changed = (replace(tasks[0], input="another question"), *tasks[1:-5], Task("new", "a new one"))
    found = both(one, replace(one, experiment=replace(one.experiment, tasks=changed)))
    assert found.tasks == found.changes[0].n_tasks == 294
    assert found.notes == (
        "Tasks whose text, target or plan changed are left out: t0000.",
        "Tasks that only monday has are left out: t0295, t0296, t0297 and 2 more.",
        "Tasks that only tuesday has are left out: new.",
    )


def test_nothing_in_common_is_refused() -> None:
    one = made(a=0.6)
    other_tasks = replace(one.experiment, tasks=tuple(replace(task, input="other") for task in one.experiment.tasks))
    with pytest.raises(UsageError, match="all their tasks of the same id are other tasks"):
        both(one, replace(one, experiment=other_tasks))
    with pytest.raises(UsageError, match="no arm of the same name"):
        both(one, made(b=0.6))
    with pytest.raises(UsageError, match="no task has a score in both"):
        both(one, replace(one, grades=()))


def test_arms_that_changed_or_are_missing_are_told() -> None:
    one, two = made(a=0.6, b=0.7), made(2, a=0.6, c=0.7)
    arms = tuple(replace(arm, routing="hint") if arm.name == "a" else arm for arm in two.experiment.arms)
    found = both(one, replace(two, experiment=replace(two.experiment, arms=(*arms, Arm("d")))))
    assert found.notes == (
        "Arms that only monday has: b.",
        "Arms that only tuesday has: c, d.",
        "a is another arm now: its routing changed.",
    )


def test_unknown_costs_are_no_ratio() -> None:
    one = results({"a": Made(0.6, None)}, tasks=50)
    (change,) = both(one, one).changes
    assert (change.costs, change.cost) == (None, None)
    assert both(one, one).to_json()["arms"][0]["cost"] is None


def test_repeats_may_differ() -> None:
    one, two = (results({"a": Made(0.7)}, tasks=100, repeats=repeats, seed=repeats) for repeats in (1, 3))
    found = both(one, two)
    assert found.changes[0].n_tasks == 100
    assert any("monday has 1 repeats, tuesday 3" in note for note in found.notes)


def test_forms() -> None:
    found = both(made(a=0.6, b=0.8), made(a=0.8, b=0.8))
    for width in (80, 120):
        text = document_text(document_of_comparison(found), width)
        assert max(map(len, text.splitlines())) <= width
        assert "Cost of a task" in text
        assert "Time of a task" in text
    assert "## Conclusion" in document_markdown(document_of_comparison(found))
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["conclusion"] == found.conclusion
