"""What a reader of a report must know beside its figures: what is missing, unknown, or other than it looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from executor.experiments.grading.graders import grading_notes
from executor.experiments.types import Experiment, Grade

from .data import ArmData
from .figures import listed
from .routers import scoring_arms
from .types import Report


def notes_of(
    experiment: Experiment, data: Mapping[str, ArmData], report: Report, grades: Iterable[Grade]
) -> tuple[str, ...]:
    """The notes, the gravest first."""
    return tuple(
        [
            *_missing(report),
            *_ungraded(report),
            *_failures(report),
            *_costs(report),
            *_pairs(data, report),
            *_latency(report),
            *grading_notes(grades),
            *_recorded(experiment, report),
            *_methods(experiment, report),
            *_routers(experiment, report),
        ]
    )


def _missing(report: Report) -> Iterator[str]:
    if report.head.ended < report.head.cells:
        parts = _named({arm.name: f"{arm.missing:,}" for arm in report.arms if arm.missing})
        yield (
            f"{report.head.cells - report.head.ended:,} of {report.head.cells:,} cells have not ended ({parts}): the "
            "figures are of those that have."
        )


def _ungraded(report: Report) -> Iterator[str]:
    ungraded = {arm.name: f"{arm.ungraded:,} of {arm.n_cells:,}" for arm in report.arms if arm.ungraded}
    if ungraded:
        yield f"Cells that ended but have no score are left out of the quality: {_named(ungraded)}."


def _failures(report: Report) -> Iterator[str]:
    failed = {
        arm.name: ", ".join(f"{count:,} {status}" for status, count in arm.statuses.items() if status != "completed")
        for arm in report.arms
        if arm.failures
    }
    if failed:
        yield f"Not all cells were completed: {_named(failed, '; ')}. Those with a score count with it."


def _costs(report: Report) -> Iterator[str]:
    none = [arm.name for arm in report.arms if arm.n_cells and arm.cost is None]
    partial = {
        arm.name: f"{arm.cost.unknown:,} of {arm.n_cells:,} cells"
        for arm in report.arms
        if arm.cost and arm.cost.partial
    }
    if none:
        yield f"What it cost is not known: {_named(dict.fromkeys(none, ''))}."
    if partial:
        yield (
            f"A part of the cost is not known ({_named(partial)}): the mean is of the other cells, the total is a "
            "lower bound, and these arms take no part in comparisons of cost."
        )


def _pairs(data: Mapping[str, ArmData], report: Report) -> Iterator[str]:
    reference = report.head.reference
    out = {}
    for difference in report.differences:
        both = {task for name in (difference.arm, difference.other) for task in data[name].means}
        if difference.n_tasks < len(both):
            out[difference.arm] = f"{len(both) - difference.n_tasks:,} of {len(both):,}"
    if out:
        yield f"Tasks that only one of an arm and {reference} has a score for are left out of its pairs: {_named(out)}."
    if reference is not None and not data[reference].means:
        yield f"The reference {reference} has no score yet: nothing is compared with it."


def _latency(report: Report) -> Iterator[str]:
    part = {
        arm.name: f"{arm.latency.n if arm.latency else 0:,} of {arm.n_cells:,}"
        for arm in report.arms
        if arm.n_cells and arm.cached_calls
    }
    if part:
        yield f"Times are of cells without replies from the cache: {_named(part)}."


def _recorded(experiment: Experiment, report: Report) -> Iterator[str]:
    tables = experiment.source.get("recorded")
    tables = tables if isinstance(tables, Mapping) else {}
    used = {name for arm in experiment.arms if arm.kind == "recorded" for name in arm.among}
    guessed = {name: "" for name, table in tables.items() if name in used and isinstance(table, Mapping)
               and "price" in table}  # fmt: skip
    if guessed and report.head.ended:
        yield f"Costs of answers on file are estimated, from the lengths of their texts: {_named(guessed)}."
    if report.head.ended and any(arm.checker is not None for arm in experiment.arms):
        yield "Checkers are simulated: right as often as is stated, by draws of the seed; they cost nothing here."


def _methods(experiment: Experiment, report: Report) -> Iterator[str]:
    if not report.head.ended:
        return
    yield (
        "Intervals are at 95 %, over tasks"
        + (f" (the {experiment.repeats} repeats of a task count as one)" if experiment.repeats > 1 else "")
        + "."
    )
    if report.head.pairs > 1:
        yield (
            f"p-values are of sign flips by task (McNemar's exact test for single 0/1 scores), corrected for all "
            f"{report.head.pairs:,} pairs of arms by Holm's method."
        )
    if any(baseline.name == "oracle" for baseline in report.baselines):
        told = "The oracle takes, for each task, the arm that did it best; nobody can know that beforehand"
        if experiment.repeats > 1 or any(arm.kind == "job" for arm in report.arms):
            told += (
                ". Where answers vary from run to run it also takes the lucky ones, and looks better than it could be"
            )
        yield told + "."


def _routers(experiment: Experiment, report: Report) -> Iterator[str]:
    told = {router.arm for router in report.routers}
    lost = [arm.name for arm in scoring_arms(experiment) if arm.name.partition("[")[0] not in told]
    if lost and report.head.ended:
        yield (f"No curve of {_named(dict.fromkeys(lost, ''))}: it needs arms of its weak and its strong model alone.")


def _named(parts: Mapping[str, str], between: str = ", ") -> str:
    return listed([f"{name} {text}".strip() for name, text in parts.items()], between)
