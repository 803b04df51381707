"""What a worker process runs jobs with, and a job made ready to run out of its row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from executor.hooks_config import build_hooks
from executor.job_options import JobOptions
from executor.job_state import JobState
from executor.job_types import JobRequest
from executor.log.front import JobLog
from executor.recovery import JobPast
from executor.results import StepResult
from executor.settings import settings_of_job
from planner.parse import parse_plan
from planner.plan import Plan
from registry.artifacts import ArtifactStore
from registry.budget import Budget
from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import ConfigError
from registry.messages import Event, Message
from registry.models import ModelRegistry
from registry.tools import ToolRegistry

from .inbox import Inbox

if TYPE_CHECKING:
    from executor.job import JobRunner
    from executor.settings_model import Settings
    from executor.waits import Approve

log = structlog.get_logger(__name__)


GUARDS = "hooks"
"""In a job's request: the declared hooks that it must not run without."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """Models, tools and settings of this machine. `options_of` makes a job's options of the settings with the job's own
    on top; `notice` goes into the metadata of every job, where a demonstration model answers; `inbox` hears what is
    said to jobs: without one they hear it when they write to their logs. For a process that runs one job of its own:
    `approve` is asked about calls that need approval, `on_event` sees each public event, `on_runner` gets the job."""

    models: ModelRegistry
    tools: ToolRegistry
    settings: Settings
    options_of: Callable[[Settings], JobOptions] = JobOptions.from_settings
    notice: str | None = None
    inbox: Inbox | None = None
    approve: Approve | None = None
    on_event: Callable[[Event], None] | None = None
    on_runner: Callable[[JobRunner], None] | None = None
    clock: Clock = SYSTEM_CLOCK

    def job(
        self,
        row: Mapping[str, Any],
        log: JobLog,
        artifacts: ArtifactStore,
        barrier: Callable[[], Awaitable[None]],
        past: JobPast | None = None,
    ) -> JobState:
        """The job of a row of `dw_jobs`; with a `past` it goes on. Raises DagwrightError where it asks for what is not
        there, or worked with a model that is no longer there."""
        asked = row["request"]
        settings = settings_of_job(self.settings, asked.get("options") or {})
        options = self.options_of(settings)
        _check_guards(asked.get(GUARDS) or (), options)
        models = self.models.subset(asked["models"]) if asked.get("models") else self.models
        tools = self._tools(asked.get("tools"), past)
        for name in () if past is None else past.models:
            models.get(name)  # its steps' agents belong to these
        return JobState(
            self._request(row, settings, _plan(row, models, tools, options)),
            models,
            tools,
            log=log,
            hooks=build_hooks(options.hooks),
            options=options,
            approve=self.approve,
            open_to_decisions=True,
            artifacts=artifacts,
            barrier=barrier,
            clock=self.clock,
            past=past,
        )

    def _tools(self, asked: Sequence[str] | None, past: JobPast | None) -> ToolRegistry:
        """The tools that were asked for. A job that goes on does without those that are no longer there, a server's
        that is out for instance: its models are told so when they call one."""
        if past is not None:
            begun = past.tools if asked is None else asked
            if missing := [name for name in begun if name not in self.tools]:
                log.warning("tools_missing", tools=missing)
            return self.tools if asked is None else self.tools.subset(name for name in asked if name in self.tools)
        return self.tools if asked is None else self.tools.subset(asked)

    def _request(self, row: Mapping[str, Any], settings: Settings, plan: Plan | None) -> JobRequest:
        asked = row["request"]
        budget = asked["budget"] if asked.get("budget") is not None else settings.budget
        return JobRequest(
            row["goal"],
            plan,
            row["mode"],
            tuple(Message.from_json(message) for message in asked.get("history") or ()),
            asked.get("answer_mode") or settings.answer_mode,
            {"notice": self.notice, **row["metadata"]} if self.notice else row["metadata"],
            None if budget is None else Budget.of(budget),
            row["kind"] == "plan",
            row["created_at"].timestamp(),
            row["parent"],
            {result["id"]: StepResult.from_json(result) for result in asked.get("kept") or ()},
            asked.get("domain"),
            asked.get("pins") or {},
        )


def _plan(row: Mapping[str, Any], models: ModelRegistry, tools: ToolRegistry, options: JobOptions) -> Plan | None:
    """The plan that was given. That of a fork was checked when the job was run that it comes from."""
    plan, hints = row["request"].get("plan"), tuple(models.hints())
    if plan is None:
        return None
    if "kept" in row["request"]:
        return Plan.from_json(plan)
    return parse_plan(plan, tools=tools.names(), models=hints, max_steps=options.max_steps, goal=row["goal"])


def _check_guards(wanted: Collection[str], options: JobOptions) -> None:
    """Raises ConfigError where a hook that the job began with is not declared here."""
    missing = sorted(set(wanted) - {entry.use for entry in options.hooks})
    if missing:
        raise ConfigError(f"the job was begun with hooks that are not declared here: {', '.join(missing)}")
