"""What a model meant: a JSON value, a tool's arguments, or a whole turn, out of the text that it wrote.

Strict parsing first, then a forgiving reader, then coercion to the schema and validation. What stays ambiguous is no
value, and what the output limit cut is never repaired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry.messages import MAX_NESTING, nests_too_deep
from registry.schema import coerce, format_problems, properties, types

from .actions import TextCall, UnknownToolError
from .json_text import BLANK_CHARS, Found, same, strict, unescape
from .lenient import Reader, decoded, parse_value
from .reasoning import strip_reasoning
from .turns import TextTurn, parse_tool_text, read_turn
from .values import Candidate, Values, find_values, is_mark

__all__ = [
    "TextCall",
    "TextTurn",
    "UnknownToolError",
    "extract_json",
    "parse_tool_arguments",
    "parse_tool_text",
    "parse_value",
    "read_turn",
    "strip_reasoning",
]

_NOTHING: Any = object()
_ESCAPED_HEAD = 10
"""Where an object whose quotes are all escaped has its first one."""
_ACTION_TYPES = ("tool_call", "final_answer")
_SCHEMA_WORDS = frozenset({"type", "properties", "required", "title", "description", "$schema", "$defs", "$id"})
_SCHEMA_WORDS |= {"additionalProperties", "definitions"}
_CALL_WORDS = frozenset({"name", "type", "id", "arguments", "parameters", "args", "input"})


def extract_json(
    text: str, schema: Any = None, finish_reason: str | None = None, allow_partial: bool = False
) -> Any | None:
    """The JSON value that a model meant, coerced to the schema and valid under it; None where there is none.

    `schema`: a JSON Schema or a pydantic model class. `finish_reason` "length" says that the output limit cut the text:
    then only a text that is one complete value counts. `allow_partial` takes a cut value as far as it goes; required
    fields may then be missing.
    """
    if not isinstance(text, str):
        return None
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    try:
        value = _extract(text.strip(BLANK_CHARS), _Fit(schema, allow_partial), finish_reason == "length")
    except RecursionError:
        return None
    return None if value is _NOTHING else value


TOO_DEEP = f"the arguments are nested more than {MAX_NESTING} levels deep"


def parse_tool_arguments(raw: Any, schema: Any, finish_reason: str | None = None) -> dict[str, Any]:
    """The arguments of a native call: one object, coerced to the tool's schema and valid under it.

    Empty text and null are no arguments. Raises ValueError that says what is wrong; cut arguments are never closed.
    """
    if finish_reason == "length":
        raise ValueError("the output limit cut the arguments")
    try:
        data = _arguments(raw, schema)
        fitted, problems = coerce(data, schema, parse=parse_value)
        if problems:
            for variant in _unwrapped(data, schema):
                other, wrong = coerce(variant, schema, parse=parse_value)
                if not wrong and isinstance(other, dict):
                    return other
            raise ValueError(format_problems(problems))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if nests_too_deep(fitted):
        raise ValueError(TOO_DEEP)
    return dict(fitted)


def _extract(text: str, fit: _Fit, cut: bool) -> Any:
    if whole := strict(text):
        uncertain = cut and isinstance(whole.value, int | float) and not isinstance(whole.value, bool)
        return _NOTHING if uncertain and not fit.partial else fit.of(whole)
    if cut and not fit.partial:
        return _NOTHING
    rest = strip_reasoning(text)[1].strip(BLANK_CHARS)
    if rest != text and (whole := strict(rest)):
        return fit.of(whole)
    if rest[:1] in ("{", "[") and '\\"' in rest[:_ESCAPED_HEAD] and (whole := strict(unescape(rest))):
        return fit.of(whole)
    return _choose(find_values(rest, Reader(rest, partial=fit.partial)), fit, rest)


def _choose(values: Values, fit: _Fit, text: str) -> Any:
    """The first action; else what the last fitting fence holds; else the bare value, if there is only one."""
    if not values.complete:
        return _NOTHING
    fitting = [
        (candidate, value) for candidate in values.candidates if (value := fit.of(candidate.found)) is not _NOTHING
    ]
    for _, value in fitting:
        if is_action(value):
            return value
    fence = max((candidate.fence for candidate, _ in fitting if candidate.fence is not None), default=None)
    if fence is not None:
        return _one([value for candidate, value in fitting if candidate.fence == fence])
    plain = [(candidate, value) for candidate, value in fitting if not is_mark(text, candidate.found)]
    if not plain and (values.broken or len(fitting) < len(values.candidates)):
        return _NOTHING  # a citation beside something that could not be read is not the answer
    return _one([value for _, value in plain or fitting])


def is_action(value: Any) -> bool:
    """Whether the value is a turn of the JSON mode: {"type": "tool_call" | "final_answer", …}."""
    return isinstance(value, dict) and (
        value.get("type") in _ACTION_TYPES and (("tool_name" in value) or ("answer" in value))
    )


def _one(values: list[Any]) -> Any:
    if not values or not all(same(values[0], value) for value in values[1:]):
        return _NOTHING
    return values[0]


class _Fit:
    """Whether a value is what the schema asks for, after coercion and unwrapping."""

    def __init__(self, schema: Any, partial: bool) -> None:
        self.schema = schema if isinstance(schema, Mapping) else None
        self.partial = partial
        self.takes_text = self.schema is not None and "string" in types(self.schema)

    def of(self, found: Found) -> Any:
        """The value in the schema's types, or nothing."""
        if found.conflict is not None:
            return _NOTHING
        value = found.value if self.takes_text else decoded(found.value)
        if self.schema is None:
            return value
        if _is_echo(value, self.schema):
            return _NOTHING
        for variant in self._variants(value):
            fitted, problems = coerce(variant, self.schema, parse=parse_value)
            if not problems or (self.partial and not found.closed):
                return fitted
        return _NOTHING

    def _variants(self, value: Any) -> Iterator[Any]:
        wrapped = isinstance(value, dict) and "properties" in value and value.keys() <= _SCHEMA_WORDS
        if not wrapped or "properties" in properties(self.schema):
            yield value
        yield from _unwrapped(value, self.schema)


