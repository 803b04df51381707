"""`dagwright run`: a goal, or a plan from a file, to its end."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from agent.events import OnEvent
from agent.waits import Nobody
from executor.hooks_config import build_hooks
from executor.job_handle import JobHandle, start_job
from executor.job_types import Job
from executor.routing_settings import routed_models
from executor.settings import of_a_job
from executor.store.database import POOL_SIZE
from executor.store.jobs import NewJob
from executor.waits import Approve
from executor.workers.local_job import LocalJob, kept_job
from executor.workers.workshop import Workshop
from planner.checks import PlanError
from planner.parse import parse_plan
from planner.plan import Plan
from registry.artifacts import FolderArtifacts
from registry.errors import UsageError

from .approve import Asker, can_ask
from .database import opened
from .keyboard import Keyboard, no_signal, on_signal
from .live import LiveView, can_be_live
from .out import json_text, note, say, say_json, show
from .setup import Setup, data_dir, prepared
from .show import EventView, PlainView
from .view import account

EXIT_CODES = {"completed": 0, "failed": 1, "partial": 3, "budget_exceeded": 4, "needs_decision": 5, "cancelled": 130}
TICK = 0.2
"""Seconds between two looks at the clock of the live view."""


class PlanFileError(UsageError):
    """A plan from a file can't be run. `problems` holds (code, names, message) for all that is wrong with it."""

    code: ClassVar[str] = "plan_invalid"

    def __init__(self, file: str, error: PlanError) -> None:
        self.problems = error.to_json()
        lines = [f"  {text}" for _, _, text in error.problems]
        super().__init__("\n".join([f"the plan in {_named(file)} is not valid:", *lines]))


async def run(options: argparse.Namespace) -> int:
    """Runs the job, shows it, prints the answer; the exit code tells how it ended."""
    if (options.goal is None) == (options.plan is None):
        raise UsageError("give a goal, or a plan with --plan FILE, and not both")
    if options.goal is not None and not options.goal.strip():
        raise UsageError("the goal is empty: say what is to be done")
    async with prepared(options) as setup:
        routed_models(setup.settings, setup.models)  # what is wrong with it is told before anything begins
        work = options.goal if options.plan is None else _plan_from(options.plan, setup)
        job = await followed(options, setup, partial(_begun, work, options, setup))
    for name in job.artifacts:
        kept = setup.settings.database_url is not None
        note(f"artifact: {f'{name}, in the database' if kept else artifacts_of(setup, job.id) / name}")
    return EXIT_CODES[job.status]


Begin: TypeAlias = Callable[[OnEvent, Approve], AbstractAsyncContextManager[JobHandle | LocalJob]]
"""Begins a job: who sees its events, and who is asked about its calls."""


async def followed(options: argparse.Namespace, setup: Setup, begin: Begin) -> Job:
    """A job that is begun here, shown and spoken to until it has ended, and printed."""
    view = _view(options, setup)
    asker = Asker(view) if can_ask() else None
    with view:
        async with begin(view.on_event, asker or Nobody().park) as handle:
            with _listening(handle, view, asker):
                job = await handle.result()
    _print(job, options, setup, view)
    return job


@asynccontextmanager
async def _begun(
    work: str | Plan, options: argparse.Namespace, setup: Setup, on_event: OnEvent, approve: Approve
) -> AsyncIterator[JobHandle | LocalJob]:
    """The job, begun: kept in memory, or in the database where one is configured. The pipeline is the same."""
    metadata = {"notice": setup.notice} if setup.notice else {}
    if setup.settings.database_url is None:
        yield start_job(
            work,
            setup.models,
            tools=setup.tools,
            mode=options.mode or setup.mode,
            budget=setup.settings.budget,
            on_event=on_event,
            answer_mode=setup.settings.answer_mode,
            hooks=build_hooks(setup.options.hooks),
            options=setup.options,
            approve=approve,
            artifacts=lambda job_id: FolderArtifacts(artifacts_of(setup, job_id)),
            metadata=metadata,
        )
        return
    new = NewJob(
        work if isinstance(work, str) else work.goal or "Carry out the plan.",
        options.mode or setup.mode,
        request={
            "options": of_a_job(setup.settings),  # for a worker that goes on with it, should this process die
            "answer_mode": setup.settings.answer_mode,
            **({} if isinstance(work, str) else {"plan": work.to_json()}),
        },
        metadata=metadata,
    )
    shop = Workshop(
        setup.models, setup.tools, setup.settings, lambda settings: setup.options, on_event=on_event, approve=approve
    )
    async with opened(options, size=POOL_SIZE) as database, kept_job(database, new, shop) as handle:
        yield handle


def artifacts_of(setup: Setup, job_id: str) -> Path:
    """The folder that a job's artifacts are kept in."""
    return data_dir(setup.settings) / "artifacts" / job_id


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _plan_from(file: str, setup: Setup) -> Plan:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        value = json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"the plan in {_named(file)} can't be read: {error}") from None
    goal = str(value.get("goal") or "") if isinstance(value, dict) else ""
    names = tuple(setup.models.hints())
    try:
        return parse_plan(value, tools=setup.tools.names(), models=names, max_steps=setup.settings.max_steps, goal=goal)
    except PlanError as error:
        raise PlanFileError(file, error) from None


def _view(options: argparse.Namespace, setup: Setup) -> PlainView:
    if options.events:
        return EventView()
    if can_be_live() and not options.json and not options.plain:
        return LiveView(setup.notice)
    return PlainView()


@contextmanager
def _listening(handle: JobHandle | LocalJob, view: PlainView, asker: Asker | None) -> Iterator[None]:
    """Ctrl-C stops with grace, twice aborts; so does a termination. A line typed meanwhile answers the question that
    stands, else it is a follow-up. When nobody reads the events any more, the job is aborted: it would cost money for
    nobody."""
    loop = asyncio.get_running_loop()
    presses = 0
    timer = loop.call_later(TICK, lambda: tick())  # noqa: PLW0108 - defined below

    def pressed() -> None:
        nonlocal presses
        presses += 1
        if presses == 1:
            view.tell("Stopping: running steps finish. Press Ctrl-C again to abort.")
            handle.stop()
        else:
            handle.cancel()

    def tick() -> None:
        nonlocal timer
        view.tick()
        timer = loop.call_later(TICK, tick)

    def typed(line: str) -> None:
        if asker is None or not asker.takes(line):
            handle.send(line)

    def changed() -> None:
        if asker is not None:
            asker.typed()
        view.tick()

    def ended() -> None:
        if asker is not None:
            asker.end()

    view.on_gone = handle.cancel
    on_signal(loop, "SIGINT", pressed)
    on_signal(loop, "SIGTERM", handle.cancel)
    try:
        with Keyboard(typed, changed, on_end=ended) as keyboard:
            view.watch(keyboard)
            if asker is not None:
                asker.listen(keyboard)
            yield
    finally:
        view.watch(None)
        timer.cancel()
        no_signal(loop, "SIGINT")
        no_signal(loop, "SIGTERM")


def _print(job: Job, options: argparse.Namespace, setup: Setup, view: PlainView) -> None:
    if options.json:
        data: dict[str, Any] = job.to_json()
        data = {"notice": setup.notice, **data} if setup.notice else data
        if options.events:
            say(json_text(data, indent=None))
        else:
            say_json(data)
    elif not options.events and not view.answered(job.answer):
        if setup.notice:
            say(f"[{setup.notice}]\n")
        show(job.answer)
    if isinstance(view, LiveView):
        note(f"\n{account(view.view.done)}")
