"""Two runs told apart: arms of the same name, paired by task, with how sure each change is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from executor.experiments import stats
from executor.experiments.codec import arm_to_json, task_to_json
from executor.experiments.stats import Estimate
from executor.experiments.types import Experiment, Grade, Outcome
from registry.errors import UsageError

from .data import ArmData, data_of, least_step
from .figures import compared, listed, p_text, p_value, percent, points_span, seconds, signed, times, times_span, usd
from .tables import UNKNOWN, Column, Document, Table
from .types import estimate_json

RATIO_COLUMNS = (Column("Arm", left=True), Column("Before"), Column("After"), Column("Ratio"), Column("95 %"))


@dataclass(frozen=True, slots=True)
class Run:
    """One of the two: `name` as the reader knows it."""

    name: str
    experiment: Experiment
    outcomes: Sequence[Outcome]
    grades: Sequence[Grade]


@dataclass(frozen=True, slots=True)
class Change:
    """An arm in both runs, on the `n_tasks` tasks that both have: `difference` in quality, `cost` and `time` as ratios,
    the later run to the earlier one; None where they are not known. `p_corrected`: for all arms (Holm)."""

    arm: str
    n_tasks: int
    before: Estimate
    after: Estimate
    difference: Estimate
    p: float
    p_corrected: float
    costs: tuple[float, float] | None = None
    cost: Estimate | None = None
    times: tuple[float, float] | None = None
    time: Estimate | None = None

    @property
    def shown(self) -> bool:
        """Whether a change in quality is shown."""
        return stats.is_shown(self.difference, self.p_corrected)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "arm": self.arm, "n_tasks": self.n_tasks,
            "quality": {"before": self.before.to_json(), "after": self.after.to_json(),
                        "difference": self.difference.mean, "low": self.difference.low, "high": self.difference.high,
                        "p": self.p, "p_corrected": self.p_corrected, "shown": self.shown},
            "cost": _ratio_json(self.costs, self.cost), "latency": _ratio_json(self.times, self.time),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed between two runs, and what can't be compared: `notes`."""

    before: str
    after: str
    tasks: int
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    conclusion: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {"before": self.before, "after": self.after, "tasks": self.tasks,
                "arms": [change.to_json() for change in self.changes], "notes": list(self.notes),
                "conclusion": self.conclusion}  # fmt: skip


def compare(before: Run, after: Run, *, seed: int = 0) -> Comparison:
    """What changed from one run to the other.

    Raises UsageError where they were graded by different graders, or have no arm or no task in common, for then nothing
    can be compared.
    """
    _same_grader(before, after)
    tasks, notes = _same_tasks(before, after)
    arms = [arm.name for arm in before.experiment.arms if arm.name in {arm.name for arm in after.experiment.arms}]
    if not arms:
        raise UsageError(f"{before.name} and {after.name} have no arm of the same name")
    data = [data_of(run.experiment, run.outcomes, run.grades) for run in (before, after)]
    samples = stats.Samples(seed)
    changes = [
        change
        for name in arms
        if (change := _change(data[0][name], data[1][name], tasks, samples, seed)) is not None
    ]  # fmt: skip
    if not changes:
        raise UsageError(f"no task has a score in both {before.name} and {after.name}: nothing can be compared yet")
    corrected = stats.holm([change.p for change in changes])
    changes = [replace(change, p_corrected=p) for change, p in zip(changes, corrected, strict=True)]
    notes += _arm_notes(before, after, arms, {change.arm for change in changes})
    return Comparison(
        before.name, after.name, len(tasks), tuple(changes), tuple(notes), _conclusion(changes, after.name)
    )


# What can be compared


def _same_grader(before: Run, after: Run) -> None:
    one, two = before.experiment.grader, after.experiment.grader
    if (one.use, dict(one.options)) != (two.use, dict(two.options)):
        how = f"by {one.use} and by {two.use}" if one.use != two.use else f"by {one.use} with different keys"
        raise UsageError(
            f"{before.name} and {after.name} are graded {how}: their scores are not the same measure. "
            "Grade one of them again, with the other's grader"
        )


def _same_tasks(before: Run, after: Run) -> tuple[list[str], list[str]]:
    """The tasks that are the same in both, and what is to be told of the others."""
    one, two = ({task.id: _work(task_to_json(task)) for task in run.experiment.tasks} for run in (before, after))
    same = [task for task in one if one[task] == two.get(task)]
    changed = [task for task in one if task in two and one[task] != two[task]]
    if not same:
        what = "all their tasks of the same id are other tasks" if changed else "they have no task in common"
        raise UsageError(f"{before.name} and {after.name} can't be compared: {what}")
    notes = []
    if changed:
        notes.append(f"Tasks whose text, target or plan changed are left out: {listed(changed)}.")
    for run, names in (
        (before, [task for task in one if task not in two]),
        (after, [task for task in two if task not in one]),
    ):
        if names:
            notes.append(f"Tasks that only {run.name} has are left out: {listed(names)}.")
    return same, notes


def _work(task: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name != "metadata"}


