"""Checks of Anthropic Messages requests. Each takes the request and gives the error's message, or None."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from .common import ANTHROPIC_ID, ANTHROPIC_NAME, CLAUDE_NEW, Request, model_is, seal

Block = dict[str, Any]
SAMPLING = ("temperature", "top_p", "top_k")
LEAST_BUDGET = 1024


def messages_of(request: Request) -> list[dict[str, Any]]:
    messages = request.get("messages")
    return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []


def blocks_of(message: dict[str, Any]) -> list[Block]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or [] if isinstance(block, dict)]


def all_blocks(request: Request) -> Iterator[tuple[int, int, Block]]:
    for index, message in enumerate(messages_of(request)):
        for number, block in enumerate(blocks_of(message)):
            yield index, number, block


def uses_of(message: dict[str, Any]) -> list[Any]:
    if message.get("role") != "assistant":
        return []
    return [block.get("id") for block in blocks_of(message) if block.get("type") == "tool_use"]


def thinks(request: Request) -> bool:
    return (request.get("thinking") or {}).get("type") in ("enabled", "adaptive")


@cache
def known_parameters() -> frozenset[str]:
    from anthropic.types.message_create_params import MessageCreateParamsBase

    return frozenset([*MessageCreateParamsBase.__annotations__, "stream", *SAMPLING])


def required(request: Request) -> str | None:
    for name in ("model", "messages", "max_tokens"):
        if name not in request:
            return f"{name}: Field required"
    if not request["messages"]:
        return "messages: at least one message is required"
    if not isinstance(request["max_tokens"], int) or request["max_tokens"] < 1:
        return "max_tokens: Input should be greater than or equal to 1"
    return None


def unknown_parameter(request: Request) -> str | None:
    for name in request:
        if name not in known_parameters():
            return f"{name}: Extra inputs are not permitted"
    return None


KNOWN_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}


def extra_fields(request: Request) -> str | None:
    for index, message in enumerate(messages_of(request)):
        for name in message:
            if name not in ("role", "content"):
                return f"messages.{index}.{name}: Extra inputs are not permitted"
    for index, number, block in all_blocks(request):
        kind = block.get("type", "")
        for name in block if kind in KNOWN_FIELDS else ():
            if name not in KNOWN_FIELDS[kind]:
                return f"messages.{index}.content.{number}.{kind}.{name}: Extra inputs are not permitted"
    return None


def roles(request: Request) -> str | None:
    for message in messages_of(request):
        role = message.get("role")
        if role not in ("user", "assistant"):
            return (
                f'messages: Unexpected role "{role}". The Messages API accepts a top-level `system` parameter, '
                'not "system" as an input message role.'
            )
    return None


def first_is_user(request: Request) -> str | None:
    messages = messages_of(request)
    if messages and messages[0].get("role") == "assistant":
        return 'messages: first message must use the "user" role'
    return None


def no_empty_message(request: Request) -> str | None:
    messages = messages_of(request)
    for index, message in enumerate(messages):
        last = index == len(messages) - 1 and message.get("role") == "assistant"
        if not message.get("content") and not last:
            return (
                f"messages.{index}: all messages must have non-empty content except for the optional final "
                "assistant message"
            )
    return None


def _texts(request: Request) -> Iterator[str]:
    for _, _, block in all_blocks(request):
        if block.get("type") == "text":
            yield block.get("text") or ""
        if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            yield from (part.get("text") or "" for part in block["content"] if part.get("type") == "text")


def no_empty_text(request: Request) -> str | None:
    return "messages: text content blocks must be non-empty" if "" in _texts(request) else None


def no_blank_text(request: Request) -> str | None:
    if any(text and not text.strip() for text in _texts(request)):
        return "messages: text content blocks must contain non-whitespace text"
    return None


def system_text(request: Request) -> str | None:
    system = request.get("system")
    if "system" in request and not isinstance(system, str | list):
        return "system: Input should be a valid list"
    for index, block in enumerate(system if isinstance(system, list) else ()):
        if not block.get("text"):
            tail = "cache_control cannot be set for empty text blocks" if "cache_control" in block else None
            return f"system.{index}: {tail}" if tail else "system: text content blocks must be non-empty"
        if not block["text"].strip():
            return "system: text content blocks must contain non-whitespace text"
    return None


def uses_answered(request: Request) -> str | None:
    messages = messages_of(request)
    for index, message in enumerate(messages):
        after = messages[index + 1] if index + 1 < len(messages) else {}
        results = [b.get("tool_use_id") for b in blocks_of(after) if b.get("type") == "tool_result"]
        missing = [str(one) for one in uses_of(message) if one not in results]
        if missing:
            return (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
    return None


def results_first(request: Request) -> str | None:
    for index, message in enumerate(messages_of(request)):
        kinds = [block.get("type") for block in blocks_of(message)]
        if "tool_result" in kinds and kinds != sorted(kinds, key=lambda kind: kind != "tool_result"):
            return (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after. Each "
                "`tool_use` block must have a corresponding `tool_result` block at the start of the next message."
            )
    return None


def result_has_use(request: Request) -> str | None:
    before: dict[str, Any] = {}
    for index, message in enumerate(messages_of(request)):
        for number, block in enumerate(blocks_of(message)):
            if block.get("type") == "tool_result" and block.get("tool_use_id") not in uses_of(before):
                return (
                    f"messages.{index}.content.{number}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block.get('tool_use_id')}. Each `tool_result` block must have a corresponding `tool_use` "
                    "block in the previous message."
                )
        before = message
    return None


def one_result_per_use(request: Request) -> str | None:
    for index, message in enumerate(messages_of(request)):
        ids = [b.get("tool_use_id") for b in blocks_of(message) if b.get("type") == "tool_result"]
        if len(set(ids)) < len(ids):
            return (
                f"messages.{index}: each tool_use must have a single result. Found multiple `tool_result` blocks "
                f"with id: {next(one for one in ids if ids.count(one) > 1)}"
            )
    return None


def unique_uses(request: Request) -> str | None:
    seen: set[Any] = set()
    for index, number, block in all_blocks(request):
        if block.get("type") == "tool_use":
            if block.get("id") in seen:
                return f"messages.{index}.content.{number}: `tool_use` ids must be unique"
            seen.add(block.get("id"))
    return None


def use_ids(request: Request) -> str | None:
    for index, number, block in all_blocks(request):
        for kind, key in (("tool_use", "id"), ("tool_result", "tool_use_id")):
            if block.get("type") == kind and not ANTHROPIC_ID.match(str(block.get(key, ""))):
                where = f"messages.{index}.content.{number}.{kind}.{key}"
                return f"{where}: String should match pattern '{ANTHROPIC_ID.pattern}'"
    return None


def use_input(request: Request) -> str | None:
    for index, number, block in all_blocks(request):
        if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict):
            return f"messages.{index}.content.{number}.tool_use.input: Input should be a valid dictionary"
    return None


def tool_names(request: Request) -> str | None:
    offered = [(f"tools.{i}.custom.name", t.get("name")) for i, t in enumerate(request.get("tools") or [])]
    used = [
        (f"messages.{i}.content.{n}.tool_use.name", block.get("name"))
        for i, n, block in all_blocks(request)
        if block.get("type") == "tool_use"
    ]
    for where, name in offered + used:
        if not isinstance(name, str) or not ANTHROPIC_NAME.match(name):
            return f"{where}: String should match pattern '{ANTHROPIC_NAME.pattern}'"
    return None


def unique_tools(request: Request) -> str | None:
    names = [tool.get("name") for tool in request.get("tools") or []]
    return "tools: Tool names must be unique." if len(set(names)) < len(names) else None


def tool_schema(request: Request) -> str | None:
    for index, tool in enumerate(request.get("tools") or []):
        schema = tool.get("input_schema")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            return f"tools.{index}.custom.input_schema.type: Field required"
    return None


def tool_choice_form(request: Request) -> str | None:
    choice = request.get("tool_choice")
    if choice is not None and (
        not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none")
    ):
        return "tool_choice: Input should be a valid dictionary or object with type auto, any, tool or none"
    return None


def tool_choice_without_tools(request: Request) -> str | None:
    if request.get("tool_choice") is not None and not request.get("tools"):
        return "tool_choice may only be specified while providing tools."
    return None


def tool_choice_known(request: Request) -> str | None:
    choice = request.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "tool":
        return None
    if choice.get("name") not in [tool.get("name") for tool in request.get("tools") or []]:
        return f"Tool '{choice.get('name')}' not found in provided tools"
    return None


def no_prefill(request: Request) -> str | None:
    messages = messages_of(request)
    if model_is(request, CLAUDE_NEW) and messages and messages[-1].get("role") == "assistant":
        return "This model does not support assistant message prefill. The conversation must end with a user message."
    return None


def no_trailing_blank(request: Request) -> str | None:
    last = (messages_of(request) or [{}])[-1]
    if last.get("role") != "assistant":
        return None
    blocks = blocks_of(last)
    text = str(blocks[-1].get("text", "")) if blocks else ""
    return "messages: final assistant content cannot end with trailing whitespace" if text != text.rstrip() else None


def no_sampling(request: Request) -> str | None:
    for name in SAMPLING:
        if name in request and model_is(request, CLAUDE_NEW):
            return f"`{name}` is deprecated for this model."
    return None


def thinking_type(request: Request) -> str | None:
    kind, new = (request.get("thinking") or {}).get("type"), model_is(request, CLAUDE_NEW)
    if new and kind == "enabled":
        return (
            '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    if not new and kind == "adaptive":
        return "adaptive thinking is not supported on this model"
    return None


def thinking_forced_tool(request: Request) -> str | None:
    if thinks(request) and (request.get("tool_choice") or {}).get("type") in ("any", "tool"):
        return "Thinking may not be enabled when tool_choice forces tool use."
    return None


def thinking_budget(request: Request) -> str | None:
    thinking = request.get("thinking") or {}
    if thinking.get("type") != "enabled":
        return None
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget < LEAST_BUDGET:
        return "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
    if budget >= request.get("max_tokens", 0):
        return "`max_tokens` must be greater than `thinking.budget_tokens`."
    return None


def thinking_temperature(request: Request) -> str | None:
    if thinks(request) and request.get("temperature", 1) != 1:
        return "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
    return None


def thinking_first(request: Request) -> str | None:
    """In the last assistant turn, while its tool results are being sent. Adaptive thinking may skip the block."""
    messages = messages_of(request)
    if (request.get("thinking") or {}).get("type") != "enabled" or not messages:
        return None
    if not any(block.get("type") == "tool_result" for block in blocks_of(messages[-1])):
        return None
    index = max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=None)
    if index is None:
        return None
    kind = (blocks_of(messages[index]) or [{}])[0].get("type")
    if kind not in ("thinking", "redacted_thinking"):
        return (
            f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks)."
        )
    return None


def thinking_unchanged(request: Request) -> str | None:
    for index, number, block in all_blocks(request):
        if block.get("type") == "thinking" and block.get("signature") != seal(str(block.get("thinking")), "sig"):
            return f"messages.{index}.content.{number}: Invalid `signature` in `thinking` block"
    return None
