"""What a run may call: models, tools, and the words everyone speaks (messages, usage, errors)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters.anthropic_messages import AnthropicLLM
    from .adapters.openai_chat import OpenAIChatLLM
    from .adapters.openai_responses import OpenAIResponsesLLM
    from .budget import Budget
    from .llm import LLM
    from .llm_types import Abilities
    from .messages import Event, LLMResult, Message, StreamChunk, ToolCall, Usage
    from .models import ModelRegistry, as_registry
    from .prices import Price
    from .routing import Choice, RouteRequest, RoutingPolicy, Trial
    from .routing_config import policy_of, register_policy
    from .tool_context import ToolContext
    from .tools import Tool, ToolRegistry, tool

__all__ = [
    "LLM",
    "Abilities",
    "AnthropicLLM",
    "Budget",
    "Choice",
    "Event",
    "LLMResult",
    "Message",
    "ModelRegistry",
    "OpenAIChatLLM",
    "OpenAIResponsesLLM",
    "Price",
    "RouteRequest",
    "RoutingPolicy",
    "StreamChunk",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolRegistry",
    "Trial",
    "Usage",
    "as_registry",
    "policy_of",
    "register_policy",
    "tool",
]

_HOMES = {
    "adapters.anthropic_messages": ("AnthropicLLM",),
    "adapters.openai_chat": ("OpenAIChatLLM",),
    "adapters.openai_responses": ("OpenAIResponsesLLM",),
    "budget": ("Budget",),
    "llm": ("LLM",),
    "llm_types": ("Abilities",),
    "messages": ("Event", "LLMResult", "Message", "StreamChunk", "ToolCall", "Usage"),
    "models": ("ModelRegistry", "as_registry"),
    "prices": ("Price",),
    "routing": ("Choice", "RouteRequest", "RoutingPolicy", "Trial"),
    "routing_config": ("policy_of", "register_policy"),
    "tool_context": ("ToolContext",),
    "tools": ("Tool", "ToolRegistry", "tool"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that a bare import stays cheap."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
