"""Hooks declared in `dagwright.toml`, one `[[hooks]]` table each: read and checked as data, built once per job.

A table has `use`, a name of `BUILT_IN` or `package.module:Class` of one's own, `priority`, and the hook's own keys:
those of a built-in hook are the parameters of its class in `agent.builtin_hooks`, a class of one's own gets them as
keyword arguments.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from agent import builtin_hooks
from agent.hooks import Hook, HookRegistry
from registry.errors import ConfigError, UsageError
from registry.own_code import own_object, told
from registry.toml_file import Table, nearest

BUILT_IN: Mapping[str, type[Hook]] = {
    hook.name: hook
    for hook in (
        builtin_hooks.ReadOnlyHook,
        builtin_hooks.RateLimitHook,
        builtin_hooks.ApprovalHook,
        builtin_hooks.TruncateHook,
        builtin_hooks.AuditLogHook,
    )
}
KEYS: Mapping[str, tuple[str, ...]] = {
    "read_only": (),
    "rate_limit": ("calls", "seconds", "tools"),
    "approval": ("tools", "deadline", "reason"),
    "truncate": ("max_chars", "per_tool", "tools"),
    "audit_log": ("file",),
}
"""The keys of each built-in hook beside `use` and `priority`."""
RIGHT_USE = f"one of {', '.join(BUILT_IN)}, or package.module:Class"


@dataclass(frozen=True, slots=True)
class HookEntry:
    """A `[[hooks]]` table: plain data. `options` are the hook's own keys, `priority` None is the hook's own, `table`
    says where it stands, `folder` is where a module is looked for that is not installed."""

    use: str
    options: Mapping[str, Any] = field(default_factory=dict)
    priority: float | None = None
    table: str = "hooks"
    folder: str = ""

    def __str__(self) -> str:
        from registry.redaction import redact_fields

        shown = {**redact_fields(self.options), **({} if self.priority is None else {"priority": self.priority})}
        return self.use + (f"({', '.join(f'{key}={value!r}' for key, value in shown.items())})" if shown else "")

    def build(self) -> Hook:
        """The hook. Raises ConfigError, which names the table and what is right."""
        kind = BUILT_IN[self.use] if self.use in BUILT_IN else self._own()
        try:
            return kind(**self.options)
        except Exception as error:
            raise ConfigError(f"{self.table}: {self.use} can't be made: {told(error)}") from error

    def _own(self) -> type[Hook]:
        try:
            found: Any = own_object(self.use, self.folder or None, kind="hooks", meant=_is_hook)
        except UsageError as error:
            raise ConfigError(f"{self.table} use = {self.use!r}: {error}") from error
        if not _is_hook(found):
            raise ConfigError(
                f"{self.table} use = {self.use!r}: must be a subclass of PreToolUseHook, PostToolUseHook or "
                "SessionStartHook"
            )
        return found  # type: ignore[no-any-return]


def read_hooks(path: str | os.PathLike[str], tables: Any) -> tuple[HookEntry, ...]:
    """The hooks that a file declares, in its order; nothing is imported. Raises ConfigError."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: hooks: must be tables, each begun with [[hooks]]")
    return tuple(_entry(path, Table(path, f"hooks, table {place}", table)) for place, table in enumerate(tables, 1))


def build_hooks(entries: Iterable[HookEntry]) -> HookRegistry:
    """A registry of fresh hooks: for one job, whose steps share it. Raises ConfigError."""
    registry = HookRegistry()
    for entry in entries:
        try:
            registry.register(entry.build(), priority=entry.priority, origin=entry.table)
        except UsageError as error:
            raise ConfigError(f"{entry.table}: {error}") from error
    return registry


def _entry(path: str | os.PathLike[str], table: Table) -> HookEntry:
    use = table.text("use", needed=RIGHT_USE)
    assert use is not None
    module, colon, name = use.partition(":")
    own = bool(colon) and all(part.isidentifier() for part in [*module.split("."), *name.split(".")])
    if use not in BUILT_IN and not own:
        table.wrong(
            "use", f"must be {RIGHT_USE}" if colon else f"no such hook: {nearest(use, BUILT_IN)}, or {RIGHT_USE}"
        )
    if use in BUILT_IN:
        table.only(("use", "priority", *KEYS[use]))
    options = _built_in_options(use, table) if use in BUILT_IN else _own_options(table)
    where = f"{path}: [{table.name}]"
    return HookEntry(use, options, _number(table, "priority"), where, os.path.dirname(os.path.abspath(path)))


def _own_options(table: Table) -> dict[str, Any]:
    return {key: _plain(value) for key, value in table.values.items() if key not in ("use", "priority")}


def _built_in_options(use: str, table: Table) -> dict[str, Any]:
    """The keys that are there, each checked: what the hook's class would refuse is told with file, table and key."""
    readers: Mapping[str, Callable[[], Any]] = {
        "calls": lambda: table.count("calls", "calls"),
        "seconds": lambda: _seconds(table, "seconds"),
        "deadline": lambda: _seconds(table, "deadline"),
        "reason": lambda: table.text("reason"),
        "file": lambda: _file(table),
        "max_chars": lambda: _bound(table, "max_chars"),
        "per_tool": lambda: _bounds(table),
        "tools": lambda: _tools(table),
    }
    options = {key: readers[key]() for key in KEYS[use] if key in table.values}
    for key in ("calls", "seconds") if use == "rate_limit" else ():
        if key not in options:
            raise ConfigError(f"{table.path}: [{table.name}] {key} is missing: rate_limit allows `calls` in `seconds`")
    return options


def _tools(table: Table) -> tuple[str, ...]:
    tools = table.texts("tools")
    return tools or table.wrong("tools", 'must name tools or patterns, such as ["web_*"]; left out, it is all')


def _file(table: Table) -> str:
    file = os.path.abspath(os.path.expanduser(table.text("file") or ""))
    if os.path.isdir(file) or not os.path.isdir(os.path.dirname(file)):
        table.wrong("file", "must be a file in a folder that exists")
    return file


def _bound(table: Table, key: str) -> int:
    most = table.count(key, "characters")
    if most is None or most < builtin_hooks.LEAST_CHARS:
        table.wrong(key, f"must be a whole number of characters, at least {builtin_hooks.LEAST_CHARS}")
    return most


def _bounds(table: Table) -> dict[str, int]:
    inner = table.table("per_tool", table.values["per_tool"] if isinstance(table.values["per_tool"], dict) else ())
    assert inner is not None
    return {tool: _bound(inner, tool) for tool in inner.values}


def _seconds(table: Table, key: str) -> float:
    value = _number(table, key)
    if value is None or value <= 0:
        table.wrong(key, "must be a number of seconds, more than 0, without quotes")
    return value


def _number(table: Table, key: str) -> float | None:
    value = table.values.get(key)
    if value is None:
        return None
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        table.wrong(key, "must be a number, without quotes")
    return value if isinstance(value, int) else float(value)


def _plain(value: Any) -> Any:
    """TOML data with ordinary floats."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _is_hook(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Hook) and hasattr(value, "event")
