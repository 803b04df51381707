"""What the reader gets: the synthesis' input made of step results, and answers that need no model."""

from __future__ import annotations

from collections.abc import Mapping

from planner.plan import Plan
from registry.text import cut_middle, marked, unforgeable_marker

from .results import StepResult

STEP_CHARS = 10_000
"""Characters of each step's result that the synthesis sees at most."""
MIN_STEP_CHARS = 500


def work_of(plan: Plan, steps: Mapping[str, StepResult], room: int) -> str:
    """The work as text, step by step, in about `room` characters: results, and what failed and why, each between lines
    that it can't forge."""
    tasks = {step.id: step.task for step in plan.steps}
    each = max(MIN_STEP_CHARS, min(STEP_CHARS, room // max(1, len(steps))))
    bodies = {name: _body(result, each) for name, result in steps.items()}
    marker = unforgeable_marker([*bodies.values(), *tasks.values()])
    return "\n\n".join(
        f"[step {name}: {cut_middle(tasks.get(name, ''), 300)}] {steps[name].status}\n"
        + marked(body, f"what step {name} brought", marker)
        for name, body in bodies.items()
    )


def _body(result: StepResult, limit: int) -> str:
    if not result.output:
        return result.error or "no result"
    why = f"(not to be relied on: {cut_middle(result.error, 500)})\n" if result.error else ""
    return why + cut_middle(result.output, limit)


def joined(plan: Plan | None, steps: Mapping[str, StepResult]) -> str:
    """The completed steps' results, those that no other completed step built on first choice; empty without any."""
    done = {name: result for name, result in steps.items() if result.status == "completed" and result.output.strip()}
    if not done:
        return ""
    used = (
        {other for step in plan.steps if step.id in done for other in step.dependencies} if plan is not None else set()
    )
    last = [result.output.strip() for name, result in done.items() if name not in used]
    return "\n\n".join(last or [result.output.strip() for result in done.values()])


def plain_statement(steps: Mapping[str, StepResult], cause: str | None) -> str:
    """What is left to say when nothing was found: what failed, and why; a cause that a step gave is not said twice."""
    failed = {name: result for name, result in steps.items() if result.status not in ("completed", "skipped")}
    skipped = [name for name, result in steps.items() if result.status == "skipped"]
    said = cause and not any(result.error and result.error in cause for result in failed.values())
    lines = ["The goal was not reached." + (f" {cause}" if said else "")]
    lines += [f"- {name}: {result.error or result.status}" for name, result in failed.items()]
    if skipped:
        lines.append(f"- skipped: {', '.join(skipped)}")
    return "\n".join(lines)
