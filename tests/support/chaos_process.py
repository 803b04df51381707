"""The real command with tools whose effects are counted outside: `python -m tests.support.chaos_process serve …`.

A tool that has an effect writes a line into the file that the variable DW_TEST_EFFECTS names: its call's key, and what
it did. It takes a moment before and after, so that a process that is killed often dies in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from executor.command import setup
from executor.workers import supervisor, suspects
from registry.tool_context import ToolContext
from registry.tools import Tool, tool

EFFECTS, PAUSE = "DW_TEST_EFFECTS", "DW_TEST_PAUSE"
AS_WORKER = "--as-worker"


def effects(file: Path) -> list[dict[str, Any]]:
    """What was done, in the order in which it was done."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def counted_tools() -> list[Tool]:
    """Tools that wait, write a line, and wait. `record` is like most tools that write; `put` may be repeated; what
    became of `checked` can be looked up; `send` needs a human's approval; `look` has no effect."""
    file, longest = Path(os.environ[EFFECTS]), float(os.environ.get(PAUSE, "0.3"))

    async def done(context: ToolContext, what: str) -> str:
        await asyncio.sleep(random.random() * longest)
        line = {"key": context.key, "what": what, "tool": context.tool_name, "pid": os.getpid(), "at": time.time()}
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
        finally:
            os.close(fd)
        await asyncio.sleep(random.random() * longest)
        return f"done: {what}"

    async def looked_up(key: str) -> bool:
        return any(line["key"] == key for line in effects(file))

    @tool
    async def record(what: str, context: ToolContext) -> str:
        """Writes something down."""
        return await done(context, what)

    @tool(idempotent=True)
    async def put(what: str, context: ToolContext) -> str:
        """Puts something where it belongs."""
        return await done(context, what)

    @tool(verify=looked_up)
    async def checked(what: str, context: ToolContext) -> str:
        """Writes something down; whether it was can be found out."""
        return await done(context, what)

    @tool(requires_approval=True)
    async def send(what: str, context: ToolContext) -> str:
        """Sends something to others."""
        return await done(context, what)

    @tool(read_only=True)
    async def look(what: str) -> str:
        """Looks something up."""
        await asyncio.sleep(random.random() * longest)
        return f"seen: {what}"

    @tool(read_only=True)
    async def wait(what: str) -> str:
        """Takes exactly as long as it may."""
        await asyncio.sleep(longest)
        return f"waited: {what}"

    return [record, put, checked, send, look, wait]


def counted_names() -> tuple[str, ...]:
    """The tools that have an effect."""
    return ("record", "put", "checked", "send")


def main() -> int:
    """The command, or a worker process, with these tools instead of the built-in ones."""
    from registry.tools import ToolRegistry

    setup.tools_of = lambda settings: ToolRegistry(counted_tools())
    child = (sys.executable, "-m", "tests.support.chaos_process", AS_WORKER)
    _replace_default(supervisor.Supervisor.__init__, child)
    _replace_default(suspects.Suspects.__init__, child)
    if sys.argv[1:] == [AS_WORKER]:
        from executor.workers.worker import main as worker

        return worker()
    from executor.cli import main as command

    return command()


def _replace_default(function: Callable[..., Any], command: tuple[str, ...]) -> None:
    """Worker processes are started with `command`, as WORKER would be."""
    if function.__kwdefaults__ and "command" in function.__kwdefaults__:
        function.__kwdefaults__["command"] = command
    else:
        assert function.__defaults__ == (supervisor.WORKER,)
        function.__defaults__ = (command,)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)
