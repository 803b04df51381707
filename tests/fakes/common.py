"""What the rules of all dialects share: patterns, model classes by name, and small readers of request bodies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

Request = dict[str, Any]

OPENAI_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
ANTHROPIC_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")
ANTHROPIC_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
WIRE_ID = re.compile(r"^[a-zA-Z0-9_-]+$")

# Model classes, told by the name. The fake accepts any other name as a plain model.
REASONING = re.compile(r"^(fake-reasoning|o\d|gpt-[5-9])")
STRICT_TEMPLATE = re.compile(r"strict-template")
REASONING_ECHO = re.compile(r"needs-echo")
LLAMACPP = re.compile(r"llamacpp|\.gguf$")
CLAUDE_NEW = re.compile(r"^(fake-claude-new|claude-(opus|sonnet|haiku|fable)-([5-9]|4-[7-9]))")


def model_is(request: Request, kind: re.Pattern[str]) -> bool:
    """Whether the requested model belongs to a class."""
    return bool(kind.search(str(request.get("model", ""))))


def json_object(text: Any) -> dict[str, Any] | None:
    """The object that a JSON text holds; None where it is no JSON or no object."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def text_of(content: Any) -> str:
    """The text of a message's content in any dialect: a string, or parts that hold text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, str) else part.get("text", "") for part in content]
    return "\n".join(part for part in parts if part)


def seal(text: str, label: str) -> str:
    """A signature that the server can verify later without keeping anything: thinking and encrypted reasoning."""
    return f"{label}_{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:24]}"


def strict_schema_problem(schema: Any, where: str = "()") -> str | None:
    """What a strict schema lacks: closed objects that require all their properties."""
    if not isinstance(schema, dict):
        return None
    if schema.get("type") == "object" or "properties" in schema:
        if schema.get("additionalProperties") is not False:
            return f"In context={where}, 'additionalProperties' is required to be supplied and to be false."
        missing = sorted(set(schema.get("properties", {})) - set(schema.get("required", [])))
        if missing:
            return (
                f"In context={where}, 'required' is required to be supplied and to be an array including every key "
                f"in properties. Missing '{missing[0]}'."
            )
    inner = [*schema.get("properties", {}).items(), *schema.get("$defs", {}).items(), ("items", schema.get("items"))]
    for name, part in inner:
        if problem := strict_schema_problem(part, f"('properties', '{name}')"):
            return problem
    return None