def _is_echo(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether the model returned the schema, or one like it, instead of an instance."""
    if value == schema:
        return True
    if not isinstance(value, dict) or value.get("type") != "object" or "properties" in properties(schema):
        return False
    inner = value.get("properties")
    words = {"type", "$ref", "anyOf", "enum", "items", "description", "properties"}
    return isinstance(inner, dict) and all(isinstance(part, dict) and part.keys() & words for part in inner.values())


def _unwrapped(value: Any, schema: Any) -> Iterator[Any]:
    """What may be inside a wrapper: the schema's word `properties`, a call's form, or one key that is no field."""
    if not isinstance(value, dict):
        return
    fields = properties(schema)
    inner = value.get("properties")
    if isinstance(inner, dict) and "properties" not in fields and value.keys() <= _SCHEMA_WORDS:
        yield inner
    if value.keys() <= _CALL_WORDS and not value.keys() & fields.keys():
        yield from (decoded(value[key]) for key in ("arguments", "parameters", "args", "input") if key in value)
    if len(value) == 1 and not value.keys() & fields.keys():
        yield decoded(next(iter(value.values())))


def _arguments(raw: Any, schema: Any) -> dict[str, Any]:
    """The one object of a call's raw arguments."""
    if isinstance(raw, Mapping):
        return dict(raw)
    if raw is None or (isinstance(raw, str) and not raw.strip(BLANK_CHARS)):
        return {}
    text = str(raw).strip(BLANK_CHARS)
    whole = strict(text)
    if whole and whole.conflict is not None:
        raise ValueError(f"the key {whole.conflict!r} comes twice with different values")
    if whole:
        value = decoded(whole.value)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ValueError(f"the arguments must be one JSON object, not {_kind(value)}")
        return value
    values = find_values(text, Reader(text, close_at_end=False))
    objects = [candidate for candidate in values.candidates if isinstance(candidate.found.value, dict)]
    if not values.complete or not objects:
        raise ValueError("the arguments are not valid JSON: send one complete JSON object")
    return _only(objects, schema)


def _only(objects: list[Candidate], schema: Any) -> dict[str, Any]:
    for candidate in objects:
        if candidate.found.conflict is not None:
            raise ValueError(f"the key {candidate.found.conflict!r} comes twice with different values")
    values: list[dict[str, Any]] = [candidate.found.value for candidate in objects]
    if len(values) > 1:
        values = [value for value in values if not coerce(value, schema, parse=parse_value)[1]] or values
    if not all(same(values[0], value) for value in values[1:]):
        raise ValueError("the arguments hold several different objects: send one call per object")
    return values[0]


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "another value")
