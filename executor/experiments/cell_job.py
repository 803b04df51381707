"""Which job a cell is: the same one, wherever it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.plan import Plan
from registry.routing_config import anchored

from .types import Arm, Experiment, Task


@dataclass(frozen=True, slots=True)
class CellJob:
    """What a job is asked to do for a cell; `options` are those of `executor.settings.OF_A_JOB`."""

    goal: str
    mode: str
    plan: Plan | None
    options: Mapping[str, Any]


def job_of_cell(experiment: Experiment, arm: Arm, task: Task) -> CellJob:
    """The job for a task by an arm. A task's plan is executed as it is, unless the arm is a single agent: a control
    does the goal in its own way."""
    plan = None if arm.mode == "react" else task.plan
    options = dict(arm.options)
    if experiment.base is not None and options.get("routing") is not None:
        options["routing"] = anchored(options["routing"], experiment.base)
    return CellJob(task.input, arm.mode if plan is None else "dag", plan, options)
