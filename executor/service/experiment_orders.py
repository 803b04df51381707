"""From a request to an experiment: each arm's job is checked as a single job is, before anything is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from executor.store.database import cleaned
from executor.store.experiments import CellJob, NewExperiment
from executor.store.jobs import NewJob
from planner.checks import PlanError
from planner.parse import parse_plan
from registry.errors import ConfigError, UsageError
from registry.text import cut_end

from .experiment_asked import AS_COMMAND, experiment_asked
from .orders import ordered
from .problems import ProblemError, problem_of
from .schemas import MAX_DEPTH, MAX_METADATA, JobIn, MetadataValue, Strict
from .state import Offer

if TYPE_CHECKING:
    from executor.experiments.types import Arm, Experiment, Task
    from executor.settings_model import Settings
    from planner.plan import Plan

DETAIL = 1_000
"""Characters that a problem says at most."""
OUTSIDE = ("budget", "answer_mode")
"""What stands beside a job's `options`, and among an arm's."""
LONGEST_NAME = 200
"""Characters of the names that lists show."""

Tables = dict[Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)], dict[str, Any]]


class ExperimentIn(Strict):
    """Tasks by arms by repeats. The keys are those of an experiment's file; rows stand in place of files."""

    experiment: dict[str, Any] = Field(
        description="name, tasks (a list of objects with id, input, target, metadata, plan), repeats, concurrency, "
        "budget, seed, reference, limit"
    )
    grader: dict[str, Any] = Field(description="use: exact, numeric, contains, regex, json or recorded; its own keys")
    recorded: Tables | None = Field(None, description="Models whose answers are given, as rows")
    arms: Tables = Field(min_length=1, description="Ways to do the tasks: mode, routing, roles, options, budget; among")
    metadata: dict[Annotated[str, Field(min_length=1, max_length=64)], MetadataValue] | None = Field(
        None, max_length=MAX_METADATA, description="Yours"
    )

    @field_validator("experiment", "grader", "recorded", "arms")
    @classmethod
    def _flat(cls, tables: Any) -> Any:
        level: list[Any] = [] if tables is None else [tables]
        for _ in range(MAX_DEPTH + 1):
            if any(isinstance(one, float) and not math.isfinite(one) for one in level):
                raise PydanticCustomError("no_number", "NaN, Infinity and numbers as large are not JSON")
            level = [part for whole in level for part in _parts(whole)]
        if level:
            raise PydanticCustomError("too_deep", "nested too deeply: {most} levels at most", {"most": MAX_DEPTH})
        return tables


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def experiment_ordered(
    body: ExperimentIn, offer: Offer, settings: Settings, key: str | None, request_hash: bytes
) -> tuple[NewExperiment, Iterator[CellJob]]:
    """The experiment that a request comes to, and those of its cells that are jobs. Takes a while: not for the event
    loop. Raises the problem that is in the way: 422, 501 where a library is missing, 503 where no model is configured
    and one is needed."""
    asked = cleaned(body.model_dump(exclude={"metadata"}, exclude_none=True))
    experiment = _read(asked, settings.max_batch_items)
    jobs = {arm.name: _job(arm, experiment, offer, settings) for arm in experiment.arms if arm.kind == "job"}
    new = NewExperiment(
        experiment.name,
        asked,
        _shown(experiment),
        experiment.size,
        experiment.concurrency,
        experiment.budget,
        settings.batch_hours * 3_600,
        cleaned(dict(body.metadata or {})),
        key,
        request_hash,
    )
    return new, _cells(experiment, jobs, offer, settings)


def _read(asked: Mapping[str, Any], most: int) -> Experiment:
    from executor.experiments.grading.graders import check_grader

    try:
        experiment = experiment_asked(asked)
        if experiment.size > most:
            told = f"{experiment.size:,} cells are more than {most:,} (setting max_batch_items)"
            raise ProblemError(422, "experiment_too_large", "The experiment has too many cells", told)
        check_grader(experiment)
        _check_recorded(experiment)
    except (ConfigError, UsageError) as error:
        raise _invalid(str(error)) from None
    return experiment


def _check_recorded(experiment: Experiment) -> None:
    """Raises what is in the way of an arm of recorded answers, all of whose cells are made once for that."""
    from executor.experiments.recorded.arm import recorded_outcomes

    for arm in experiment.arms:
        if arm.kind == "recorded":
            for _ in recorded_outcomes(experiment, arm):
                pass


