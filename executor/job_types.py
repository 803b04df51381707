"""A job: what was asked, and what became of it. Frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, get_args

from planner.plan import Plan
from registry.budget import Budget
from registry.errors import UsageError
from registry.fallback import Fallback
from registry.messages import Message, Usage
from registry.redaction import redact_data

from .results import StepResult, rfc3339
from .schedule_types import ENDED

Mode = Literal["auto", "dag", "react"]
JobStatus = Literal[
    "queued", "running", "needs_decision", "completed", "partial", "failed", "cancelled", "budget_exceeded"
]
AnswerMode = Literal["synthesis", "direct"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job is asked to do. `plan` is executed as it is; without one the planner makes it (mode dag), or one
    agent does the whole (mode react), or a router decides (mode auto). `plan_only`: the plan is made and nothing run.
    `created_at` is when it was asked for, where that was before it started; `parent` the job it was made from. `kept`
    are results of steps of the plan, which are not run again, and `domain` what its router found, where the job is made
    from another one. `pins` are models, or roles, that steps of this plan have whatever the job's routing says."""

    goal: str
    plan: Plan | None = None
    mode: Mode = "auto"
    history: tuple[Message, ...] = ()
    answer_mode: AnswerMode = "synthesis"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | None = None
    plan_only: bool = False
    created_at: float | None = None
    parent: str | None = None
    kept: Mapping[str, StepResult] = field(default_factory=dict)
    domain: str | None = None
    pins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise UsageError(f"mode must be one of {', '.join(get_args(Mode))}, not {self.mode!r}")
        if self.answer_mode not in get_args(AnswerMode):
            raise UsageError(f"answer_mode must be synthesis or direct, not {self.answer_mode!r}")
        for item in self.history:
            if not isinstance(item, Message):
                raise UsageError(
                    f"history holds Messages, not {type(item).__name__}: use Message.user(text), "
                    "Message.assistant(text), or Message.from_json(data) for what to_json wrote"
                )
        if not self.goal.strip():
            raise UsageError("the goal is empty: say what is to be done")
        if self.kept and self.plan is not None:
            object.__setattr__(self, "plan", replace(self.plan, kept=tuple(self.kept)))
        if self.plan is not None:
            self.plan.check()
        for name, result in self.kept.items():
            if result.status not in ENDED:
                raise UsageError(f"kept step {name!r} is {result.status}: only steps that have ended can be kept")
        if self.kept and self.plan is None:
            raise UsageError("kept results belong to a plan: give the plan, too")


@dataclass(frozen=True, slots=True)
class Job:
    """How a job ended, or where it stands.

    `answer` is never empty once the job has ended. `error` and `error_code` say why it is not completed. `rounds`
    counts executions of plans. `iterations` are the model calls of its agents' loops. `elapsed` is in seconds, times
    are seconds since the epoch. `by_role` and `by_model` are the parts of `usage`; `artifacts` the names of what
    tools made for the reader; `fallbacks` every change of model because a provider was out, those of steps among them.
    """

    id: str
    status: JobStatus
    goal: str
    mode: str
    answer: str = ""
    plan: Plan | None = None
    steps: Mapping[str, StepResult] = field(default_factory=dict)
    usage: Usage = Usage.zero()  # noqa: RUF009 - frozen
    elapsed: float = 0.0
    error: str | None = None
    error_code: str | None = None
    rounds: int = 0
    iterations: int = 0
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    by_role: Mapping[str, Usage] = field(default_factory=dict)
    by_model: Mapping[str, Usage] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    artifacts: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()

    @property
    def cost(self) -> Decimal | None:
        """USD so far; None where nothing is known. `usage.partial` says that a part is missing."""
        return self.usage.cost

    def to_json(self) -> dict[str, Any]:
        """The job in its public shape; secrets are masked."""
        shown: dict[str, Any] = {
            "id": self.id,
            "status": self.status,
            "goal": self.goal,
            "mode": self.mode,
            "created_at": rfc3339(self.created_at),
            "started_at": rfc3339(self.started_at),
            "ended_at": rfc3339(self.ended_at),
            "elapsed": round(self.elapsed, 3),
            "plan": None if self.plan is None else self.plan.to_json(),
            "steps": [step.to_json() for step in self.steps.values()],
            "answer": self.answer or None,
            "error": self.error,
            "error_code": self.error_code,
            "rounds": self.rounds,
            "iterations": self.iterations,
            "parent": self.parent,
            "metadata": dict(self.metadata),
            "artifacts": list(self.artifacts),
            "fallbacks": [change.to_json() for change in self.fallbacks],
            "usage": {
                **self.usage.to_json(),
                "by_role": {name: usage.to_json() for name, usage in sorted(self.by_role.items())},
                "by_model": {name: usage.to_json() for name, usage in sorted(self.by_model.items())},
            },
        }
        return dict(redact_data(shown))
