"""`dagwright run`: a goal, or a plan from a file, to its end."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from executor.job import JobHandle, JobOptions, start_job
from executor.job_types import Job
from planner.checks import PlanError
from planner.parse import parse_plan
from planner.plan import Plan
from registry.errors import NotBuiltError, UsageError

from .setup import Setup, prepared
from .show import EventView, LiveView, PlainView

EXIT_CODES = {"completed": 0, "failed": 1, "partial": 3, "budget_exceeded": 4, "needs_decision": 5, "cancelled": 130}


async def run(options: argparse.Namespace) -> int:
    """Runs the job, shows it, prints the answer; the exit code tells how it ended."""
    if options.budget is not None:
        raise NotBuiltError("--budget is not built yet: the job is refused rather than started without its budget")
    if (options.goal is None) == (options.plan is None):
        raise UsageError("give a goal, or a plan with --plan FILE, and not both")
    async with prepared(options) as setup:
        work = options.goal if options.plan is None else _plan_from(options.plan, setup)
        mode = options.mode or (setup.profile or {}).get("mode", "auto")
        view = _view(options, setup)
        with view:
            handle = start_job(
                work,
                setup.models,
                tools=setup.tools,
                mode=mode,
                on_event=view.on_event,
                answer_mode=setup.settings.answer_mode,
                options=job_options(setup),
                metadata={"notice": setup.notice} if setup.notice else None,
            )
            async with _listening(handle):
                job = await handle.result()
    _print(job, options, setup, view)
    return EXIT_CODES[job.status]


def job_options(setup: Setup) -> JobOptions:
    """The job's options: the settings', with the demonstration profile on top."""
    options = JobOptions.from_settings(setup.settings)
    profile = setup.profile
    if profile is None:
        return options
    agent = {**options.run.agent, **{k: profile[k] for k in ("max_iterations", "completion_check", "use_native_tools")}}
    run_options = replace(
        options.run, agent=agent, max_concurrency=profile["max_concurrency"], step_timeout=profile["step_timeout"]
    )
    return replace(
        options,
        run=run_options,
        max_replan_rounds=profile["max_replan_rounds"],
        max_steps=min(options.max_steps, profile["max_steps"]),
        plan_prompt=profile["plan_prompt"],
        router=False,
    )


def _plan_from(file: str, setup: Setup) -> Plan:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        value = json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"the plan {file}: {error}") from None
    goal = str(value.get("goal") or "") if isinstance(value, dict) else ""
    names = tuple(setup.models.hints())
    try:
        return parse_plan(value, tools=setup.tools.names(), models=names, max_steps=setup.settings.max_steps, goal=goal)
    except PlanError as error:
        raise UsageError(f"the plan {file}: {error}") from None


def _view(options: argparse.Namespace, setup: Setup) -> PlainView:
    if options.events:
        return EventView()
    if sys.stderr.isatty() and sys.stdout.isatty() and not options.json and not options.plain:
        return LiveView(setup.notice)
    return PlainView()


@asynccontextmanager
async def _listening(handle: JobHandle) -> AsyncIterator[None]:
    """Ctrl-C stops with grace, twice aborts; a line typed meanwhile is a follow-up."""
    loop = asyncio.get_running_loop()
    presses = 0

    def pressed() -> None:
        nonlocal presses
        presses += 1
        if presses == 1:
            print("\nStopping: running steps finish. Press Ctrl-C again to abort.", file=sys.stderr, flush=True)
            handle.stop()
        else:
            handle.cancel()

    loop.add_signal_handler(signal.SIGINT, pressed)
    loop.add_signal_handler(signal.SIGTERM, handle.cancel)
    typed = sys.stdin is not None and sys.stdin.isatty()
    if typed:
        loop.add_reader(sys.stdin, lambda: _heard(handle, loop))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
        if typed:
            loop.remove_reader(sys.stdin)


def _heard(handle: JobHandle, loop: asyncio.AbstractEventLoop) -> None:
    line = sys.stdin.readline()
    if not line:
        loop.remove_reader(sys.stdin)  # end of input
    elif line.strip():
        handle.send(line.strip())


def _print(job: Job, options: argparse.Namespace, setup: Setup, view: PlainView) -> None:
    if options.json:
        data: dict[str, Any] = job.to_json()
        print(json.dumps({"notice": setup.notice, **data} if setup.notice else data, ensure_ascii=False, indent=1))
    elif not options.events and not view.answered:
        if setup.notice:
            print(f"[{setup.notice}]\n")
        print(job.answer)
    if isinstance(view, LiveView):
        from .view import account

        print(account(view.view.done), file=sys.stderr)
