"""How the demonstration model is used: the profile beside this file, applied to a job's options."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from executor.job_options import JobOptions
from executor.job_types import Mode
from registry.errors import ConfigError
from registry.tools import ToolRegistry

_AGENT = ("max_iterations", "completion_check", "use_native_tools", "system_prompt")
_RUN = ("max_concurrency", "step_timeout")
_JOB = ("max_replan_rounds", "max_steps", "max_task_chars", "plan_prompt")


@dataclass(frozen=True, slots=True)
class Use:
    """How a job is run on a model: its mode where none is asked for, its options, the tools it is offered."""

    mode: Mode
    options: JobOptions
    tools: ToolRegistry


def profile() -> Mapping[str, Any]:
    """What suits a small, slow model: small plans, one round, two tools, and no call that can be saved."""
    return tomllib.loads(Path(__file__).with_name("profile.toml").read_text("utf-8"))


def adapted(profile: Mapping[str, Any], options: JobOptions, tools: ToolRegistry, said: Collection[str] = ()) -> Use:
    """The options and tools with the profile on top. `said` names the settings that the user gave: they stand.

    `tools` in a profile keeps those of its names that there are, and the file tools, which are there only where the
    user named a folder. Raises ConfigError for a key that is not used.
    """
    left = {name: value for name, value in profile.items() if name not in said}
    mode: Mode = left.pop("mode", "auto")
    names = left.pop("tools", None)
    agent = {**options.run.agent, **_taken(left, _AGENT)}
    run = replace(options.run, agent=agent, **_taken(left, _RUN))
    options = replace(options, run=run, **_taken(left, _JOB))
    if left:
        raise ConfigError(f"the demonstration profile has keys that nothing uses: {', '.join(sorted(left))}")
    if names is not None:
        tools = tools.subset(tool.name for tool in tools if tool.name in names or tool.filesystem)
    return Use(mode, options, tools)


def _taken(left: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The profile's values of these names, taken out of it."""
    return {name: left.pop(name) for name in names if name in left}
