"""From a plan to results: scheduler, job, log, engine, service, experiments, command."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dag import DAGExecutor
    from .job_handle import JobHandle, run_job, start_job
    from .job_options import JobOptions
    from .job_types import Job
    from .options import RunOptions
    from .results import PlanResult, StepResult
    from .service.app import create_app

__all__ = [
    "DAGExecutor",
    "Job",
    "JobHandle",
    "JobOptions",
    "PlanResult",
    "RunOptions",
    "StepResult",
    "create_app",
    "run_job",
    "start_job",
]

_HOMES = {
    "dag": ("DAGExecutor",),
    "job_handle": ("JobHandle", "run_job", "start_job"),
    "job_options": ("JobOptions",),
    "job_types": ("Job",),
    "options": ("RunOptions",),
    "results": ("PlanResult", "StepResult"),
    "service.app": ("create_app",),
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
