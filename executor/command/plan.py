"""`dagwright plan`: a validated plan, nothing run."""

from __future__ import annotations

import argparse

from planner.plan import Plan
from registry.errors import UsageError

from .out import note, say, say_json, show
from .setup import prepared
from .view import one_line


async def plan(options: argparse.Namespace) -> int:
    """Prints the plan. Raises PlanError when the model makes none that could be run."""
    if not options.goal.strip():
        raise UsageError("the goal is empty: say what is to be planned")
    async with prepared(options) as setup:
        made = await setup.options.planner(setup.models, setup.tools).plan(options.goal)
    if options.json:
        say_json(made.to_json())
        return 0
    if setup.notice:
        note(f"[{setup.notice}]\n")
    match options.format:
        case "mermaid":
            show(made.mermaid())
        case "dot":
            show(made.dot())
        case _:
            _text(made)
    for remark in (*made.repairs, *made.warnings):
        note(f"note: {remark}")
    return 0


def _text(plan: Plan) -> None:
    """The plan generation by generation: the steps of one can run at the same time."""
    steps = {step.id: step for step in plan.steps}
    for number, names in enumerate(plan.generations, 1):
        say(f"generation {number}")
        for name in names:
            step = steps[name]
            after = f"  (after {', '.join(step.dependencies)})" if step.dependencies else ""
            hints = ", ".join(hint for hint in (step.tool_hint, step.model_hint) if hint)
            show(f"  {name}: {one_line(step.task)}{after}{f'  [{hints}]' if hints else ''}")
