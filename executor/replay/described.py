"""What a job's first event says of how it is run, so that a replay needs nothing but the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from executor.job_options import JobOptions
from executor.options import RunOptions
from registry.models import ModelRegistry

_PLAIN = (str, int, float, bool, type(None))


def described_models(models: ModelRegistry) -> dict[str, dict[str, Any]]:
    """The registry as plain data: what each model is for and can do, never how it is reached."""
    return {name: _model(models, name) for name in models.names()}


def _model(models: ModelRegistry, name: str) -> dict[str, Any]:
    llm = models.get(name)
    return {
        "roles": list(models.roles(name)),
        "fallbacks": list(models.fallbacks(name)),
        "abilities": [ability for ability, able in llm.abilities.items() if able],
        "context_size": llm.context_size,
        "max_output_tokens": llm.max_output_tokens,
    }


def described_options(options: JobOptions) -> dict[str, Any]:
    """The options as plain data; hooks, the routing, and what only this process knows of agents, are left out."""
    told = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in ("run", "hooks")}
    run = {
        one.name: getattr(options.run, one.name) for one in fields(options.run) if one.name not in ("agent", "routing")
    }
    agent = {name: value for name, value in options.run.agent.items() if isinstance(value, _PLAIN)}
    return {**told, "run": {**run, "agent": agent}}


def options_of(told: Mapping[str, Any]) -> JobOptions:
    """Reads what `described_options` wrote."""
    rest = {name: value for name, value in told.items() if name != "run"}
    return JobOptions(RunOptions(**told["run"]), **rest)
