"""`dagwright plan`: a validated plan, nothing run."""

from __future__ import annotations

import argparse
import json
import sys

from planner.checks import PlanError
from planner.planner import DAGPlanner

from .run import job_options
from .setup import prepared


async def plan(options: argparse.Namespace) -> int:
    """Prints the plan; exit code 1 when the model makes none that could be run."""
    async with prepared(options) as setup:
        job = job_options(setup)
        planner = DAGPlanner(setup.models, tools=setup.tools, max_steps=job.max_steps, prompt_name=job.plan_prompt)
        try:
            made = await planner.plan(options.goal)
        except PlanError as error:
            if options.json:
                problems = [[code, list(names), text] for code, names, text in error.problems]
                print(json.dumps({"error": {"code": error.code, "message": str(error), "problems": problems}}))
            print(f"dagwright: {error}", file=sys.stderr)
            return 1
        if options.json:
            print(json.dumps(made.to_json(), ensure_ascii=False, indent=1))
            return 0
        if setup.notice:
            print(f"[{setup.notice}]\n", file=sys.stderr)
        if options.format != "text":
            print(made.mermaid() if options.format == "mermaid" else made.dot())
            return 0
        for step in made.steps:
            after = f"  after {', '.join(step.dependencies)}" if step.dependencies else ""
            hints = ", ".join(hint for hint in (step.tool_hint, step.model_hint) if hint)
            print(f"{step.id}: {step.task}{after}{f'  [{hints}]' if hints else ''}")
        for note in (*made.repairs, *made.warnings):
            print(f"note: {note}", file=sys.stderr)
        return 0