def _job(arm: Arm, experiment: Experiment, offer: Offer, settings: Settings) -> NewJob:
    """What each job of an arm is but for its task, checked as a single job is."""
    own = {name: value for name, value in arm.options.items() if name not in OUTSIDE}
    outside = {name: arm.options[name] for name in OUTSIDE if name in arm.options}
    if experiment.budget is not None:  # a part of it is what the job will have
        outside = {"budget": str(experiment.budget), **outside}
    try:
        body = JobIn.model_validate({"goal": "a task", "mode": arm.mode, "options": own, **outside})
        job = ordered(body, offer, settings)
    except ValidationError as error:
        raise _of_arm(arm, problem_of(RequestValidationError(error.errors(include_url=False)))) from None
    except ProblemError as problem:
        raise _of_arm(arm, problem) from None
    if "budget" in arm.options:
        return job
    return replace(job, request={name: value for name, value in job.request.items() if name != "budget"})


def _check_plans(experiment: Experiment, offer: Offer, settings: Settings) -> None:
    """Raises 422 for a task's plan that could not be run."""
    for task in experiment.tasks:
        if task.plan is not None:
            try:
                parse_plan(
                    task.plan.to_json(), tools=offer.tools.names(), models=offer.models.hints(),
                    max_steps=settings.max_steps, goal=task.input,
                )  # fmt: skip
            except PlanError as error:
                raise _invalid(f"the plan of the task {cut_end(task.id, 100)!r}: {error}") from None


def _cells(experiment: Experiment, jobs: Mapping[str, NewJob], offer: Offer, settings: Settings) -> Iterator[CellJob]:
    """The cells that are jobs, in the seed's order, each with its place among all."""
    from executor.experiments.cell_job import job_of_cell
    from executor.experiments.cells import cells_of

    if not jobs:
        return
    _check_plans(experiment, offer, settings)
    tasks = {task.id: task for task in experiment.tasks}
    arms = {arm.name: arm for arm in experiment.arms}
    goals = {task.id: _goal(task, settings) for task in experiment.tasks}
    for line, cell in enumerate(cells_of(experiment), 1):
        job = jobs.get(cell.arm)
        if job is not None:
            task = tasks[cell.task]
            own = job_of_cell(experiment, arms[cell.arm], task)
            kind = {} if task.kind is None else {"kind": task.kind[:LONGEST_NAME]}  # routing policies go by it
            told = {"arm": cell.arm, "task": cell.task[:LONGEST_NAME], "repeat": cell.repeat, **kind}
            yield CellJob(
                line,
                (cell.arm, cell.task, cell.repeat),
                goals[cell.task],
                own.mode,
                _request(job, own.plan, settings),
                told,
            )


def _request(job: NewJob, plan: Plan | None, settings: Settings) -> dict[str, Any]:
    """What the job of a cell is asked. The service's own limit holds where its arm has none: a part of the experiment's
    budget may not be more."""
    budget = {} if "budget" in job.request or settings.budget is None else {"budget": str(settings.budget)}
    return {**job.request, **budget, **({} if plan is None else {"plan": plan.to_json()})}


def _goal(task: Task, settings: Settings) -> str:
    goal: str = cleaned(task.input)
    if not goal.strip():
        raise _invalid(f"the task {cut_end(task.id, 100)!r}: its input is empty")
    if len(goal) > settings.max_goal_chars:
        raise _invalid(
            f"the task {cut_end(task.id, 100)!r}: its input has {len(goal):,} characters, at most "
            f"{settings.max_goal_chars:,} are taken (setting max_goal_chars)"
        )
    return goal


def _shown(experiment: Experiment) -> dict[str, Any]:
    """What lists show of an experiment."""
    return {
        "arms": [cut_end(arm.name, LONGEST_NAME) for arm in experiment.arms],
        "tasks": len(experiment.tasks),
        "repeats": experiment.repeats,
        "seed": experiment.seed,
        "grader": experiment.grader.use,
        "budget": None if experiment.budget is None else str(experiment.budget),
    }


def _invalid(detail: str) -> ProblemError:
    if "pip install" in detail:
        title = "A library of the service is missing"
        return ProblemError(501, "not_installed", title, f"{cut_end(detail, DETAIL)} at the service, or {AS_COMMAND}")
    return ProblemError(422, "experiment_invalid", "The experiment is not valid", cut_end(detail, DETAIL))


def _of_arm(arm: Arm, problem: ProblemError) -> ProblemError:
    """The same, with the arm that it is about."""
    body = problem.body
    return ProblemError(
        problem.status,
        body["code"],
        body["title"],
        f"arm {cut_end(arm.name, 100)!r}: {body['detail']}",
        problems=body.get("problems"),
    )
