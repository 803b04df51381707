"""What the commands share: settings, models (the demonstration model among them), tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.settings import load_settings, read_environment
from registry.config import load_models
from registry.errors import NoModelError
from registry.llm import RetryPolicy
from registry.models import ModelRegistry
from registry.toolbox import default_tools
from registry.tools import ToolRegistry

if TYPE_CHECKING:
    from executor.settings_model import Settings

GIVEN = (
    "max_concurrency",
    "max_iterations",
    "max_replan_rounds",
    "step_timeout",
    "answer_mode",
    "max_steps",
    "workspace",
)
"""Options of the command that are settings."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings, models and tools for a command. `notice` heads every answer of a demonstration model, whose `profile`
    says how it is used."""

    settings: Settings
    models: ModelRegistry
    tools: ToolRegistry
    notice: str | None = None
    profile: Mapping[str, Any] | None = None


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings, with what was given to the command on top."""
    given = {name: getattr(options, name) for name in GIVEN if getattr(options, name, None) is not None}
    if getattr(options, "allow", None):
        given["fetch_allow"] = tuple(options.allow)
    return load_settings(toml=options.settings, given=given)


def tools_of(settings: Settings) -> ToolRegistry:
    """The built-in tools that the settings allow."""
    return default_tools(settings.workspace, settings.fetch_allow)


@asynccontextmanager
async def prepared(options: argparse.Namespace) -> AsyncIterator[Setup]:
    """Everything a command needs to work, closed afterwards.

    Without a configured model the installed demonstration model is used; with `--quick-start` it is installed first.
    Raises NoModelError, whose text says what to set.
    """
    settings = settings_of(options)
    tools = tools_of(settings)
    try:
        models = load_models(options.models, read_environment())
    except NoModelError as missing:
        from executor.demo.install import demo_installed

        if not demo_installed(settings.data_dir):
            if not getattr(options, "quick_start", False):
                raise
            await _quick_start(settings, missing)
        async with _demonstration(settings, tools) as setup:
            yield setup
        return
    _with_retries(models, settings)
    try:
        yield Setup(settings, models, tools)
    finally:
        await models.aclose()


def _with_retries(models: ModelRegistry, settings: Settings) -> None:
    """The settings' limits of tries and waits hold for every model."""
    retry = RetryPolicy(settings.llm_tries, settings.llm_wait_cap, settings.llm_total_wait)
    for name in models.names():
        models.get(name).retry = retry


def show_progress(text: str, share: float) -> None:
    """A line on stderr: how much of an installation is done, and what happens now."""
    print(f"[{share:4.0%}] {text}", file=sys.stderr, flush=True)


async def _quick_start(settings: Settings, missing: NoModelError) -> None:
    from executor.demo.install import install

    print(f"{missing}\n\nQuick start: fetching the small local demonstration model instead, once.", file=sys.stderr)
    await install(settings.data_dir, show_progress)


@asynccontextmanager
async def _demonstration(settings: Settings, tools: ToolRegistry) -> AsyncIterator[Setup]:
    from executor.demo.serve import HEADER, demo_server, profile

    print(f"No model is configured; using the demonstration model. {HEADER}.", file=sys.stderr, flush=True)
    async with demo_server(settings.data_dir) as llm:
        models = ModelRegistry()
        models.register("demo", llm, roles=["general"], origin="the installed demonstration model")
        try:
            yield Setup(settings, models, tools, HEADER, profile())
        finally:
            await models.aclose()
