"""The hooks that come with us. Priorities: read_only 10, rate_limit 20, approval 30, the user's own 100 unless they say
otherwise, truncate 900, audit_log 1000: what is not allowed at all bothers no human, and the log sees what came of all
the others."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import structlog

from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import UsageError
from registry.text import clean, cut_middle

from .hook_types import HookContext, HookResult, PostToolUseHook, PreToolUseHook
from .waits import DEADLINE, ApprovalRequest

MAX_CHARS = 8_000
"""Characters of an observation that TruncateHook leaves unless it is told otherwise."""
LEAST_CHARS = 200
"""A bound below this leaves no room for head, tail and the mark between them."""
ARGUMENT_CHARS = 2_000
"""Characters of a call's arguments in the audit log."""

log = structlog.get_logger(__name__)


class ReadOnlyHook(PreToolUseHook):
    """Blocks every tool that is not declared `read_only`."""

    name = "read_only"
    priority = 10

    async def execute(self, ctx: HookContext) -> HookResult | None:
        """Blocks, or has nothing to say."""
        if ctx.read_only:
            return None
        return HookResult(
            False, f"only tools that change nothing may be used here, and {ctx.tool_name} may change things"
        )


class RateLimitHook(PreToolUseHook):
    """At most `calls` calls of each tool in any `seconds` seconds; a call beyond that is blocked, and told when the
    next one may come. `tools` are names or patterns such as `web_*`; each tool counts for itself.

    All who share the hook share the limit: give a job's steps one hook. A blocked call does not count; one that a later
    guard or a human refuses does.
    """

    name = "rate_limit"
    priority = 20

    def __init__(
        self, calls: int, seconds: float, tools: Iterable[str] = ("*",), *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.calls, self.seconds = _count("calls", calls, 1), _seconds("seconds", seconds)
        self.tools, self.clock = _patterns(tools), clock
        self._begun: dict[str, deque[float]] = {}

    def should_trigger(self, ctx: HookContext) -> bool:
        """For the tools it is about."""
        return _matches(ctx.tool_name, self.tools)

    async def execute(self, ctx: HookContext) -> HookResult | None:
        """Counts the call, or blocks it."""
        now = self.clock.monotonic()
        begun = self._begun.setdefault(ctx.tool_name, deque())
        while begun and now - begun[0] >= self.seconds:
            begun.popleft()
        if len(begun) < self.calls:
            begun.append(now)
            return None
        wait = math.ceil((begun[0] + self.seconds - now) * 10) / 10
        limit = f"{self.calls} call{'s' if self.calls > 1 else ''} in {self.seconds:g} s"
        return HookResult(
            False,
            f"{ctx.tool_name} has reached its limit of {limit}; it is free again in {wait:g} s. Do other work first.",
        )


class ApprovalHook(PreToolUseHook):
    """Asks a human before a call: of the tools that `tools` names (patterns such as `send_*` work), by default of all
    that are not declared `read_only`. The call waits `deadline` seconds at most, then it counts as rejected."""

    name = "approval"
    priority = 30

    def __init__(self, tools: Iterable[str] = (), *, deadline: float = DEADLINE, reason: str = "") -> None:
        self.tools, self.deadline = _patterns(tools), _seconds("deadline", deadline)
        self.reason = reason or ("calls of this tool need an approval" if self.tools else "this tool may change things")

    def should_trigger(self, ctx: HookContext) -> bool:
        """For the tools it is about."""
        return _matches(ctx.tool_name, self.tools) if self.tools else not ctx.read_only

    async def execute(self, ctx: HookContext) -> HookResult:
        """Says that a human must decide; it does not wait."""
        return HookResult(approval=ApprovalRequest(self.reason, self.deadline))


class TruncateHook(PostToolUseHook):
    """Cuts a long observation to `max_chars` characters; head and tail stay, a mark says how much is gone. `per_tool`
    has other bounds for single tools or patterns (the first that fits), `tools` says which tools it is about."""

    name = "truncate"
    priority = 900

    def __init__(
        self,
        max_chars: int = MAX_CHARS,
        per_tool: Mapping[str, int] | None = None,
        tools: Iterable[str] = ("*",),
    ) -> None:
        self.max_chars = _count("max_chars", max_chars, LEAST_CHARS)
        self.per_tool = {name: _count(f"per_tool.{name}", most, LEAST_CHARS) for name, most in (per_tool or {}).items()}
        self.tools = _patterns(tools)

    def should_trigger(self, ctx: HookContext) -> bool:
        """For observations that are too long."""
        length = len(ctx.tool_result or "")
        return length > LEAST_CHARS and _matches(ctx.tool_name, self.tools) and length > self._bound(ctx.tool_name)

    async def execute(self, ctx: HookContext) -> HookResult:
        """Cuts it."""
        text, most = ctx.tool_result or "", self._bound(ctx.tool_name)
        return HookResult(
            modified_result=cut_middle(text, most),
            side_effects=(f"cut the observation from {len(text)} to {most} characters",),
        )

    def _bound(self, tool: str) -> int:
        return next((most for name, most in self.per_tool.items() if fnmatchcase(tool, name)), self.max_chars)


class AuditLogHook(PostToolUseHook):
    """One structured log line (`tool_call`, level info) for each call that ran or that a guard blocked: when, job,
    step, tool, arguments (cut, without secrets), outcome (ok, error, blocked), duration in seconds, the hooks' notes.
    With `file` the same is appended there as a JSON line.
    """

    name = "audit_log"
    priority = 1000
    sees_blocked = True

    def __init__(self, file: str | os.PathLike[str] | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.file = None if file is None else Path(file).expanduser()
        self.clock = clock

    async def execute(self, ctx: HookContext) -> HookResult | None:
        """Writes the line."""
        line = self._line(ctx)
        log.info("tool_call", **line)
        if self.file is not None:
            at = datetime.fromtimestamp(self.clock.time(), UTC).isoformat(timespec="milliseconds")
            _append(self.file, {"ts": at.replace("+00:00", "Z"), "event": "tool_call", **line})
        return None

    @staticmethod
    def _line(ctx: HookContext) -> dict[str, Any]:
        from registry.redaction import redact, redact_fields

        arguments = clean(json.dumps(redact_fields(ctx.tool_args), ensure_ascii=False, default=str))
        return {
            "job_id": ctx.metadata.get("job_id"),
            "step_id": ctx.metadata.get("step_id"),
            "tool": ctx.tool_name,
            "arguments": cut_middle(arguments, ARGUMENT_CHARS),
            "outcome": "blocked" if ctx.blocked is not None else "error" if ctx.is_error else "ok",
            **({} if ctx.blocked is None else {"reason": redact(ctx.blocked)}),
            "duration": None if ctx.duration is None else round(ctx.duration, 3),
            "observation_chars": len(ctx.tool_result or ""),
            "notes": [redact(note) for note in ctx.notes],
        }


def _append(file: Path, record: Mapping[str, Any]) -> None:
    """Appends one whole line. Whatever an earlier process left unfinished is ended first."""
    data = json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size:
            os.lseek(descriptor, size - 1, os.SEEK_SET)
            if os.read(descriptor, 1) != b"\n":
                data = b"\n" + data
        while data:  # nearly always once: lines of several writers do not mix then
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _patterns(value: Iterable[str]) -> tuple[str, ...]:
    """Names or patterns; a lone text would be taken for its letters."""
    if isinstance(value, str):
        raise UsageError(f"tools must be a list of names or patterns, not the text {value!r}")
    patterns = tuple(value)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise UsageError(f"tools must be names or patterns, not {patterns!r}")
    return patterns


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be a whole number, at least {least}, not {value!r}")
    return value


def _seconds(name: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{name} must be more than 0 seconds, not {value!r}")
    return float(value)
