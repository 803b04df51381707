"""A script that whole jobs run through with: it routes, plans a diamond, works steps with one tool, judges, writes.

It knows the kinds of structured calls by the names in their schema, so it needs no prompt to stay word for word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .view import View

Schema = dict[str, Any]
ANSWER = "The result is 42."
SYNTHESIS = "The work is done: the result is 42."
EXPRESSION = "6*7"

DIAMOND: tuple[dict[str, Any], ...] = (
    {"id": "s1", "task": "Work out the base figure with a tool.", "dependencies": []},
    {"id": "s2", "task": "Work out the first half from the base figure.", "dependencies": ["s1"]},
    {"id": "s3", "task": "Work out the second half from the base figure.", "dependencies": ["s1"]},
    {"id": "s4", "task": "Put both halves together.", "dependencies": ["s2", "s3"]},
)

VALUES: dict[str, Any] = {
    "mode": "dag",
    "domain_hint": None,
    "achieved": True,
    "confidence": 0.95,
    "reasoning": "All steps are done and agree.",
    "final_answer": SYNTHESIS,
    "expression": EXPRESSION,
    "keep": [],
}
"""Sensible values by property name, wherever a schema asks for one."""


def brain(view: View) -> Any:
    """Answers any request of a job: structured calls by their schema, steps with one tool call and an answer."""
    if view.forced is not None:
        return [(view.forced, filled(view.schema_of(view.forced), view))]
    speaks_json = '"tool_call"' in view.system and '"final_answer"' in view.system and not view.tools
    if speaks_json:
        return json.dumps(_json_step(view))
    if view.schema is not None:
        return json.dumps(filled(view.schema, view))
    if not view.tools and (schema := schema_in_prompt(view)) is not None:
        return json.dumps(filled(schema, view))
    if view.tools and view.choice == "required":
        return [(view.tools[0]["name"], filled(view.tools[0]["schema"], view))]
    if view.tools and view.choice != "none" and not view.results:
        tool = next((tool for tool in view.tools if tool["name"] == "calculate"), view.tools[0])
        return [(tool["name"], filled(tool["schema"], view))]
    if view.tools or view.results:
        return ANSWER
    return SYNTHESIS


def _json_step(view: View) -> dict[str, Any]:
    """A step in JSON mode: one call where the prompt knows the calculator and none was made yet, then the answer."""
    called = any('"tool_call"' in message.text for message in view.messages if message.role == "assistant")
    if called or "calculate" not in view.system:
        return {"type": "final_answer", "reasoning": "enough is known", "answer": ANSWER}
    arguments = {"expression": EXPRESSION}
    return {"type": "tool_call", "reasoning": "a figure is needed", "tool_name": "calculate", "tool_args": arguments}


def schema_in_prompt(view: View) -> Schema | None:
    """The last JSON Schema of an object that stands in the prompt's text."""
    texts = [view.system, *(message.text for message in view.messages if message.role == "user")]
    found = [value for text in texts for value in _objects(text) if isinstance(value.get("properties"), dict)]
    return found[-1] if found else None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            end = start + 1
        else:
            if isinstance(value, dict):
                yield value
        start = text.find("{", end)


def filled(schema: Schema, view: View) -> dict[str, Any]:
    """A value for a schema of an object: known names sensibly, the rest by type. Optional unknown ones stay out."""
    root = schema
    properties = _resolved(schema, root).get("properties", {})
    required = schema.get("required", list(properties))
    value: dict[str, Any] = {}
    for name, raw in properties.items():
        part = _resolved(raw, root)
        if name == "steps":
            value[name] = [_step(step, _resolved(part.get("items", {}), root)) for step in DIAMOND]
        elif name == "tools" and part.get("type") == "array":
            value[name] = _offered_names(part)
        elif name in VALUES and _allowed(VALUES[name], part):
            value[name] = VALUES[name]
        elif name in required:
            value[name] = _by_type(part, root, view)
    return value


def _resolved(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        target: Any = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            target = target[key]
        schema = target
    return schema


def _step(step: dict[str, Any], schema: Schema) -> dict[str, Any]:
    known = schema.get("properties")
    if known is None:
        return dict(step)
    extra: dict[str, Any] = {name: None for name in schema.get("required", ()) if name not in step}
    if "on_failure" in extra:
        extra["on_failure"] = "skip_dependents"
    return {name: value for name, value in {**step, **extra}.items() if name in known}


def _offered_names(schema: Schema) -> list[str]:
    names = schema.get("items", {}).get("enum") or ["calculate"]
    return [name for name in names if name == "calculate"] or names[:1]


def _allowed(value: Any, schema: Schema) -> bool:
    return "enum" not in schema or value in schema["enum"]


def _by_type(schema: Schema, root: Schema, view: View) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return _by_type(_resolved(one, root), root, view)
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return filled({**schema, "$defs": root.get("$defs", {})}, view)
    return {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "array": [], "null": None}[kind]
