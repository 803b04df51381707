"""`dagwright experiment`: what can be done with an experiment, each in a module of its own."""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from registry.errors import NotBuiltError

from .keyboard import interrupt_at_once


async def experiment(options: argparse.Namespace) -> int:
    """Does the action; its exit code."""
    name = f"experiment_{options.action}"
    if find_spec(f"executor.command.{name}") is None:
        raise NotBuiltError(f"`dagwright experiment {options.action}` is not built yet")
    interrupt_at_once()
    module: Any = import_module(f"executor.command.{name}")
    code: int = await getattr(module, name)(options)
    return code
