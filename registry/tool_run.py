"""Running one tool: under its time limit, contained, and its result as bounded text."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from registry.redaction import redact
from registry.result_text import Artifact, error_text, result_text
from registry.text import cut_middle
from registry.threads import DaemonPool, PoolExhaustedError, Returned, shared_pool
from registry.tool_context import ToolContext
from registry.tools import Tool, ToolArgumentsError, is_async

__all__ = ["Artifact", "ToolOutcome", "run_tool"]

GRACE = 5.0
"""Seconds a cancelled asynchronous tool may take to clean up; one that ignores its cancellation is left behind."""

MAX_ITEMS = 10_000
"""Items taken from a tool that is a generator."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What came of a call: text for the model (never empty, at most `tool.max_result_chars` characters)."""

    text: str
    is_error: bool
    artifact: Artifact | None = None


@dataclass(frozen=True, slots=True)
class _Result:
    """A value as text, converted where it was made, so that big ones don't hold up the loop."""

    text: str
    artifact: Artifact | None = None


async def run_tool(
    tool: Tool, arguments: Mapping[str, Any], *, context: ToolContext | None = None, pool: DaemonPool | None = None
) -> ToolOutcome:
    """Runs a tool with checked arguments; raises nothing but the caller's own CancelledError.

    `context` is what a tool that takes one is given.

    Whatever the tool raises, SystemExit and its own CancelledError included, is an error outcome. Synchronous tools run
    in a daemon thread, asynchronous ones in a task; when the caller is cancelled, the tool is cancelled and awaited
    first (a thread can't be: its late result is dropped).
    """
    if tool.context:
        arguments = {**arguments, tool.context: context or ToolContext(tool.name)}
    if is_async(tool.run):
        returned = await _run_async(lambda: tool.run(**arguments), tool.timeout)
    else:
        returned = await _run_sync(lambda: tool.run(**arguments), tool.timeout, pool or shared_pool())
    return _outcome(returned, tool.max_result_chars)


def _outcome(returned: Returned, limit: int) -> ToolOutcome:
    error = returned.error  # texts are masked before they are cut: half a key is one, too
    if error is None:
        result: _Result = returned.value
        return ToolOutcome(cut_middle(result.text, limit), False, result.artifact)
    if isinstance(error, ToolArgumentsError | _TimedOut | PoolExhaustedError):
        return ToolOutcome(cut_middle(redact(str(error)), limit), True)
    return ToolOutcome(cut_middle(redact(error_text(error)), limit), True)


class _TimedOut(Exception):
    """The time limit passed; the tool's own TimeoutError is another matter."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"timed out after {timeout:g} s")


async def _run_sync(call: Callable[[], Any], seconds: float, pool: DaemonPool) -> Returned:
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        returned = await pool.run(lambda: _converted(call()), seconds)
    except TimeoutError:
        return Returned(error=_TimedOut(seconds))
    except PoolExhaustedError as error:
        return Returned(error=error)
    if not inspect.isawaitable(returned.value) and not inspect.isasyncgen(returned.value):
        return returned
    value = returned.value  # a plain function that hands back a coroutine
    left = max(0.0, seconds - (loop.time() - started))
    later = await _run_async(lambda: value, left)
    return Returned(error=_TimedOut(seconds)) if isinstance(later.error, _TimedOut) else later


def _converted(value: Any) -> Any:
    """A tool's value as text; what must be awaited comes back as it is."""
    if inspect.isawaitable(value) or inspect.isasyncgen(value):
        return value
    if inspect.isgenerator(value):
        value = list(itertools.islice(value, MAX_ITEMS))
    if isinstance(value, Artifact):
        value = _masked(value)
        return _Result(value.line, value)
    return _Result(redact(result_text(value)))


def _masked(artifact: Artifact) -> Artifact:
    """The artifact without secrets in what is text in it, whatever its type says."""
    content = artifact.content
    name, mime = redact(artifact.name), redact(artifact.mime)
    same = name is artifact.name and mime is artifact.mime
    named = artifact if same else replace(artifact, name=name, mime=mime)
    try:
        text = content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError:  # an image, an archive
        return named
    shown = redact(text)
    return named if shown is text else replace(named, content=shown if isinstance(content, str) else shown.encode())


async def _contained(call: Callable[[], Any]) -> Returned:
    """The value or the exception of a tool. Nothing leaves: SystemExit in a task would end the loop."""
    try:
        value = call()
        while inspect.isawaitable(value):
            value = await value
        if inspect.isasyncgen(value):
            value = [item async for item in _some(value)]
        return Returned(_converted(value))
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - one of the two places that contain everything
        return Returned(error=error)


async def _some(items: Any) -> Any:
    count = 0
    async for item in items:
        yield item
        count += 1
        if count >= MAX_ITEMS:
            return


async def _run_async(call: Callable[[], Any], seconds: float) -> Returned:
    task = asyncio.create_task(_contained(call))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return _finished(task)
    except asyncio.CancelledError:
        await _stopped(task)
        raise
    await _stopped(task)
    return Returned(error=_TimedOut(seconds))


def _finished(task: asyncio.Task[Returned]) -> Returned:
    if task.cancelled():  # cancelled before its first step, by somebody else
        return Returned(error=asyncio.CancelledError("the tool was cancelled"))
    return task.result()


async def _stopped(task: asyncio.Task[Returned]) -> None:
    """Cancels a tool's task and waits until it has ended, within the grace."""
    _left_behind.add(task)
    task.add_done_callback(_left_behind.discard)
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE)


_left_behind: set[Awaitable[Any]] = set()
"""Tasks that ignored their cancellation: the loop itself holds only weak references."""
