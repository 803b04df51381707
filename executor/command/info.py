"""`dagwright models`, `tools`, `config check`: what there is, and where it comes from."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from executor.settings import describe, unknown_variables

from .setup import prepared, settings_of, tools_of


async def models(options: argparse.Namespace) -> int:
    """Each model with its roles, abilities, limits, price, and origin."""
    async with prepared(options) as setup:
        rows: list[dict[str, Any]] = []
        for name in setup.models.names():
            llm = setup.models.get(name)
            rows.append(
                {
                    "name": name,
                    "model": llm.model_id,
                    "roles": list(setup.models.roles(name)),
                    "abilities": [ability for ability, has in llm.abilities.items() if has],
                    "context_size": llm.context_size,
                    "max_output_tokens": llm.max_output_tokens,
                    "priced": llm.price is not None,
                    "fallbacks": list(setup.models.fallbacks(name)),
                    "origin": setup.models.origin.get(name, ""),
                }
            )
        default = setup.models.name_of(setup.models.get_default())
    if options.json:
        print(json.dumps({"default": default, "models": rows}, ensure_ascii=False, indent=1))
        return 0
    for row in rows:
        mark = " (default)" if row["name"] == default else ""
        print(f"{row['name']}{mark}: {row['model']}")
        print(f"  roles: {', '.join(row['roles']) or 'none'}; can: {', '.join(row['abilities']) or 'nothing special'}")
        size = f"{row['context_size']} tokens" if row["context_size"] else "unknown"
        print(
            f"  context: {size}; price: {'known' if row['priced'] else 'unknown'}; from: {row['origin'] or 'unknown'}"
        )
    return 0


def tools(options: argparse.Namespace) -> int:
    """Each tool with its description and what it declares; near-identical descriptions are pointed out."""
    registry = tools_of(settings_of(options))
    flags = ("read_only", "idempotent", "pure", "requires_approval", "network", "filesystem")
    similar = registry.similar_descriptions()
    if options.json:
        rows = [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "timeout": tool.timeout,
                **{flag: getattr(tool, flag) for flag in flags},
            }
            for tool in registry
        ]
        print(json.dumps({"tools": rows, "similar": [list(pair) for pair in similar]}, ensure_ascii=False, indent=1))
        return 0
    for tool in registry:
        declared = ", ".join(flag for flag in flags if getattr(tool, flag)) or "writes"
        print(f"{tool.name} ({declared}; {tool.timeout:g} s)\n  {tool.description.strip().splitlines()[0]}")
    for first, second in similar:
        print(f"warning: {first} and {second} have nearly the same description; a model can't tell them apart")
    return 0


def config_check(options: argparse.Namespace) -> int:
    """Each setting, its value and its origin; secrets are masked."""
    settings = settings_of(options)
    rows = describe(settings)
    unknown = unknown_variables(os.environ)
    if options.json:
        data = {row.name: {"value": row.value, "origin": row.origin} for row in rows}
        print(json.dumps({"settings": data, "unknown_variables": list(unknown)}, ensure_ascii=False, indent=1))
        return 0
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{row.name:<{width}}  {row.value}  ({row.origin})")
    for name in unknown:
        print(f"warning: {name} is not a setting")
    return 0
