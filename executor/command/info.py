"""`dagwright models`, `tools`, `config check`: what there is, and where it comes from."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent.hooks import HookEvent
from executor.hooks_config import build_hooks
from executor.routing_settings import check_policies, routed_models
from executor.settings import describe, read_environment, unknown_variables
from registry.mcp import McpTools
from registry.models import ModelRegistry
from registry.toml_file import find_file
from registry.toolbox.web_search import HOW_TO_GET
from registry.tools import ToolRegistry

from .out import note, safe, say, say_json
from .setup import all_tools, prepared, settings_of

EVENTS: Mapping[str, HookEvent] = {"SessionStart": "start", "PreToolUse": "pre", "PostToolUse": "post"}
if TYPE_CHECKING:
    from executor.settings_model import Settings

FLAGS = ("read_only", "idempotent", "pure", "requires_approval", "network", "filesystem")


async def models(options: argparse.Namespace) -> int:
    """Each model with its roles, abilities, limits, price, and origin."""
    async with prepared(options, servers=False) as setup:
        rows = [_model(setup.models, name) for name in setup.models.names()]
        default = setup.models.name_of(setup.models.get_default())
    if options.json:
        say_json({"default": default, "models": rows})
        return 0
    for row in rows:
        mark = " (default)" if row["name"] == default else ""
        say(safe(f"{row['name']}{mark}: {row['model']}"))
        say(f"  roles: {', '.join(row['roles']) or 'none'}; can: {', '.join(row['abilities']) or 'nothing special'}")
        size = f"{row['context_size']} tokens" if row["context_size"] else "unknown"
        price = "known" if row["priced"] else "unknown"
        say(safe(f"  context: {size}; price: {price}; from: {row['origin'] or 'unknown'}"))
    return 0


def _model(models: ModelRegistry, name: str) -> dict[str, Any]:
    llm = models.get(name)
    return {
        "name": name,
        "model": llm.model_id,
        "roles": list(models.roles(name)),
        "abilities": [ability for ability, has in llm.abilities.items() if has],
        "context_size": llm.context_size,
        "max_output_tokens": llm.max_output_tokens,
        "priced": llm.price is not None,
        "fallbacks": list(models.fallbacks(name)),
        "origin": models.origin.get(name, ""),
    }


async def tools(options: argparse.Namespace) -> int:
    """Each tool with its description, where it comes from and what it declares; near-identical descriptions are
    pointed out. MCP servers are started for it."""
    if options.hooks:
        return _hooks(options)
    settings = settings_of(options)
    async with all_tools(settings) as (registry, found):
        return _listed(options, settings, registry, found)


def _listed(options: argparse.Namespace, settings: Settings, registry: ToolRegistry, found: McpTools) -> int:
    similar = registry.similar_descriptions()
    servers = {tool.name: tool.origin for tool in found.tools}
    missing = {} if "web_search" in registry or settings.search == "none" else {"web_search": HOW_TO_GET}
    if options.json:
        rows = [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "timeout": tool.timeout,
                "origin": servers.get(tool.name, "built in"),
                **({"server_says": found.hints[tool.name]} if tool.name in found.hints else {}),
                **{flag: getattr(tool, flag) for flag in FLAGS},
            }
            for tool in registry
        ]
        say_json({"tools": rows, "similar": [list(pair) for pair in similar], "missing": missing})
        return 0
    for tool in registry:
        declared = ", ".join(flag for flag in FLAGS if getattr(tool, flag)) or "writes"
        timeout = "no time limit" if tool.timeout is None else f"{tool.timeout:g} s"
        origin = f"; from {servers[tool.name]}" if tool.name in servers else ""
        says = f"; the server says: {found.hints[tool.name]}" if tool.name in found.hints else ""
        say(safe(f"{tool.name} ({declared}; {timeout}{origin}{says})"))
        say(safe(f"  {tool.description.strip().splitlines()[0]}"))
    for first, second in similar:
        note(f"warning: {first} and {second} have nearly the same description; a model can't tell them apart")
    for text in missing.values():
        note(f"note: {text}")
    return 0


def _hooks(options: argparse.Namespace) -> int:
    """The declared hooks in the order in which they run: at the start, before each call, after it."""
    registry = build_hooks(settings_of(options).hooks)
    entries = [(event, entry) for event, kind in EVENTS.items() for entry in registry.entries(kind)]
    if options.json:
        rows = [
            {"name": entry.name, "event": event, "priority": entry.priority, "origin": entry.origin}
            for event, entry in entries
        ]
        say_json({"hooks": rows})
        return 0
    for event, entry in entries:
        say(safe(f"{event:<12}  {entry.priority:>5g}  {entry.name}  ({entry.origin})"))
    if not entries:
        say("no hooks: declare them as [[hooks]] tables in dagwright.toml")
    return 0


def config_check(options: argparse.Namespace) -> int:
    """Each setting, its value and its origin, with secrets masked; and the models' file, which is read but not tried.

    Raises ConfigError for what is wrong in either.
    """
    environment = read_environment()
    settings = settings_of(options)
    build_hooks(settings.hooks)  # whether each can be had
    check_policies(settings)
    rows = describe(settings, environment)
    warnings = unknown_variables(environment)
    file = find_file("models.toml", options.models, "DAGWRIGHT_MODELS", env=environment)
    names: list[str] = []
    if file is not None:
        models = ModelRegistry.from_toml(file, env=environment)
        names = list(models.names())
        routed_models(settings, models)
    if options.json:
        data = {row.name: {"value": row.value, "origin": row.origin} for row in rows}
        found = None if file is None else str(file)
        say_json({"settings": data, "models_file": found, "models": names, "warnings": list(warnings)})
        return 0
    width = max(len(row.name) for row in rows)
    for row in rows:
        say(safe(f"{row.name:<{width}}  {row.value}  ({row.origin})"))
    said = (
        "none: `dagwright models` says what the environment offers" if file is None else f"{file}: {', '.join(names)}"
    )
    say(safe(f"{'models file':<{width}}  {said}"))
    for warning in warnings:
        note(f"warning: {warning}")
    return 0
