"""From a goal to a plan, and from results to a verdict."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analyzer import PlanAnalyzer, Verdict
    from .checks import PlanError
    from .parse import parse_plan
    from .plan import Plan, PlanStep
    from .planner import DAGPlanner
    from .replan import PlanDiff, diff_plans, step_key
    from .router import Route, route

__all__ = [
    "DAGPlanner",
    "Plan",
    "PlanAnalyzer",
    "PlanDiff",
    "PlanError",
    "PlanStep",
    "Route",
    "Verdict",
    "diff_plans",
    "parse_plan",
    "route",
    "step_key",
]

_HOMES = {
    "analyzer": ("PlanAnalyzer", "Verdict"),
    "checks": ("PlanError",),
    "parse": ("parse_plan",),
    "plan": ("Plan", "PlanStep"),
    "planner": ("DAGPlanner",),
    "replan": ("PlanDiff", "diff_plans", "step_key"),
    "router": ("Route", "route"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that a bare import stays cheap."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
