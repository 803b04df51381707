"""What the commands share: settings, models (the demonstration model among them), tools, the job's options."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from executor.job_options import JobOptions
from executor.job_types import Mode
from executor.settings import load_settings, read_environment
from executor.telemetry_setup import exporting
from registry.config import load_models
from registry.errors import NoModelError
from registry.mcp import McpTools, mcp_tools
from registry.models import ModelRegistry
from registry.retry import RetryPolicy
from registry.toolbox import default_tools, search_provider
from registry.tools import ToolRegistry

from . import log
from .out import note, safe

if TYPE_CHECKING:
    from executor.settings_model import Settings

GIVEN = (
    "max_concurrency",
    "max_iterations",
    "max_replan_rounds",
    "step_timeout",
    "budget",
    "answer_mode",
    "max_steps",
    "routing",
    "workspace",
    "host",
    "port",
    "workers",
)
"""Options of the command that are settings."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a command works with. `mode` is the job's where none is asked for; `notice` heads every answer of a
    demonstration model."""

    settings: Settings
    models: ModelRegistry
    tools: ToolRegistry
    options: JobOptions
    mode: Mode = "auto"
    notice: str | None = None


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings, with what was given to the command on top."""
    given = {name: getattr(options, name) for name in GIVEN if getattr(options, name, None) is not None}
    if getattr(options, "allow", None):
        given["fetch_allow"] = tuple(options.allow)
    if getattr(options, "role", None):
        given["roles"] = ",".join(options.role)
    settings = load_settings(toml=options.settings, given=given)
    if options.log_level is None and "log_level" in settings.origins:
        log.configure(settings.log_level)
    return settings


def data_dir(settings: Settings) -> Path:
    """Where the command keeps what it downloads."""
    assert settings.data_dir is not None  # loading the settings fills it in
    return settings.data_dir


def tools_of(settings: Settings) -> ToolRegistry:
    """The built-in tools that the settings allow."""
    search = search_provider(settings.search, read_environment())
    return default_tools(settings.workspace, settings.fetch_allow, search=search)


@asynccontextmanager
async def all_tools(
    settings: Settings, warn: Callable[[str], None] | None = None
) -> AsyncIterator[tuple[ToolRegistry, McpTools]]:
    """The built-in tools and those of the MCP servers, which run meanwhile; and what the servers say of theirs.

    A server that can't be reached is told to `warn` (default: on stderr). Raises ConfigError where it is required.
    """
    warn = warn or (lambda text: tell(f"warning: {text}"))
    tools = tools_of(settings)
    if not settings.mcp:
        yield tools, McpTools()
        return
    async with mcp_tools(settings.mcp, env=read_environment(), taken=tools.names(), warn=warn) as found:
        for tool in found.tools:
            tools.register(tool)
        yield tools, found


def tell(text: str) -> None:
    """A line on stderr; a stranger's text can't steer the terminal."""
    note(safe(text))


@asynccontextmanager
async def prepared(options: argparse.Namespace, *, servers: bool = True) -> AsyncIterator[Setup]:
    """Everything a command needs to work, closed afterwards; without `servers` no MCP server is started.

    Where no model is configured at all, the installed demonstration model is used; with `--quick-start` it is
    installed first. Raises NoModelError, whose text says what to set.
    """
    settings = settings_of(options)
    with exporting(settings):
        async with _prepared(options, settings, servers) as setup:
            yield setup


@asynccontextmanager
async def _prepared(options: argparse.Namespace, settings: Settings, servers: bool) -> AsyncIterator[Setup]:
    unconfigured = False

    def nothing_configured() -> None:  # asked only after all else was looked for
        nonlocal unconfigured
        unconfigured = True

    try:
        models = load_models(options.models, read_environment(), demo=nothing_configured)
    except NoModelError as missing:
        if not unconfigured:
            raise
        await demonstration_model(settings, missing, wanted=getattr(options, "quick_start", False))
        async with all_tools(settings) as (tools, _), _demonstration(settings, tools) as setup:
            yield setup
        return
    with_retries(models, settings)
    try:
        if not servers:
            yield Setup(settings, models, tools_of(settings), JobOptions.from_settings(settings))
            return
        async with all_tools(settings) as (tools, _):
            yield Setup(settings, models, tools, JobOptions.from_settings(settings))
    finally:
        await models.aclose()


def with_retries(models: ModelRegistry, settings: Settings) -> None:
    """The settings' limits of tries and waits hold for every model."""
    retry = RetryPolicy(settings.llm_tries, settings.llm_wait_cap, settings.llm_total_wait)
    for name in models.names():
        models.get(name).retry = retry


def show_progress(text: str, share: float) -> None:
    """A line on stderr: how much of an installation is done, and what happens now."""
    note(f"[{share:4.0%}] {text}")


async def demonstration_model(settings: Settings, missing: NoModelError, *, wanted: bool) -> None:
    """Sees to it that the demonstration model is there; without the user's word nothing is fetched."""
    from executor.demo.install import demo_installed, install

    if demo_installed(data_dir(settings)):
        return
    if not wanted:
        raise missing
    note(f"{missing}\n\nQuick start: fetching the small local demonstration model instead, once.")
    await install(data_dir(settings), show_progress)


@asynccontextmanager
async def _demonstration(settings: Settings, tools: ToolRegistry) -> AsyncIterator[Setup]:
    from executor.demo.profile import adapted, profile
    from executor.demo.serve import HEADER, demo_server

    use = adapted(profile(), JobOptions.from_settings(settings), tools, said=settings.origins)
    note(f"No model is configured; using the demonstration model. {HEADER}.")
    async with demo_server(data_dir(settings)) as llm:
        models = ModelRegistry()
        models.register("demo", llm, roles=["general"], origin="the installed demonstration model")
        with_retries(models, settings)
        try:
            yield Setup(settings, models, use.tools, use.options, use.mode, HEADER)
        finally:
            await models.aclose()
