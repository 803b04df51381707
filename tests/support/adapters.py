"""A conversation, tools, and models of all three dialects, for tests of the adapters."""

from __future__ import annotations

import json
from typing import Any

from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.base import SDKAdapter
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.adapters.openai_responses import OpenAIResponsesLLM
from registry.llm_types import INHERIT
from registry.messages import Message, ToolCall
from registry.testing import FakeClock

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
TOOLS = [{"name": "search", "description": "Searches.", "parameters": SCHEMA}, {"name": "now", "description": "Time."}]
TALK = [
    Message.system("Be brief."),
    Message.user("Größe? 長さ 😀"),
    Message.assistant("Let me look.", [ToolCall("c1", "search", {"q": "x"}, '{"q": "x"}'), ToolCall("c2", "now")]),
    Message.tool("c1", "found"),
    Message.tool("c2", "failed", is_error=True),
    Message.user("go on"),
]


def models(url: str, model: str = "m", **options: Any) -> list[SDKAdapter]:
    options.setdefault("clock", FakeClock())
    return [
        OpenAIChatLLM(model, base_url=f"{url}/v1", **options),
        OpenAIResponsesLLM(model, base_url=f"{url}/v1", **options),
        AnthropicLLM(model, base_url=url, **options),
    ]


def sent(
    llm: SDKAdapter, messages: list[Message], tools: Any = None, choice: Any = None, **more: Any
) -> dict[str, Any]:
    """The body that would go out."""
    effort = more.get("effort", INHERIT)
    request = llm._request(
        messages, tools, choice, more.get("form"), more.get("temperature"), more.get("limit"), effort, stream=False
    )
    body: dict[str, Any] = json.loads(llm.prepare(request).body)
    return body