def _arm_notes(before: Run, after: Run, arms: Sequence[str], compared: Iterable[str]) -> list[str]:
    one, two = ({arm.name: arm_to_json(arm) for arm in run.experiment.arms} for run in (before, after))
    notes = []
    for run, names in ((before, one.keys() - two.keys()), (after, two.keys() - one.keys())):
        if names:
            notes.append(f"Arms that only {run.name} has: {listed(sorted(names))}.")
    for name in arms:
        changed = [key for key in one[name] if one[name][key] != two[name][key]]
        if changed:
            notes.append(f"{name} is another arm now: its {', '.join(changed)} changed.")
    if unscored := [name for name in arms if name not in set(compared)]:
        notes.append(f"No task has a score in both runs for: {listed(unscored)}.")
    if before.experiment.repeats != after.experiment.repeats:
        notes.append(
            f"{before.name} has {before.experiment.repeats} repeats, {after.name} {after.experiment.repeats}: a task's "
            "scores are averaged first."
        )
    return notes


# One arm


def _change(before: ArmData, after: ArmData, tasks: Sequence[str], samples: stats.Samples, seed: int) -> Change | None:
    both = [task for task in tasks if task in before.means and task in after.means]
    one, two = before.quality(both), after.quality(both)
    if one is None or two is None:
        return None
    differences = [after.means[task] - before.means[task] for task in both]
    step = least_step(before, after, both)
    p = stats.sign_flip_p(differences, seed=seed)
    found = Change(before.arm.name, len(both), one, two, stats.difference_interval(differences, step), p, p)
    if all(task in before.costs and task in after.costs for task in both):
        costs = [[data.costs[task] for task in both] for data in (after, before)]
        found = replace(found, costs=_means(costs), cost=_ratio(costs, samples))
    waits = [_waits(data) for data in (after, before)]
    timed = [task for task in both if task in waits[0] and task in waits[1]]
    if timed:
        seconds_taken = [[wait[task] for task in timed] for wait in waits]
        found = replace(found, times=_means(seconds_taken), time=_ratio(seconds_taken, samples))
    return found


def _waits(data: ArmData) -> dict[str, float]:
    """Each task's mean seconds, of cells without replies from the cache."""
    found: dict[str, list[float]] = {}
    for outcome in data.cells:
        if outcome.latency is not None and not outcome.cached_calls:
            found.setdefault(outcome.cell.task, []).append(outcome.latency)
    return {task: fmean(times) for task, times in found.items()}


def _means(after_and_before: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Before and after."""
    after, before = map(fmean, after_and_before)
    return before, after


def _ratio(columns: Sequence[Sequence[float]], samples: stats.Samples) -> Estimate | None:
    if math.fsum(columns[1]) <= 0:
        return None
    return samples.of(len(columns[0])).interval(columns, stats.ratio)


# What is said


def _conclusion(changes: Sequence[Change], after: str) -> str:
    """Which arms changed in quality, and how sure that is; then cost."""
    parts = []
    told = [change for change in changes if change.shown]
    for change in told:
        way = "better" if change.difference.mean > 0 else "worse"
        parts.append(f"{change.arm} is {way} by {abs(100 * change.difference.mean):.1f} points ({_sure(change)})")
    quiet = [change for change in changes if not change.shown]
    said = f"In {after}{', ' + '; '.join(parts) if told else ' no change in quality is shown'}."
    if quiet:
        widest = max(quiet, key=lambda change: change.difference.high - change.difference.low)
        names = listed([change.arm for change in quiet])
        rest = f"For {names} no change in quality is shown, which" if told else "That"
        said += (
            f" {rest} is not to say that there is none: for {widest.arm} it is {signed(widest.difference.mean)} points "
            f"({_sure(widest)})."
        )
    costs = [
        f"{change.arm} costs {compared(change.cost, 'before')}"
        for change in changes
        if change.cost is not None and _differs(change.cost)
    ]
    if costs:
        said += f" {'; '.join(costs)}."
    return said


def _sure(change: Change) -> str:
    low, high = signed(change.difference.low), signed(change.difference.high)
    return f"95 %: {low} to {high}, corrected {p_text(change.p_corrected)}"


def _differs(ratio: Estimate) -> bool:
    return not math.isnan(ratio.low) and not ratio.low <= 1 <= ratio.high


def document_of_comparison(comparison: Comparison) -> Document:
    """The comparison as it is shown."""
    columns = (Column("Arm", left=True), Column("Before"), Column("After"), Column("Points"), Column("95 %"),
               Column("p", wide=True), Column("Holm's p"), Column("Tasks", wide=True))  # fmt: skip
    quality = tuple(
        (change.arm, percent(change.before.mean), percent(change.after.mean), signed(change.difference.mean),
         points_span(change.difference), p_value(change.p), p_value(change.p_corrected),
         f"{change.n_tasks:,}")
        for change in comparison.changes
    )  # fmt: skip
    tables = [Table("Quality", columns, quality)]
    for title, money in (("Cost of a task", True), ("Time of a task", False)):
        rows = tuple(
            (
                change.arm,
                *(usd(value) if money else seconds(value) for value in known),
                times(ratio) if ratio else UNKNOWN,
                times_span(ratio) if ratio else "",
            )
            for change in comparison.changes
            if (known := change.costs if money else change.times) is not None
            for ratio in [change.cost if money else change.time]
        )
        if rows:
            tables.append(Table(title, RATIO_COLUMNS, rows))
    line = f"{comparison.tasks:,} tasks in both; p-values corrected for {len(comparison.changes):,} arms (Holm)"
    title = f"{comparison.before} and {comparison.after}"
    return Document(title, line, tuple(tables), comparison.notes, comparison.conclusion)


def _ratio_json(means: tuple[float, float] | None, ratio: Estimate | None) -> dict[str, Any] | None:
    if means is None:
        return None
    return {"before": means[0], "after": means[1], "ratio": estimate_json(ratio)}
