"""What a reader wants to see of a running job: a fold of its events, without any terminal in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from registry.messages import Event


@dataclass(slots=True)
class StepLine:
    """One step as it stands."""

    id: str
    task: str
    generation: int
    status: str = "pending"
    model: str = ""
    tool: str = ""
    started_at: float | None = None
    duration: float | None = None
    cost: str | None = None
    tokens: int = 0
    error: str = ""


@dataclass(slots=True)
class JobView:
    """The job so far. `apply` takes each public event in turn; `text` is the answer as streamed until now."""

    phase: str = ""
    round: int = 0
    steps: dict[str, StepLine] = field(default_factory=dict)
    tool: str = ""
    text: str = ""
    status: str = ""
    done: dict[str, Any] = field(default_factory=dict)

    def apply(self, event: Event) -> str | None:
        """Takes an event in; returns a plain line that tells it, where it is worth one."""
        payload = event.payload
        match event.channel:
            case "phase":
                self.phase = str(payload["phase"])
                return self.phase.replace("_", " ")
            case "plan":
                return self._plan(payload)
            case "step_progress" if event.step_id in self.steps:
                return self._progress(event)
            case "step":
                return self._step(event)
            case "answer":
                self._answer(payload)
            case "inject":
                return f"heard: {payload['content']}"
            case "compact":
                return f"context compacted: {payload['original_messages']} messages to {payload['kept_messages']}"
            case "done":
                self.status, self.done = str(payload["status"]), dict(payload)
                return account(self.done)
        return None

    def _plan(self, plan: Any) -> str:
        self.round = plan["round"]
        layer = {name: number for number, names in enumerate(plan["generations"], 1) for name in names}
        kept = set(plan["kept"])
        before = self.steps
        self.steps = {
            step["id"]: before[step["id"]]
            if step["id"] in kept and step["id"] in before
            else StepLine(step["id"], step["task"], layer.get(step["id"], 1))
            for step in plan["steps"]
        }
        lines = [f"plan, round {self.round}: {len(self.steps)} steps" + (f", {len(kept)} kept" if kept else "")]
        for step in plan["steps"]:
            after = f" (after {', '.join(step['dependencies'])})" if step["dependencies"] else ""
            lines.append(f"  {step['id']}: {step['task']}{after}")
        lines += [f"  repaired: {note}" for note in plan["repairs"]] + [
            f"  warning: {note}" for note in plan["warnings"]
        ]
        return "\n".join(lines)

    def _progress(self, event: Event) -> str:
        payload, step = event.payload, self.steps[str(event.step_id)]
        step.status = str(payload["status"])
        step.model = payload.get("model") or step.model
        if step.status == "running" and step.started_at is None:
            step.started_at = event.ts
        step.duration = payload.get("duration")
        step.cost = payload.get("cost")
        usage = payload.get("usage") or {}
        step.tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        step.error = payload.get("error") or ""
        step.tool = ""
        parts = [f"{step.id} {step.status}"]
        if step.model and step.status != "pending":
            parts.append(f"on {step.model}")
        if step.duration is not None and step.status in ("completed", "failed"):
            parts.append(f"in {step.duration:.1f} s, {step.tokens} tokens, {shown_cost(step.cost)}")
        if step.error:
            parts.append(f"- {step.error}")
        return " ".join(parts)

    def _step(self, event: Event) -> str | None:
        payload = event.payload
        if payload.get("type") != "iteration":
            return None
        name = str(payload["tool_name"]) if payload["status"] == "start" else ""
        step = self.steps.get(event.step_id or "")
        if step is not None:
            step.tool = name
        else:
            self.tool = name
        if payload["status"] != "start":
            return None
        return f"{event.step_id or 'agent'}: {name} {payload['tool_args']}"

    def _answer(self, payload: Any) -> None:
        if payload["status"] == "delta":
            self.text += payload["content"]
        elif payload["status"] == "reset":
            self.text = ""


def shown_cost(cost: str | None) -> str:
    """USD, or that it is unknown."""
    return "cost unknown" if cost is None else f"${cost}"


def account(done: dict[str, Any]) -> str:
    """The job's end in a line: status, time, tokens, money, and the cause where it is not completed."""
    usage = done["usage"]
    tokens = f"{usage['input_tokens']} + {usage['output_tokens']} tokens"
    partial = (
        " (some calls are not counted: their usage is unknown)"
        if usage["input_tokens"] and _tokens_missing(usage)
        else ""
    )
    cost = shown_cost(usage["cost_usd"]) + (" at least" if usage["cost_usd"] is not None and usage["partial"] else "")
    line = f"{done['status']} in {done['elapsed']:.1f} s: {usage['calls']} model calls, {tokens}{partial}, {cost}"
    return line + (f"\ncause: {done['error']}" if done.get("error") else "")


def _tokens_missing(usage: dict[str, Any]) -> bool:
    return bool(usage["partial"]) and usage["unpriced_calls"] != usage["calls"]
