"""Hooks: code of the user's around every tool call, out of the model's reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import structlog

HOOK_TIMEOUT = 10.0
"""Seconds one hook may take."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HookContext:
    """What a hook is told. `tool_result` and `is_error` are set for PostToolUse only; `tool_name` is empty and
    `metadata["query"]` the task for SessionStart."""

    tool_name: str = ""
    tool_args: Mapping[str, Any] = field(default_factory=dict)
    agent_id: str | None = None
    user_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tool_result: str | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class HookResult:
    """What a hook decides. `allow=False` with `error` blocks the call (PreToolUse); `modified_args` replaces the
    arguments (PreToolUse), `modified_result` the observation (PostToolUse) or is context to add (SessionStart);
    `side_effects` are short notes of what the hook did, for the audit log."""

    allow: bool = True
    error: str | None = None
    modified_args: Mapping[str, Any] | None = None
    modified_result: str | None = None
    side_effects: tuple[str, ...] = ()


class Hook:
    """Base of all hooks: a `name`, a `priority` (lower runs first), `should_trigger` and `execute`."""

    event: ClassVar[Literal["pre", "post", "start"]]
    name: str = ""
    priority: int = 100

    def should_trigger(self, ctx: HookContext) -> bool:
        """Whether the hook has anything to do here."""
        return True

    async def execute(self, ctx: HookContext) -> HookResult:
        """Does the hook's work."""
        raise NotImplementedError


class PreToolUseHook(Hook):
    """A guard before a tool call: may block it, rewrite its arguments, or act on the side. Fails closed."""

    event = "pre"


class PostToolUseHook(Hook):
    """An observer after a tool call: may rewrite the observation or act on the side."""

    event = "post"


class SessionStartHook(Hook):
    """Runs before the first model call; its `modified_result` is added to the conversation as context."""

    event = "start"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a chain of hooks came to: the context as rewritten, why the call is blocked (None: it is not), and notes."""

    ctx: HookContext
    blocked: str | None = None
    notes: tuple[str, ...] = ()


class HookRegistry:
    """Hooks in the order they run: by priority, then by registration."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks: list[Hook] = []
        for hook in hooks:
            self.register(hook)

    def register(self, hook: Hook) -> None:
        """Adds a hook."""
        self._hooks.append(hook)
        self._hooks.sort(key=lambda hook: hook.priority)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self._hooks)

    def __len__(self) -> int:
        return len(self._hooks)

    async def before(self, ctx: HookContext) -> Verdict:
        """Asks the guards in order; each sees what the earlier ones rewrote. One that fails or is late blocks."""
        notes: list[str] = []
        for hook in self._of("pre"):
            try:
                outcome = await _run(hook, ctx)
            except Exception as error:  # noqa: BLE001 - a guard that fails must not let the call through
                log.warning("hook_failed", hook=_name(hook), error=str(error) or type(error).__name__)
                return Verdict(
                    ctx, f"the guard {_name(hook)!r} failed: {str(error) or type(error).__name__}", tuple(notes)
                )
            if outcome is None:
                continue
            notes += outcome.side_effects
            if not outcome.allow:
                return Verdict(ctx, outcome.error or f"the guard {_name(hook)!r} does not allow it", tuple(notes))
            if outcome.modified_args is not None:
                ctx = replace(ctx, tool_args=outcome.modified_args)
        return Verdict(ctx, None, tuple(notes))

    async def after(self, ctx: HookContext) -> Verdict:
        """Lets the observers see, and rewrite, an observation. One that fails is passed over."""
        return await self._observe("post", ctx)

    async def started(self, ctx: HookContext) -> tuple[str, ...]:
        """The context that SessionStart hooks add."""
        texts = []
        for hook in self._of("start"):
            verdict = await self._observe("start", replace(ctx, tool_result=None), only=hook)
            if verdict.ctx.tool_result:
                texts.append(verdict.ctx.tool_result)
        return tuple(texts)

    async def _observe(self, event: str, ctx: HookContext, only: Hook | None = None) -> Verdict:
        notes: list[str] = []
        for hook in self._of(event) if only is None else [only]:
            try:
                outcome = await _run(hook, ctx)
            except Exception as error:  # noqa: BLE001 - an observer that fails must not cost the result
                log.warning("hook_failed", hook=_name(hook), error=str(error) or type(error).__name__)
                continue
            if outcome is None:
                continue
            notes += outcome.side_effects
            if outcome.modified_result is not None:
                ctx = replace(ctx, tool_result=outcome.modified_result)
        return Verdict(ctx, None, tuple(notes))

    def _of(self, event: str) -> list[Hook]:
        return [hook for hook in self._hooks if hook.event == event]


async def _run(hook: Hook, ctx: HookContext) -> HookResult | None:
    if not hook.should_trigger(ctx):
        return None
    async with asyncio.timeout(HOOK_TIMEOUT):
        return await hook.execute(ctx)


def _name(hook: Hook) -> str:
    return hook.name or type(hook).__name__
