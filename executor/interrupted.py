"""The account of a job whose worker died: what its log says was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from planner.plan import Plan
from registry.fallback import Fallback
from registry.messages import Event, Usage

from .answer import joined, plain_statement
from .job_types import Job
from .results import StepResult
from .schedule_types import ENDED

CODE = "interrupted"


def interrupted(row: Mapping[str, Any], events: Iterable[Event], now: float, artifacts: tuple[str, ...] = ()) -> Job:
    """The failed job of a row of `dw_jobs`, from its events. A call that was begun and of which no end is known is
    named: nobody can say whether it took effect. What it cost is not known to the end, unless it waited for a human: a
    model may have been at work."""
    found = _Found(row["mode"])
    for event in events:
        found.hear(event)
    steps = {name: _ended(step) for name, step in found.steps.items()}
    error = found.error()
    usage = found.usage if row["status"] == "needs_decision" else replace(found.usage, partial=True)
    answer = joined(found.plan, steps) or plain_statement(steps, error)
    return Job(
        row["id"],
        "failed",
        row["goal"],
        found.mode,
        answer,
        found.plan,
        steps,
        usage,
        max(0.0, now - row["started_at"].timestamp()),
        error,
        CODE,
        found.rounds,
        found.iterations,
        row["created_at"].timestamp(),
        row["started_at"].timestamp(),
        now,
        found.by_role,
        found.by_model,
        row["metadata"],
        row["parent"],
        artifacts,
        tuple(found.fallbacks),
    )


class _Found:
    """What the events come to."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.plan: Plan | None = None
        self.steps: dict[str, StepResult] = {}
        self.open: dict[str, str] = {}
        self.usage = Usage.zero()
        self.by_role: dict[str, Usage] = {}
        self.by_model: dict[str, Usage] = {}
        self.fallbacks: list[Fallback] = []
        self.rounds = self.iterations = 0

    def hear(self, event: Event) -> None:
        payload = event.payload
        match event.channel:
            case "job_started" | "route":
                self.mode = payload["mode"]
            case "plan":
                self.planned(Plan.from_json(payload))
            case "phase":
                self.rounds += payload["phase"] == "executing"
            case "step_progress" if event.step_id is not None:
                self.steps[event.step_id] = StepResult.from_json({"id": event.step_id, **_output(payload)})
            case "call" if payload["status"] == "start":
                self.open[payload["key"]] = payload["tool_name"]
            case "call":
                self.open.pop(payload["key"], None)
            case "turn":
                self.turn(payload)
            case "fallback":
                self.fallbacks.append(Fallback.from_json(payload))

    def planned(self, plan: Plan) -> None:
        """A round's plan: of the steps so far only those that it keeps stay as they are."""
        kept = {name: result for name, result in self.steps.items() if name in plan.kept}
        self.plan = plan
        self.steps = {name: result for name, result in kept.items() if name not in plan.by_id}
        self.steps |= {name: kept.get(name) or StepResult(id=name) for name in plan.by_id}

    def turn(self, payload: Mapping[str, Any]) -> None:
        usage = Usage.unknown() if payload["usage"] is None else Usage.from_json(payload["usage"])
        role, model = payload["role"], payload["model"]
        self.usage += usage
        self.by_role[role] = self.by_role.get(role, Usage.zero()) + usage
        self.by_model[model] = self.by_model.get(model, Usage.zero()) + usage
        self.iterations += role in ("step", "agent") and payload["result"] is not None

    def error(self) -> str:
        done = [name for name, step in self.steps.items() if step.status == "completed"]
        lines = ["The worker that ran the job ended unexpectedly; the job was not run again."]
        if done:
            lines.append(f"Completed until then: {', '.join(done)}.")
        if self.open:
            calls = ", ".join(f"{tool} ({key})" for key, tool in self.open.items())
            lines.append(f"Begun, and it is not known whether they took effect: {calls}.")
        return " ".join(lines)


def _output(progress: Mapping[str, Any]) -> dict[str, Any]:
    """A step's progress in the shape of its result."""
    return {**progress, "output": progress["result"], "elapsed": progress["duration"] or 0.0}


def _ended(step: StepResult) -> StepResult:
    if step.status in ENDED:
        return step
    if step.status == "pending":
        return replace(step, status="skipped", error=f"{CODE}: its worker ended before it began", error_code=CODE)
    return replace(step, status="failed", error=f"{CODE}: its worker ended unexpectedly", error_code=CODE)
