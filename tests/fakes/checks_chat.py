"""Checks of OpenAI chat completions requests. Each takes the request and gives the error's message, or None."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

from .common import (
    LLAMACPP,
    OPENAI_NAME,
    REASONING,
    REASONING_ECHO,
    STRICT_TEMPLATE,
    Request,
    json_object,
    model_is,
    strict_schema_problem,
    text_of,
)

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
COMPATIBLE_EXTRAS = ("think", "enable_thinking", "chat_template_kwargs", "thinking")
LONGEST_ID = 40
NAME_PATTERN = OPENAI_NAME.pattern


def messages_of(request: Request) -> list[dict[str, Any]]:
    messages = request.get("messages")
    return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []


def calls_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message.get("tool_calls") or [] if message.get("role") == "assistant" else []


def functions_of(request: Request) -> list[dict[str, Any]]:
    return [tool.get("function") or {} for tool in request.get("tools") or []]


@cache
def known_parameters() -> frozenset[str]:
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase

    return frozenset([*CompletionCreateParamsBase.__annotations__, "stream"])


def required(request: Request) -> str | None:
    if not request.get("model"):
        return "you must provide a model parameter"
    if not isinstance(request.get("messages"), list):
        return "Missing required parameter: 'messages'."
    if not request["messages"]:
        return (
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
    return None


def unknown_parameter(request: Request) -> str | None:
    allowed = known_parameters() | (set() if not model_is(request, LLAMACPP) else set(COMPATIBLE_EXTRAS))
    for name in request:
        if name not in allowed:
            return f"Unknown parameter: '{name}'."
    return None


def roles(request: Request) -> str | None:
    for index, message in enumerate(messages_of(request)):
        if message.get("role") not in ROLES:
            return f"Invalid value: '{message.get('role')}'. Supported values are: {ROLES} (messages[{index}].role)."
    return None


def content(request: Request) -> str | None:
    for message in messages_of(request):
        value = message.get("content")
        if value is None and not calls_of(message) and not message.get("refusal"):
            return "Invalid value for 'content': expected a string, got null."
        if isinstance(value, list) and not value:
            return "Invalid value for 'content': expected a non-empty array."
        if isinstance(value, list):
            for part in value:
                if part.get("type") not in ("text", "image_url", "input_audio", "file", "refusal"):
                    return f"Invalid value: '{part.get('type')}'. Supported values are: 'text', 'image_url', …"
    return None


def empty_tool_lists(request: Request) -> str | None:
    tail = "empty array. Expected an array with minimum length 1, but got an empty array instead."
    if request.get("tools") == []:
        return f"Invalid 'tools': {tail}"
    for index, message in enumerate(messages_of(request)):
        if message.get("tool_calls") == []:
            return f"Invalid 'messages[{index}].tool_calls': {tail}"
    return None


def calls_answered(request: Request) -> str | None:
    """Every call is answered by the tool messages that stand directly after it."""
    messages = messages_of(request)
    for index, message in enumerate(messages):
        ids = [call.get("id") for call in calls_of(message)]
        answered = []
        for later in messages[index + 1 :]:
            if later.get("role") != "tool":
                break
            answered.append(later.get("tool_call_id"))
        missing = [str(one) for one in ids if one not in answered]
        if missing:
            return (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}"
            )
    return None


def orphan_tool(request: Request) -> str | None:
    declared: set[Any] = set()
    for index, message in enumerate(messages_of(request)):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in declared:
                return (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                    f"'tool_calls' (messages.[{index}].role)."
                )
        else:
            declared = {call.get("id") for call in calls_of(message)}
    return None


def call_ids(request: Request) -> str | None:
    for index, message in enumerate(messages_of(request)):
        for number, call in enumerate(calls_of(message)):
            where = f"messages[{index}].tool_calls[{number}].id"
            if not isinstance(call.get("id"), str) or not call["id"]:
                return f"Invalid '{where}': empty string. Expected a string with minimum length 1."
            if len(call["id"]) > LONGEST_ID:
                return f"Invalid '{where}': string too long. Expected a string with maximum length {LONGEST_ID}."
    return None


def unique_ids(request: Request) -> str | None:
    seen: set[Any] = set()
    for index, message in enumerate(messages_of(request)):
        if message.get("role") == "tool":
            if message.get("tool_call_id") in seen:
                return f"Invalid parameter: Duplicate value for 'tool_call_id' in messages[{index}]."
            seen.add(message.get("tool_call_id"))
        else:
            seen = set()
            ids = [call.get("id") for call in calls_of(message)]
            if len(set(ids)) < len(ids):
                return f"Invalid parameter: Duplicate value for 'tool_call_id' in messages[{index}].tool_calls."
    return None


def tool_names(request: Request) -> str | None:
    offered = [(f"tools[{i}].function.name", f.get("name")) for i, f in enumerate(functions_of(request))]
    called = [
        (f"messages[{i}].tool_calls[{n}].function.name", (call.get("function") or {}).get("name"))
        for i, message in enumerate(messages_of(request))
        for n, call in enumerate(calls_of(message))
    ]
    for where, name in offered + called:
        if not isinstance(name, str) or not OPENAI_NAME.match(name):
            return f"Invalid '{where}': string does not match pattern. Expected a string that matches {NAME_PATTERN}."
    return None


def _bad_arguments(request: Request) -> str | None:
    for index, message in enumerate(messages_of(request)):
        for number, call in enumerate(calls_of(message)):
            if json_object((call.get("function") or {}).get("arguments")) is None:
                return f"messages[{index}].tool_calls[{number}].function.arguments"
    return None


def history_arguments(request: Request) -> str | None:
    where = None if model_is(request, LLAMACPP) else _bad_arguments(request)
    return f"Invalid '{where}': expected a string that holds a JSON object." if where else None


def history_arguments_llamacpp(request: Request) -> str | None:
    where = _bad_arguments(request) if model_is(request, LLAMACPP) else None
    return f"Failed to parse tool call arguments as JSON ({where})" if where else None


def tool_choice_without_tools(request: Request) -> str | None:
    if "tool_choice" in request and not request.get("tools"):
        return "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
    return None


def parallel_without_tools(request: Request) -> str | None:
    if "parallel_tool_calls" in request and not request.get("tools"):
        return (
            "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified."
        )
    return None


def tool_choice_known(request: Request) -> str | None:
    choice = request.get("tool_choice")
    if choice is None or choice in ("auto", "none", "required"):
        return None
    name = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else choice
    if name not in [function.get("name") for function in functions_of(request)]:
        return f"Invalid value for 'tool_choice': tool '{name}' not found in 'tools' parameter."
    return None


def json_word(request: Request) -> str | None:
    if (request.get("response_format") or {}).get("type") != "json_object":
        return None
    if any("json" in text_of(message.get("content")).lower() for message in messages_of(request)):
        return None
    return "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."


def json_schema(request: Request) -> str | None:
    form = request.get("response_format")
    if not isinstance(form, dict):
        return None
    if form.get("type") not in ("text", "json_object", "json_schema"):
        return f"Invalid value: '{form.get('type')}'. Supported values are: 'json_object', 'json_schema', and 'text'."
    if form["type"] != "json_schema":
        return None
    inner = form.get("json_schema")
    if not isinstance(inner, dict):
        return "Missing required parameter: 'response_format.json_schema'."
    if not isinstance(inner.get("name"), str) or not OPENAI_NAME.match(inner["name"]):
        return "Missing or invalid parameter: 'response_format.json_schema.name'."
    if not isinstance(inner.get("schema"), dict):
        return "Missing required parameter: 'response_format.json_schema.schema'."
    return None


def strict_schema(request: Request) -> str | None:
    inner = (request.get("response_format") or {}).get("json_schema") or {}
    if inner.get("strict") and (problem := strict_schema_problem(inner.get("schema"))):
        return f"Invalid schema for response_format '{inner.get('name')}': {problem}"
    for function in functions_of(request):
        if function.get("strict") and (problem := strict_schema_problem(function.get("parameters"))):
            return f"Invalid schema for function '{function.get('name')}': {problem}"
    return None


def reasoning_max_tokens(request: Request) -> str | None:
    if model_is(request, REASONING) and "max_tokens" in request:
        return (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
    return None


def reasoning_temperature(request: Request) -> str | None:
    value = request.get("temperature")
    if model_is(request, REASONING) and value is not None and value != 1:
        return (
            f"Unsupported value: 'temperature' does not support {value} with this model. "
            "Only the default (1) value is supported."
        )
    return None


def reasoning_tools(request: Request) -> str | None:
    """These models reason by default, so leaving the effort out does not help."""
    if model_is(request, REASONING) and request.get("tools") and request.get("reasoning_effort") != "none":
        return (
            f"Function tools with reasoning_effort are not supported for {request['model']} in /v1/chat/completions. "
            "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
        )
    return None


def stream_options(request: Request) -> str | None:
    if "stream_options" in request and not request.get("stream"):
        return "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    return None


def alternation(request: Request) -> str | None:
    """Tool calls and their results don't count, as in the templates of this kind."""
    if not model_is(request, STRICT_TEMPLATE):
        return None
    turns = [
        message["role"]
        for message in messages_of(request)
        if message.get("role") in ("user", "assistant") and not calls_of(message)
    ]
    if turns[:1] != ["user"] or any(one == two for one, two in pairwise(turns)):
        return "Conversation roles must alternate user/assistant/user/assistant/..."
    return None


def system_first(request: Request) -> str | None:
    if not model_is(request, STRICT_TEMPLATE):
        return None
    if any(message.get("role") in ("system", "developer") for message in messages_of(request)[1:]):
        return "System message must be at the beginning."
    return None


def reasoning_echo(request: Request) -> str | None:
    if not model_is(request, REASONING_ECHO):
        return None
    for index, message in enumerate(messages_of(request)):
        if calls_of(message) and "reasoning_content" not in message:
            return f"Missing `reasoning_content` field in the assistant message at message index {index}."
    return None
