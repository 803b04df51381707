"""Whether the calls of tools in a log are those that its replies ask for."""

from __future__ import annotations

from collections.abc import Iterator

from registry.tools import ToolRegistry

from .script import Script
from .stage import Departure


def differing_calls(script: Script, tools: ToolRegistry) -> Iterator[Departure]:
    yield from ()
