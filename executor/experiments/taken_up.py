"""Whether an experiment goes on with what another one has run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .codec import task_to_json
from .report.figures import listed
from .types import Experiment


def differences(before: Experiment, now: Experiment) -> list[str]:
    """What of the experiment before is no longer as it was, in words; what was added is no difference."""
    return [
        *_said("the seed", before.seed, now.seed),
        *_said("the name", before.name, now.name),
        *_fewer(
            "task", {task.id: task_to_json(task) for task in before.tasks}, {t.id: task_to_json(t) for t in now.tasks}
        ),
        *_fewer("arm", {arm.name: arm for arm in before.arms}, {arm.name: arm for arm in now.arms}),
        *([f"repeats: {before.repeats} before, {now.repeats} now"] if now.repeats < before.repeats else []),
        *_other_answers(before, now),
    ]


def _said(what: str, before: Any, now: Any) -> list[str]:
    return [] if before == now else [f"{what}: {before!r} before, {now!r} now"]


def _fewer(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    gone = [name for name in before if name not in now]
    other = [name for name in before if name in now and before[name] != now[name]]
    return [
        *([f"{what}s that are no longer there: {_named(gone)}"] if gone else []),
        *([f"{what}s that have changed: {_named(other)}"] if other else []),
    ]


def _other_answers(before: Experiment, now: Experiment) -> Iterable[str]:
    for name, model in before.recorded.items():
        known = now.recorded[name].answers if name in now.recorded else {}
        other = [task for task, answer in model.answers.items() if known.get(task) != answer]
        if other:
            yield f"the recorded answers of {name!r} have changed: {_named(other)}"


def _named(names: list[str]) -> str:
    return listed([repr(name) for name in names])
