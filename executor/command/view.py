"""What a reader wants to see of a running job: a fold of its events, without any terminal in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from registry.messages import Event
from registry.text import cut_end

ARGUMENT_CHARS = 200
"""Characters of a tool call's arguments in a line."""
PROMPT = "type y or n, and why if you like"
"""What stands below a question."""


@dataclass(slots=True)
class StepLine:
    """One step as it stands. `started_at` is in seconds since the epoch, `duration` in seconds."""

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
    """The job so far. `apply` takes each public event in turn; `text` is the answer as streamed until now, `tool` what
    the agent of a job without a plan is calling, `turns` how often it asked its model."""

    phase: str = ""
    round: int = 0
    steps: dict[str, StepLine] = field(default_factory=dict)
    tool: str = ""
    turns: int = 0
    text: str = ""
    status: str = ""
    done: dict[str, Any] = field(default_factory=dict)

    def apply(self, event: Event) -> str | None:
        """Takes an event in; returns a plain line that tells it, where it is worth one."""
        payload = event.payload
        match event.channel:
            case "phase":
                self.phase = str(payload["phase"]).replace("_", " ")
                why = payload.get("reasoning")
                return f"{self.phase}: {why}" if why else self.phase
            case "plan":
                return self._plan(payload)
            case "step_progress" if event.step_id in self.steps:
                return self._progress(event)
            case "step":
                return self._step(event)
            case "answer":
                return self._answer(payload)
            case "approval":
                return approval_line(event)
            case "inject":
                return f"heard: {payload['content']}"
            case "compact":
                who = f"{event.step_id}: " if event.step_id else ""
                return f"{who}context compacted, {payload['original_messages']} messages to {payload['kept_messages']}"
            case "done":
                self.status, self.done = str(payload["status"]), dict(payload)
                return account(self.done)
        return None

    def _plan(self, plan: Mapping[str, Any]) -> str:
        self.round = plan["round"]
        layer = {name: number for number, names in enumerate(plan["generations"], 1) for name in names}
        kept = set(plan["kept"])
        before = self.steps
        self.steps = {}
        for step in plan["steps"]:
            name = step["id"]
            line = StepLine(name, step["task"], layer.get(name, 1))
            if name in kept and name in before:
                line = replace(before[name], generation=line.generation)
            self.steps[name] = line
        count = f"{len(self.steps)} step{'s' if len(self.steps) != 1 else ''}"
        lines = [f"plan, round {self.round}: {count}" + (f", {len(kept)} kept" if kept else "")]
        for number, names in enumerate(plan["generations"], 1):
            lines.append(f"  generation {number}")
            for step in (step for name in names for step in plan["steps"] if step["id"] == name):
                after = f" (after {', '.join(step['dependencies'])})" if step["dependencies"] else ""
                lines.append(f"    {step['id']}: {one_line(step['task'])}{after}")
        return "\n".join([*lines, *(f"  {remark}" for remark in remarks(plan))])

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
        step = self.steps.get(event.step_id or "")
        if payload.get("type") == "thinking" and payload["status"] == "start" and step is None:
            self.turns = int(payload.get("iteration", self.turns + 1))
        if payload.get("type") != "iteration":
            return None
        starts = payload["status"] == "start"
        name = str(payload["tool_name"])
        if step is not None:
            step.tool = name if starts else ""
        else:
            self.tool = name if starts else ""
        who = event.step_id or "agent"
        if starts:
            return f"{who}: {name} {cut_end(one_line(str(payload['tool_args'])), ARGUMENT_CHARS)}"
        if payload.get("error"):
            return f"{who}: {name} failed - {cut_end(one_line(str(payload['error'])), ARGUMENT_CHARS)}"
        return None

    def _answer(self, payload: Mapping[str, Any]) -> str | None:
        if payload["status"] == "delta":
            self.text += payload["content"]
        elif payload["status"] == "reset":
            self.text = ""
            return "the answer begun is void"
        return None


def approval_line(event: Event) -> str:
    """That a call waits for a human's word, or what was said, by whom and why."""
    payload = event.payload
    line = f"{event.step_id or 'agent'}: {payload['tool_name']}"
    by, reason = payload.get("decided_by"), one_line(str(payload.get("reason") or ""))
    if payload["status"] == "waiting":
        line += " waits for approval"
        reason += f" {cut_end(one_line(str(payload['tool_args'])), ARGUMENT_CHARS)}"
    elif payload["status"] == "uncertain":
        line += f" {cut_end(one_line(str(payload['tool_args'])), ARGUMENT_CHARS)} waits for a word on what became of it"
    else:
        line += f" {payload['status']}" + (f" by {by}" if by == "user" else "")
        reason = reason if by else ""  # without a decision it is why a word was needed
    return f"{line} - {reason.strip()}" if reason else line


def one_line(text: str) -> str:
    """The text with every run of blanks and line ends as one space."""
    return " ".join(text.split())


def remarks(plan: Mapping[str, Any]) -> list[str]:
    """What the planner's reader mended or doubts, a line each."""
    return [f"repaired: {one}" for one in plan["repairs"]] + [f"warning: {one}" for one in plan["warnings"]]


def shown_cost(cost: str | None) -> str:
    """USD, or that it is unknown."""
    return "cost unknown" if cost is None else f"${cost}"


def account(done: Mapping[str, Any]) -> str:
    """The job's end in a line: status, time, tokens, money; and the cause where it is not completed."""
    usage = done["usage"]
    tokens = f"{usage['input_tokens']} + {usage['output_tokens']} tokens"
    partial = (
        " (some calls are not counted: their usage is unknown)"
        if usage["input_tokens"] and _tokens_missing(usage)
        else ""
    )
    cost = shown_cost(usage["cost_usd"]) + (" at least" if usage["cost_usd"] is not None and usage["partial"] else "")
    calls = f"{usage['calls']} model call{'s' if usage['calls'] != 1 else ''}"
    line = f"{done['status']} in {done['elapsed']:.1f} s: {calls}, {tokens}{partial}, {cost}"
    return line + (f"\ncause: {done['error']}" if done.get("error") else "")


def _tokens_missing(usage: Mapping[str, Any]) -> bool:
    return bool(usage["partial"]) and usage["unpriced_calls"] != usage["calls"]
