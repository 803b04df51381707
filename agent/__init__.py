"""One ReAct run, and the ways to get data out of a model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import ContextGuard
    from .extract import extract_json, parse_tool_arguments, parse_tool_text
    from .hooks import HookContext, HookRegistry, HookResult, PostToolUseHook, PreToolUseHook, SessionStartHook
    from .interrupts import InterruptQueue
    from .react import ReActAgent
    from .state import AgentResult
    from .structured import StructuredCallResult, StructuredOutputError, structured_llm_call
    from .waits import ApprovalRequest

__all__ = [
    "AgentResult",
    "ApprovalRequest",
    "ContextGuard",
    "HookContext",
    "HookRegistry",
    "HookResult",
    "InterruptQueue",
    "PostToolUseHook",
    "PreToolUseHook",
    "ReActAgent",
    "SessionStartHook",
    "StructuredCallResult",
    "StructuredOutputError",
    "extract_json",
    "parse_tool_arguments",
    "parse_tool_text",
    "structured_llm_call",
]

_HOMES = {
    "context": ("ContextGuard",),
    "extract": ("extract_json", "parse_tool_arguments", "parse_tool_text"),
    "hooks": ("HookContext", "HookRegistry", "HookResult", "PostToolUseHook", "PreToolUseHook", "SessionStartHook"),
    "interrupts": ("InterruptQueue",),
    "react": ("ReActAgent",),
    "state": ("AgentResult",),
    "structured": ("StructuredCallResult", "StructuredOutputError", "structured_llm_call"),
    "waits": ("ApprovalRequest",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that a bare import stays cheap."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
