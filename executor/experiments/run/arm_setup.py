"""An arm of jobs, made ready: its settings, options and plans, with all that is wrong told before anything is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.experiments.cell_job import job_of_cell
from executor.experiments.types import Arm, Experiment, Task
from executor.job_options import JobOptions
from executor.settings import settings_of_job
from planner.checks import PlanError
from planner.parse import parse_plan
from planner.plan import Plan
from registry.budget import Budget
from registry.errors import ConfigError, DagwrightError
from registry.models import ModelRegistry
from registry.tools import ToolRegistry

if TYPE_CHECKING:
    from executor.settings_model import Settings


@dataclass(frozen=True, slots=True)
class ArmSetup:
    """What the jobs of an arm are run with."""

    arm: Arm
    settings: Settings
    options: JobOptions
    budget: Budget | None
    plans: dict[str, Plan]

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        arm: Arm,
        models: ModelRegistry,
        tools: ToolRegistry,
        settings: Settings,
        options_of: Callable[[Settings], JobOptions],
    ) -> ArmSetup:
        """The arm made ready. Raises ConfigError."""
        try:
            own = settings_of_job(settings, job_of_cell(experiment, arm, experiment.tasks[0]).options)
            options = options_of(own)
            models = models.with_roles(options.roles) if options.roles else models
            options.run.routing.check(models)
            budget = None if own.budget is None else Budget.of(own.budget)
            if budget is not None and budget.usd is not None:
                from .budget import RunBudget

                RunBudget(budget).check(models)
        except DagwrightError as error:
            raise ConfigError(f"arm {arm.name!r}: {error}") from None
        plans = {}
        for task in experiment.tasks:
            plan = _plan(experiment, arm, task, models, tools, options)
            if plan is not None:
                plans[task.id] = plan
        return cls(arm, own, options, budget, plans)


def _plan(
    experiment: Experiment, arm: Arm, task: Task, models: ModelRegistry, tools: ToolRegistry, options: JobOptions
) -> Plan | None:
    plan = job_of_cell(experiment, arm, task).plan
    if plan is None:
        return None
    names = tuple(models.hints())
    try:
        return parse_plan(
            plan.to_json(), tools=tools.names(), models=names, max_steps=options.max_steps, goal=task.input
        )
    except PlanError as error:
        told = "\n".join(f"  {text}" for _, _, text in error.problems)
        raise ConfigError(f"arm {arm.name!r}, task {task.id!r}: the plan is not valid:\n{told}") from None
