"""A plan as the schedule sees it."""

from __future__ import annotations

from collections.abc import Mapping

from planner.plan import Plan
from registry.errors import UsageError

from .results import StepResult
from .schedule_types import ENDED, Shape


def shape_of(plan: Plan, kept: Mapping[str, StepResult]) -> Shape:
    """The plan's shape, where these results exist already. Raises PlanError or UsageError for what can't be run."""
    for name, result in kept.items():
        if result.status not in ENDED:
            raise UsageError(f"kept step {name!r} is {result.status}: only steps that have ended can be kept")
    if not plan.steps and not kept:
        plan.check()
    try:
        return Shape.of(plan.steps, kept)
    except UsageError:
        plan.check()  # says all that is wrong with it at once
        raise
