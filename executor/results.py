"""What became of a step and of a plan. All frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from registry.fallback import Fallback
from registry.messages import Usage, money

from .schedule_types import PlanStatus, StepStatus

if TYPE_CHECKING:
    from planner.plan import Plan


@dataclass(frozen=True, slots=True)
class StepResult:
    """Where a step stands, in the end what became of it.

    `output` of a failed step is what it had until then. `error` says why there is no result, beginning with the
    `error_code` for a failed step; `root_cause` is the id of the step that failed or was cancelled where this one was
    skipped for it. `model` is the name of the model that did the work. Times are seconds since the epoch; `elapsed` is
    the seconds it ran, waits for a human left out. `usage` sums all attempts. `tool_calls` counts them. `taint` names
    the untrusted origins that its text may come from, those of the steps it depends on among them. `fallbacks` are the
    changes of model because a provider was out: each in the role `step` began again with a fresh agent, which is an
    attempt too, as is the new one after a failed check. `escalated_from`: the model that it was tried on first, where
    its routing has taken it to another one, `model`.
    """

    status: StepStatus = "pending"
    output: str = ""
    error: str | None = None
    root_cause: str | None = None
    attempts: int = 0
    model: str | None = None
    usage: Usage = Usage.zero()  # noqa: RUF009 - frozen
    started_at: float | None = None
    ended_at: float | None = None
    elapsed: float = 0.0
    error_code: str | None = None
    iterations: int = 0
    tool_calls: int = 0
    id: str = ""
    taint: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    escalated_from: str | None = None

    @property
    def cost(self) -> Decimal | None:
        """USD of all attempts; None where it is unknown."""
        return self.usage.cost

    def to_json(self) -> dict[str, Any]:
        """The step as the public JSON has it; `from_json` reads it back."""
        return {
            "id": self.id,
            "status": self.status,
            "attempts": self.attempts,
            "model": self.model,
            "output": self.output,
            "error": self.error,
            "error_code": self.error_code,
            "root_cause": self.root_cause,
            "started_at": rfc3339(self.started_at),
            "ended_at": rfc3339(self.ended_at),
            "elapsed": round(self.elapsed, 3),
            "iterations": self.iterations,
            "tool_calls": self.tool_calls,
            "usage": self.usage.to_json(),
            "taint": list(self.taint),
            "fallbacks": [fallback.to_json() for fallback in self.fallbacks],
            "escalated_from": self.escalated_from,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepResult:
        """Reads what `to_json` wrote."""
        return cls(
            data["status"],
            data.get("output") or "",
            data.get("error"),
            data.get("root_cause"),
            data.get("attempts", 0),
            data.get("model"),
            Usage.from_json(data["usage"]) if data.get("usage") else Usage.zero(),
            _seconds(data.get("started_at")),
            _seconds(data.get("ended_at")),
            data.get("elapsed", 0.0),
            data.get("error_code"),
            data.get("iterations", 0),
            data.get("tool_calls", 0),
            data["id"],
            tuple(data.get("taint", ())),
            tuple(Fallback.from_json(one) for one in data.get("fallbacks", ())),
            data.get("escalated_from"),
        )

    def progress(self) -> dict[str, Any]:
        """The payload of the `step_progress` event; the step's id stands on the event itself."""
        ended = self.ended_at is not None
        return {
            "status": self.status,
            "started_at": rfc3339(self.started_at),
            "duration": round(self.elapsed, 3) if ended else None,
            "model": self.model,
            "usage": self.usage.to_json() if ended else None,
            "cost": money(self.cost) if ended else None,
            "result": self.output or None,
            "error": self.error,
            "error_code": self.error_code,
            "root_cause": self.root_cause,
            "attempts": self.attempts,
            "ended_at": rfc3339(self.ended_at),
            "iterations": self.iterations,
            "tool_calls": self.tool_calls,
            **({"taint": list(self.taint)} if self.taint else {}),
            **({"fallbacks": [fallback.to_json() for fallback in self.fallbacks]} if self.fallbacks else {}),
            **({"escalated_from": self.escalated_from} if self.escalated_from is not None else {}),
        }

    @classmethod
    def from_progress(cls, step_id: str, told: Mapping[str, Any]) -> StepResult:
        """Reads what `progress` wrote."""
        output, elapsed = told.get("result"), told.get("duration") or 0.0
        return cls.from_json({**told, "id": step_id, "output": output, "elapsed": elapsed})


@dataclass(frozen=True, slots=True)
class PlanResult:
    """How a plan ended: completed, partial, failed, cancelled or budget_exceeded, and each step's result in plan
    order, kept ones included. `usage` is what this execution cost; kept results were paid for before."""

    status: PlanStatus
    steps: Mapping[str, StepResult]
    usage: Usage

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON data."""
        return {
            "status": self.status,
            "steps": [step.to_json() for step in self.steps.values()],
            "usage": self.usage.to_json(),
        }


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How one attempt at a step ended. `error_code` None: with a result. `usage`: what the step's meter did not see."""

    output: str
    error_code: str | None = None
    error: str = ""
    iterations: int = 0
    tool_calls: int = 0
    usage: Usage | None = None
    taint: tuple[str, ...] = ()


def carried(plan: Plan, before: Mapping[str, StepResult]) -> dict[str, StepResult]:
    """The steps of a round's plan at its beginning: those that it keeps as they are, the others as if nothing of their
    name had been; first what is kept and no step of the plan."""
    kept = {name: result for name, result in before.items() if name in plan.kept}
    outside = {name: result for name, result in kept.items() if name not in plan.by_id}
    return outside | {name: kept.get(name) or StepResult(id=name) for name in plan.by_id}


def rfc3339(seconds: float | None) -> str | None:
    """Seconds since the epoch as RFC 3339 in UTC, to the millisecond; None stays None."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
