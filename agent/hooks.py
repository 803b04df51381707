"""Hooks: code of the user's around every tool call, out of the model's reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import structlog

from registry.errors import UsageError
from registry.redaction import redact

from .hook_run import HookFailure, run_hook
from .hook_types import (
    Hook,
    HookContext,
    HookEvent,
    HookResult,
    PostToolUseHook,
    PreToolUseHook,
    SessionStartHook,
)
from .waits import ApprovalRequest, merged

__all__ = [
    "Hook",
    "HookContext",
    "HookEvent",
    "HookRegistry",
    "HookResult",
    "PostToolUseHook",
    "PreToolUseHook",
    "RegisteredHook",
    "SessionStartHook",
    "Verdict",
]

HOOK_TIMEOUT = 10.0
"""Seconds one hook may take."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a chain of hooks came to: the context as rewritten, why the call is blocked (None: it is not), what these
    hooks noted, and the human decision they ask for (reasons joined, the shortest deadline)."""

    ctx: HookContext
    blocked: str | None = None
    notes: tuple[str, ...] = ()
    approval: ApprovalRequest | None = None


@dataclass(frozen=True, slots=True)
class RegisteredHook:
    """A hook with its name, event and priority as they were when it was registered, and where it came from."""

    hook: Hook
    name: str
    event: HookEvent
    priority: float
    origin: str = ""
    sees_blocked: bool = False


class HookRegistry:
    """Hooks in the order they run: by priority, then by registration."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._entries: list[RegisteredHook] = []
        if isinstance(hooks, Hook | type):
            raise UsageError(f"hooks must be a list of hooks, not {hooks!r}")
        for hook in hooks:
            self.register(hook)

    def register(self, hook: Hook, *, priority: float | None = None, origin: str = "") -> None:
        """Adds a hook; `priority` goes before the hook's own, `origin` says where it was declared. Raises UsageError
        for what can't be a hook."""
        self._entries.append(_entry(hook, priority, origin))
        self._entries.sort(key=lambda entry: entry.priority)

    def entries(self, event: HookEvent | None = None) -> tuple[RegisteredHook, ...]:
        """The hooks in the order they run, all or those of one event."""
        return tuple(entry for entry in self._entries if event in (None, entry.event))

    def __iter__(self) -> Iterator[Hook]:
        return iter([entry.hook for entry in self._entries])

    def __len__(self) -> int:
        return len(self._entries)

    async def before(self, ctx: HookContext) -> Verdict:
        """Asks the guards in order; each sees what the earlier ones rewrote. One that fails or is late blocks. Where
        no guard rewrote the arguments, `Verdict.ctx.tool_args` is the very object that was given."""
        notes: tuple[str, ...] = ()
        asked: list[ApprovalRequest] = []
        for entry in self.entries("pre"):
            outcome, failure = await _outcome(entry, ctx)
            if failure is not None:
                return await self.blocked(ctx, f"the guard {entry.name!r} failed: {failure}", notes)
            if outcome is None:
                continue
            notes += outcome.side_effects
            ctx = replace(ctx, notes=ctx.notes + outcome.side_effects)
            if not outcome.allow:
                reason = outcome.error or f"the guard {entry.name!r} does not allow it"
                log.info("hook_blocked", hook=entry.name, tool=ctx.tool_name, reason=redact(reason))
                return await self.blocked(ctx, reason, notes)
            if outcome.modified_args is not None:
                ctx = replace(ctx, tool_args=outcome.modified_args)
            if outcome.approval is not None:
                asked.append(outcome.approval)
        return Verdict(ctx, None, notes, merged(asked))

    async def blocked(self, ctx: HookContext, reason: str, notes: tuple[str, ...] = ()) -> Verdict:
        """The call is blocked, by a guard or by a human: observers that want to know are told."""
        for entry in self.entries("post"):
            if entry.sees_blocked:
                await _outcome(entry, replace(ctx, blocked=reason))
        return Verdict(ctx, reason, notes)

    async def after(self, ctx: HookContext) -> Verdict:
        """Lets the observers see, and rewrite, an observation. One that fails is passed over."""
        notes: tuple[str, ...] = ()
        for entry in self.entries("post"):
            outcome, _ = await _outcome(entry, ctx)
            if outcome is None:
                continue
            notes += outcome.side_effects
            ctx = replace(ctx, notes=ctx.notes + outcome.side_effects)
            if outcome.modified_result is not None:
                ctx = replace(ctx, tool_result=outcome.modified_result)
        return Verdict(ctx, None, notes)

    async def started(self, ctx: HookContext) -> tuple[str, ...]:
        """The context that SessionStart hooks add. One that fails is passed over."""
        texts = []
        for entry in self.entries("start"):
            outcome, _ = await _outcome(entry, replace(ctx, tool_result=None))
            if outcome is not None and outcome.modified_result:
                texts.append(outcome.modified_result)
        return tuple(texts)


def _entry(hook: Any, priority: float | None, origin: str) -> RegisteredHook:
    """The hook, if it can be one. Its name and priority are read here, once: a run's order does not change."""
    try:
        return _read(hook, priority, origin)
    except UsageError:
        raise
    except Exception as error:  # a property that raises
        raise UsageError(f"the hook {type(hook).__name__} can't be read: {type(error).__name__}: {error}") from error


def _read(hook: Any, priority: float | None, origin: str) -> RegisteredHook:
    event = getattr(hook, "event", None)
    if not isinstance(hook, Hook) or event not in get_args(HookEvent):
        hint = f": give an object, {hook.__name__}(…), not the class" if isinstance(hook, type) else ""
        raise UsageError(f"a hook is a PreToolUseHook, PostToolUseHook or SessionStartHook, not {hook!r}{hint}")
    kind = type(hook).__name__
    if not callable(hook.execute) or getattr(hook.execute, "__func__", None) is Hook.execute:
        raise UsageError(f"the hook {kind} has no `async def execute(self, ctx)`")
    if not callable(hook.should_trigger):
        raise UsageError(f"the hook {kind}: should_trigger must be a method, not {hook.should_trigger!r}")
    if not isinstance(hook.name, str):
        raise UsageError(f"the hook {kind}: its name must be a text, not {hook.name!r}")
    place = hook.priority if priority is None else priority
    if isinstance(place, bool) or not isinstance(place, int | float) or math.isnan(place):
        raise UsageError(f"the hook {kind}: its priority must be a number, not {place!r}")
    sees_blocked = isinstance(hook, PostToolUseHook) and bool(hook.sees_blocked)
    return RegisteredHook(hook, hook.name.strip() or kind, hook.event, place, origin, sees_blocked)


async def _outcome(entry: RegisteredHook, ctx: HookContext) -> tuple[HookResult | None, str | None]:
    """What a hook decided, or why it failed; failures and notes are logged. Raises nothing but our own cancellation
    and the end of the process."""
    try:
        outcome = await run_hook(entry.hook, ctx, HOOK_TIMEOUT)
    except HookFailure as failure:
        log.warning("hook_failed", hook=entry.name, on=entry.event, tool=ctx.tool_name, error=redact(str(failure)))
        return None, str(failure)
    for note in outcome.side_effects if outcome is not None else ():
        log.info("hook_note", hook=entry.name, on=entry.event, tool=ctx.tool_name, note=redact(note))
    return outcome, None
