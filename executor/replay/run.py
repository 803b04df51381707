"""`replay`: a job once more, from its log alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agent.past import AgentPast, Key
from executor.job import JobRunner
from executor.job_state import JobState
from executor.job_types import Job, JobRequest
from planner.plan import Plan
from registry.errors import UsageError
from registry.messages import Event, Message
from registry.tools import ToolRegistry

from .actors import (
    Conductor,
    RecordedBudget,
    RecordedLog,
    RecordedTime,
    RecordedWaits,
    StandingClock,
    inert_tools,
    recorded_models,
)
from .calls import differing_calls
from .departures import Departure
from .described import options_of
from .script import Script
from .stage import Stage


class NotReplayableError(UsageError):
    """The job can't be replayed."""

    code: ClassVar[str] = "not_replayable"


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a replay. `departures` are in the log's order; without any it went the same way."""

    job_id: str
    departures: tuple[Departure, ...]
    job: Job | None = None

    @property
    def same(self) -> bool:
        """Whether plans, statuses and answers are those of the log."""
        return not self.departures

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON data."""
        return {"job": self.job_id, "same": self.same, "departures": [one.to_json() for one in self.departures]}


async def replay(events: Sequence[Event], tools: ToolRegistry | Iterable[Any] = ()) -> Replay:
    """Runs an ended job again from all events of its log, internal channels included, and says where it departs.

    No model is called, no tool or hook is run, nothing is stored; of `tools` only what they declare is looked at.
    Replies, results of tools, what was said to the job, and what cut it off are those of the log, at the same places.
    What is asked for and not in the log is a departure: the replay ends there. Raises NotReplayableError for a log that
    does not go from a job's start to its end, or that an earlier version wrote.
    """
    try:
        script = Script(events)
    except (ValueError, KeyError, TypeError) as error:
        raise NotReplayableError(f"the log can't be read: {error}") from None
    if "registry" not in script.opening:
        raise NotReplayableError("the log was written by an earlier version: it does not say which models there were")
    known = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
    options = options_of(script.opening["options"])
    stage = Stage(script, options.run.step_timeout)
    state = _state(script, stage, inert_tools(script.opening["tools"], known, stage))
    runner = stage.runner = JobRunner(state)
    job = await _run(runner, stage)
    departures = [*stage.departures, *differing_calls(script, state.tools)]
    return Replay(script.job_id, tuple(sorted(departures, key=lambda one: one.seq or len(events) + 1)), job)


def _state(script: Script, stage: Stage, tools: ToolRegistry) -> JobState:
    """The job, on stand-ins for everything outside of it."""
    opening, clock = script.opening, StandingClock(script.started_at)
    options = options_of(opening["options"])
    options = replace(options, run=replace(options.run, step_timeout=None))
    state = JobState(
        _request(script),
        recorded_models(opening, stage, clock),
        tools,
        log=RecordedLog(script.job_id, stage, clock),
        options=options,
        clock=clock,
    )
    state.ledger.reservations = RecordedBudget(stage)
    state.ledger.cut_by_budget = script.cut_by_budget
    state.time = state.writer.time = RecordedTime(clock)
    stage.expire_job = state.time.expire
    state.waits = RecordedWaits(stage)
    state.services = replace(state.services, past=_agents(script), waits=state.waits, marker=opening["marker"])
    state.new_executor = Conductor.on(stage)
    state.routes = tuple(script.routes.get((None, 1), ()))
    if script.single:
        for told in (one for agent in script.uncertain.values() for one in agent):
            state.effects.hear(told)
    return state


def _agents(script: Script) -> dict[Key, AgentPast]:
    """The agents' records. A call that has no end was under way when its agent was cut off: it begins again, and ends
    as little. One that a worker's death left behind has an end, which says so."""
    agents = AgentPast.read(script.of_agents())
    for past in agents.values():
        past.calls = {key: call for key, call in past.calls.items() if call.begun is None or call.over is not None}
    return agents


def _request(script: Script) -> JobRequest:
    opening = script.opening
    return JobRequest(
        opening["goal"],
        None if script.plan is None else Plan.from_json(script.plan),
        opening["mode"],
        tuple(Message.from_json(message) for message in opening["history"]),
        opening["answer_mode"],
        plan_only=opening["plan_only"],
        kept={result.id: result for result in script.kept},
        domain=opening["domain"],
    )


async def _run(runner: JobRunner, stage: Stage) -> Job | None:
    """The job to its end, with somebody beside it who does what the script says. None: it was misused."""
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.follow(), name="replay")
        task = group.create_task(_job(runner), name=f"job {stage.script.job_id}")
        try:
            await asyncio.wait({task})
        finally:
            stage.over()
    return runner.state.ended


async def _job(runner: JobRunner) -> None:
    with suppress(UsageError):  # its account says so
        await runner.run()
