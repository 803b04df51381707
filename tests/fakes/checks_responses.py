"""Checks of OpenAI Responses requests. Each takes the request and gives the error's message, or None."""

from __future__ import annotations

from functools import cache
from typing import Any

from .common import OPENAI_NAME, REASONING, WIRE_ID, Request, model_is, seal, strict_schema_problem, text_of

LONGEST_CALL_ID = 64
NAME_PATTERN = OPENAI_NAME.pattern
PREFIXES = {"function_call": "fc", "reasoning": "rs", "message": "msg"}
AFTER = "after"
"""Item ids of the fake read `fc_12_after_rs_11`: the item was made together with that reasoning item."""


def items_of(request: Request) -> list[dict[str, Any]]:
    value = request.get("input")
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def kind_of(item: dict[str, Any]) -> str:
    return item.get("type") or ("message" if "role" in item else "")


@cache
def known_parameters() -> frozenset[str]:
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    return frozenset([*ResponseCreateParamsBase.__annotations__, "stream"])


def required(request: Request) -> str | None:
    if not request.get("model"):
        return "Missing required parameter: 'model'."
    return None if "input" in request else "Missing required parameter: 'input'."


def input_not_empty(request: Request) -> str | None:
    value = request.get("input", "x")
    if isinstance(value, str | list) and not value:
        return "Invalid 'input': empty. One of 'input', 'previous_response_id' or 'prompt' must be provided."
    return None


def unknown_parameter(request: Request) -> str | None:
    for name in request:
        if name not in known_parameters():
            return f"Unknown parameter: '{name}'."
    return None


KNOWN_FIELDS = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content"},
}


def unknown_item_field(request: Request) -> str | None:
    for index, item in enumerate(items_of(request)):
        known = KNOWN_FIELDS.get(kind_of(item))
        for name in item if known else ():
            if name not in known:  # type: ignore[operator]
                return f"Unknown parameter: 'input[{index}].{name}'."
    return None


def roles(request: Request) -> str | None:
    for index, item in enumerate(items_of(request)):
        kind = kind_of(item)
        if kind == "message" and item.get("role") not in ("user", "assistant", "system", "developer"):
            return (
                f"Invalid value: '{item.get('role')}'. Supported values are: 'assistant', 'system', 'developer', and "
                f"'user' (input[{index}])."
            )
        if not kind:
            return f"Invalid value: '' for 'input[{index}].type'."
    return None


def content_types(request: Request) -> str | None:
    for item in items_of(request):
        if kind_of(item) != "message" or not isinstance(item.get("content"), list):
            continue
        said = item.get("role") == "assistant"
        allowed = ("output_text", "refusal") if said else ("input_text", "input_image", "input_file", "input_audio")
        for part in item["content"]:
            if part.get("type") not in allowed:
                return f"Invalid value: '{part.get('type')}'. Supported values are: {', '.join(map(repr, allowed))}."
    return None


def output_has_call(request: Request) -> str | None:
    called: set[Any] = set()
    for item in items_of(request):
        if kind_of(item) == "function_call":
            called.add(item.get("call_id"))
        if kind_of(item) == "function_call_output" and item.get("call_id") not in called:
            return f"No tool call found for function call output with call_id {item.get('call_id')}."
    return None


def call_has_output(request: Request) -> str | None:
    answered = {item.get("call_id") for item in items_of(request) if kind_of(item) == "function_call_output"}
    for item in items_of(request):
        if kind_of(item) == "function_call" and item.get("call_id") not in answered:
            return f"No tool output found for function call {item.get('call_id')}."
    return None


def call_ids(request: Request) -> str | None:
    for index, item in enumerate(items_of(request)):
        if kind_of(item) not in ("function_call", "function_call_output"):
            continue
        call_id = item.get("call_id")
        if not isinstance(call_id, str) or not call_id:
            return f"Invalid 'input[{index}].call_id': empty string. Expected a string with minimum length 1."
        if len(call_id) > LONGEST_CALL_ID:
            return f"Invalid 'input[{index}].call_id': string too long. Expected a string with maximum length 64."
    return None


def unique_items(request: Request) -> str | None:
    seen: set[tuple[str, Any]] = set()
    for item in items_of(request):
        keys = [("id", item.get("id"))] if item.get("id") else []
        if kind_of(item) in ("function_call", "function_call_output"):
            keys.append((kind_of(item), item.get("call_id")))
        for key in keys:
            if key in seen:
                return f"Duplicate item found with id {key[1]}. Remove duplicate items from your input and try again."
            seen.add(key)
    return None


def item_ids(request: Request) -> str | None:
    for index, item in enumerate(items_of(request)):
        prefix, own = PREFIXES.get(kind_of(item)), item.get("id")
        if prefix is None or "id" not in item:
            continue
        if not isinstance(own, str) or not WIRE_ID.match(own):
            return (
                f"Invalid 'input[{index}].id': '{own}'. Expected an ID that contains letters, numbers, underscores, "
                "or dashes, but this value contained additional characters."
            )
        if not own.startswith(prefix):
            return f"Invalid 'input[{index}].id': '{own}'. Expected an ID that begins with '{prefix}'."
    return None


