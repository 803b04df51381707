"""Running one hook, contained: whatever it does, its caller gets a well-formed result or the reason why not."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from registry.text import clean, cut_end

from .hook_types import Hook, HookContext, HookResult
from .waits import ApprovalRequest

NOTE_CHARS = 500
"""Characters of a hook's note, and of why it failed."""


class HookFailure(Exception):
    """The hook gave no usable result; the text says why."""


async def run_hook(hook: Hook, ctx: HookContext, seconds: float) -> HookResult | None:
    """Runs the hook; None: it has nothing to say.

    Raises HookFailure for whatever goes wrong in it, being late included. Three things pass: the caller's own
    cancellation, also where the hook swallows it; KeyboardInterrupt and SystemExit, which end the process whoever is
    running. `should_trigger` and `execute` may be plain functions; what they do without awaiting is not bounded.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        result = await _bounded(hook, ctx, seconds)
        outcome = None if result is None else _checked(result, ctx)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except asyncio.CancelledError:
        if task.cancelling():
            raise
        raise HookFailure("it was cancelled from within") from None
    except BaseException as error:  # noqa: BLE001 - whatever a hook raises is its failure, never its caller's
        await _pass_cancellation(task, before)
        failure = error if isinstance(error, HookFailure) else HookFailure(_told(error))
        raise failure from None
    await _pass_cancellation(task, before)
    return outcome


async def _bounded(hook: Hook, ctx: HookContext, seconds: float) -> Any:
    late = HookFailure(f"it took longer than {seconds:g} s")
    own = replace(ctx, tool_args=copied(ctx.tool_args))
    try:
        async with asyncio.timeout(seconds) as limit:
            triggers = await _value(hook.should_trigger(own))
            result = await _value(hook.execute(own)) if triggers else None
    except TimeoutError as error:
        raise (late if limit.expired() else error) from None
    if limit.expired():  # it caught the interruption and went on
        raise late
    return result


async def _value(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _pass_cancellation(task: asyncio.Task[Any], before: int) -> None:
    """Cancels anew where the hook caught a cancellation that was meant for all of us."""
    if task.cancelling() > before:
        await asyncio.sleep(0)  # one that is still to be delivered comes here
        raise asyncio.CancelledError


def _checked(result: Any, ctx: HookContext) -> HookResult:
    """The result, well-formed: anyone can put anything into its fields."""
    if not isinstance(result, HookResult):
        raise HookFailure(f"it returned {_kind(result)}, not a HookResult")
    if not isinstance(result.allow, bool):
        raise HookFailure(f"allow must be true or false, not {_kind(result.allow)}")
    args = result.modified_args
    if args is not None and not (isinstance(args, Mapping) and all(isinstance(key, str) for key in args)):
        raise HookFailure(f"modified_args must be a mapping of texts to values, not {_kind(args)}")
    text = result.modified_result
    if text is not None and not isinstance(text, str):
        raise HookFailure(f"modified_result must be a text, not {_kind(text)}")
    return replace(
        result,
        error=clean(result.error) if isinstance(result.error, str) else None,
        modified_args=None if args is None else copied(args),
        modified_result=None if text is None else clean(str(text)),
        side_effects=_notes(result.side_effects),
        approval=_request(result.approval),
    )


def _notes(value: Any) -> tuple[str, ...]:
    """The notes as bounded texts; None is none, a lone text is one."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (cut_end(clean(value), NOTE_CHARS),)
    if not isinstance(value, Iterable):
        raise HookFailure(f"side_effects must be texts, not {_kind(value)}")
    return tuple(cut_end(clean(str(note)), NOTE_CHARS) for note in value)


def _request(value: Any) -> ApprovalRequest | None:
    if value is None:
        return None
    if not isinstance(value, ApprovalRequest):
        raise HookFailure(f"approval must be an ApprovalRequest, not {_kind(value)}")
    number = isinstance(value.deadline, int | float) and not isinstance(value.deadline, bool)
    if not number or not math.isfinite(value.deadline) or value.deadline <= 0:
        raise HookFailure(f"the approval's deadline must be more than 0 seconds, not {value.deadline!r}")
    if not isinstance(value.reason, str):
        raise HookFailure(f"the approval's reason must be a text, not {_kind(value.reason)}")
    return replace(value, reason=clean(value.reason))


def copied(value: Any) -> Any:
    """JSON data anew, so that nobody changes another's."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _told(error: BaseException) -> str:
    """Why it failed, in a line; an exception that can't say it is told by its type."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not let the call through
        text = ""
    return cut_end(clean(text), NOTE_CHARS) or kind
