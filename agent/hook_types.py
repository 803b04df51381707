"""What hooks are made of: what they are told, what they decide, and their base classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .waits import ApprovalRequest

if TYPE_CHECKING:
    from registry.tools import Tool

HookEvent = Literal["pre", "post", "start"]


@dataclass(frozen=True, slots=True)
class HookContext:
    """What a hook is told.

    `tool_result`, `is_error` and `duration` (seconds the call took, None where unknown) are set for PostToolUse only;
    `tool_name` is empty and `metadata["query"]` the task for SessionStart. `tool` has the tool's declarations, where
    it is known. `blocked`: why a guard blocked the call. `notes` are what earlier hooks noted of this call.
    `tool_args` is the hook's own copy: only `HookResult.modified_args` changes a call.
    """

    tool_name: str = ""
    tool_args: Mapping[str, Any] = field(default_factory=dict)
    agent_id: str | None = None
    user_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tool_result: str | None = None
    is_error: bool = False
    tool: Tool | None = None
    notes: tuple[str, ...] = ()
    duration: float | None = None
    blocked: str | None = None

    @property
    def read_only(self) -> bool:
        """Whether the tool is declared to change nothing; one that is not known may change something."""
        return self.tool is not None and self.tool.read_only


@dataclass(frozen=True, slots=True)
class HookResult:
    """What a hook decides. `allow=False` with `error` blocks the call (PreToolUse); `modified_args` replaces the
    arguments (PreToolUse), `modified_result` the observation (PostToolUse) or is context to add (SessionStart);
    `side_effects` are short notes of what the hook did, for the audit log. `approval` (PreToolUse) asks for a human's
    decision: the call waits for it when all other guards have let it through; the hook itself never waits."""

    allow: bool = True
    error: str | None = None
    modified_args: Mapping[str, Any] | None = None
    modified_result: str | None = None
    side_effects: tuple[str, ...] = ()
    approval: ApprovalRequest | None = None


class Hook:
    """Base of all hooks: a `name`, a `priority` (lower runs first), `should_trigger` and `execute`.

    A hook runs in the event loop and has 10 s. What it does without awaiting anything can't be interrupted, and delays
    everything else in the loop: slow work belongs into a thread.
    """

    event: ClassVar[HookEvent]
    name: str = ""
    priority: int = 100

    def should_trigger(self, ctx: HookContext) -> bool:
        """Whether the hook has anything to do here."""
        return True

    async def execute(self, ctx: HookContext) -> HookResult | None:
        """Does the hook's work; None changes nothing."""
        raise NotImplementedError


class PreToolUseHook(Hook):
    """A guard before a tool call: may block it, rewrite its arguments, or act on the side. Fails closed."""

    event = "pre"


class PostToolUseHook(Hook):
    """An observer after a tool call: may rewrite the observation or act on the side. One with `sees_blocked` is told of
    calls that a guard blocked, too, as soon as they are (`ctx.blocked` says why); there is nothing to rewrite then."""

    event = "post"
    sees_blocked: bool = False


class SessionStartHook(Hook):
    """Runs before the first model call; its `modified_result` is added to the conversation as context."""

    event = "start"