def tool_names(request: Request) -> str | None:
    offered = [(f"tools[{i}].name", t.get("name")) for i, t in enumerate(request.get("tools") or [])]
    called = [
        (f"input[{i}].name", item.get("name"))
        for i, item in enumerate(items_of(request))
        if kind_of(item) == "function_call"
    ]
    for where, name in offered + called:
        if not isinstance(name, str) or not OPENAI_NAME.match(name):
            return f"Invalid '{where}': string does not match pattern. Expected a string that matches {NAME_PATTERN}."
    return None


def tool_choice_without_tools(request: Request) -> str | None:
    if request.get("tool_choice") not in (None, "auto", "none") and not request.get("tools"):
        return "Tool choice 'required' or a named tool must be specified with 'tools' parameter."
    return None


def tool_choice_known(request: Request) -> str | None:
    choice = request.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return None
    if choice.get("name") not in [tool.get("name") for tool in request.get("tools") or []]:
        return f"Tool choice '{choice.get('name')}' not found in 'tools' parameter."
    return None


def json_word(request: Request) -> str | None:
    """The instructions don't count, only the input does."""
    if ((request.get("text") or {}).get("format") or {}).get("type") != "json_object":
        return None
    value = request.get("input")
    texts = [value] if isinstance(value, str) else [text_of(item.get("content")) for item in items_of(request)]
    if any("json" in text.lower() for text in texts):
        return None
    return (
        "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'."
    )


def json_schema(request: Request) -> str | None:
    form = (request.get("text") or {}).get("format")
    if not isinstance(form, dict):
        return None
    if form.get("type") not in ("text", "json_object", "json_schema"):
        return f"Invalid value: '{form.get('type')}'. Supported values are: 'json_object', 'json_schema', and 'text'."
    if form["type"] == "json_schema":
        if not isinstance(form.get("name"), str) or not OPENAI_NAME.match(form["name"]):
            return "Missing required parameter: 'text.format.name'."
        if not isinstance(form.get("schema"), dict):
            return "Missing required parameter: 'text.format.schema'."
    return None


def strict_schema(request: Request) -> str | None:
    form = (request.get("text") or {}).get("format") or {}
    if form.get("strict") and (problem := strict_schema_problem(form.get("schema"))):
        return f"Invalid schema for response_format '{form.get('name')}': {problem}"
    for tool in request.get("tools") or []:
        # Left out means strict here, unlike in chat completions; the server then quietly adapts the schema.
        if tool.get("strict") is True and (problem := strict_schema_problem(tool.get("parameters"))):
            return f"Invalid schema for function '{tool.get('name')}': {problem}"
    return None


def reasoning_followed(request: Request) -> str | None:
    items = items_of(request)
    for index, item in enumerate(items):
        if kind_of(item) != "reasoning":
            continue
        after = items[index + 1] if index + 1 < len(items) else {}
        said = kind_of(after) == "message" and after.get("role") == "assistant"
        if kind_of(after) not in ("function_call", "reasoning") and not said:
            return f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
    return None


def reasoning_before(request: Request) -> str | None:
    items = items_of(request)
    present = {item.get("id") for item in items if kind_of(item) == "reasoning"}
    for item in items:
        _, mark, needed = str(item.get("id", "")).partition(f"_{AFTER}_")
        if mark and needed not in present:
            kind = kind_of(item)
            return (
                f"Item '{item['id']}' of type '{kind}' was provided without its required 'reasoning' item: '{needed}'."
            )
    return None


def reasoning_encrypted(request: Request) -> str | None:
    if request.get("store") is not False:
        return None
    for item in items_of(request):
        if kind_of(item) == "reasoning" and not item.get("encrypted_content"):
            return (
                f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false. "
                "Try again with `store` set to true, or remove this item from your input."
            )
    return None


def encrypted_intact(request: Request) -> str | None:
    for item in items_of(request):
        sealed = item.get("encrypted_content")
        if kind_of(item) == "reasoning" and sealed and sealed != seal(str(item.get("id")), "enc"):
            return f"The encrypted content {str(sealed)[:4]}...{str(sealed)[-4:]} could not be verified."
    return None


def reasoning_summary(request: Request) -> str | None:
    for index, item in enumerate(items_of(request)):
        if kind_of(item) == "reasoning" and not isinstance(item.get("summary"), list):
            return f"Missing required parameter: 'input[{index}].summary'."
    return None


def reasoning_temperature(request: Request) -> str | None:
    value = request.get("temperature")
    if model_is(request, REASONING) and value is not None and value != 1:
        return "Unsupported parameter: 'temperature' is not supported with this model."
    return None
