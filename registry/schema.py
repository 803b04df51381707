"""JSON Schema for what models write: gentle coercion to the declared types, then validation (draft 2020-12).

Coercion goes one way only: a string becomes what the schema asks for ("7" -> 7, "[1]" -> [1]); nothing ever becomes a
string. A value that already fits comes back equal. References are resolved inside the schema; nothing is fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Parse = Callable[[str], Any]
"""Text to JSON value; raises ValueError."""

MAX_PROBLEMS = 5
MAX_PROBLEM_CHARS = 300
MAX_DEPTH = 100
_CACHED_VALIDATORS = 512

_INTEGER = re.compile(r"[+-]?\d{1,400}(?:\.0{1,20})?")
_NUMBER = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,3})?")
_BOOLEANS = {"true": True, "false": False}
_NULLS = ("null", "none")
_UNCHANGED = object()

_validators: dict[int, tuple[Mapping[str, Any], Any]] = {}


def coerce(value: Any, schema: Mapping[str, Any] | bool | None, *, parse: Parse | None = None) -> tuple[Any, list[str]]:
    """The value in the schema's types, and what is still wrong with it (empty: it fits).

    Problems name the field's path: "limit: 'ten' is not of type 'integer'". `parse` reads an array or object that
    arrives as a string; without it only strict JSON is read.
    """
    if not isinstance(schema, Mapping):
        return value, [] if schema is not False else ["no value is allowed here"]
    try:
        fitted = _Coercer(schema, parse or _strict).fit(value, schema, 0)
        found = problems(fitted, schema)
        if found and fitted is not value and not problems(value, schema):
            return value, []
    except RecursionError:
        return value, ["nested too deeply"]
    except (AttributeError, TypeError) as error:  # a schema of a stranger's: properties that are a text, and the like
        return value, [f"the schema itself cannot be used: {str(error)[:MAX_PROBLEM_CHARS]}"]
    return fitted, found


def problems(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """What is wrong with the value under the schema: a few short messages, each with the field's path."""
    from jsonschema.exceptions import UnknownType, best_match
    from referencing.exceptions import Unresolvable

    found: list[str] = []
    try:
        for error in _validator(schema).iter_errors(value):
            inner = best_match([error]) or error
            message = inner.message
            if len(message) > MAX_PROBLEM_CHARS:
                message = f"{message[: MAX_PROBLEM_CHARS // 2]} … {message[-MAX_PROBLEM_CHARS // 2 :]}"
            path = _path(inner.absolute_path)
            found.append(f"{path}: {message}" if path else message)
            if len(found) == MAX_PROBLEMS:
                break
    except (Unresolvable, re.error) as error:
        found.append(f"the schema itself cannot be used: {str(error)[:MAX_PROBLEM_CHARS]}")
    except UnknownType as error:
        found.append(f"the schema itself cannot be used: there is no type {str(error.type)[:MAX_PROBLEM_CHARS]!r}")
    return found


def format_problems(found: Sequence[str]) -> str:
    """The problems in one line, for an observation or a retry."""
    return "; ".join(found)


def resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with a leading local `$ref` followed ("#/$defs/Name"); {} where it leads nowhere."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target: Any = root
        if not reference.startswith("#"):
            return {}
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        siblings = {key: item for key, item in schema.items() if key != "$ref"}
        schema = {**target, **siblings} if isinstance(target, Mapping) and siblings else target
    return {}


def properties(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The declared properties of an object schema, by name."""
    if not isinstance(schema, Mapping):
        return {}
    found = resolve(schema, schema).get("properties")
    return dict(found) if isinstance(found, Mapping) else {}


def required(schema: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names that an object schema requires."""
    if not isinstance(schema, Mapping):
        return ()
    names = resolve(schema, schema).get("required")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list | tuple) else ()


def types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The JSON types that the schema's `type` names; empty when it names none."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return (declared,)
    return tuple(declared) if isinstance(declared, list | tuple) else ()


class _Coercer:
    """One walk over a value along its schema."""

    def __init__(self, root: Mapping[str, Any], parse: Parse) -> None:
        self.root = root
        self.parse = parse

    def fit(self, value: Any, schema: Any, depth: int) -> Any:
        """The value in the schema's types; the same object where nothing had to change."""
        schema = resolve(schema, self.root)
        if not schema or depth > MAX_DEPTH:
            return value
        for part in schema.get("allOf") or ():
            value = self.fit(value, part, depth + 1)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            value = self._branch(value, branches, depth)
        value = self._scalar(value, schema)
        if isinstance(value, Mapping):
            return self._object(value, schema, depth)
        if isinstance(value, list):
            return self._array(value, schema, depth)
        return value

    def _branch(self, value: Any, branches: Sequence[Any], depth: int) -> Any:
        """The first branch that takes the value as it is, else the first that takes it coerced."""
        for branch in branches:
            if self._fits(value, branch):
                return self.fit(value, branch, depth + 1)
        for branch in branches:
            fitted = self.fit(value, branch, depth + 1)
            if self._fits(fitted, branch):
                return fitted
        return value

    def _fits(self, value: Any, branch: Any) -> bool:
        return bool(_validator(self.root).evolve(schema=branch).is_valid(value))

    def _scalar(self, value: Any, schema: Mapping[str, Any]) -> Any:
        allowed = types(schema)
        if isinstance(value, float) and value.is_integer() and "integer" in allowed and "number" not in allowed:
            return int(value)
        if not isinstance(value, str):
            return value
        members = [schema["const"]] if "const" in schema else schema.get("enum")
        if not allowed and isinstance(members, list | tuple) and value not in members:
            decoded = next((member for member in members if _spelled(member) == value.strip()), _UNCHANGED)
            return value if decoded is _UNCHANGED else decoded
        if not allowed or "string" in allowed:
            return value
        return self._from_text(value, allowed)

    def _from_text(self, value: str, allowed: Sequence[str]) -> Any:
        """What a string means where no string is allowed; unchanged where it means nothing."""
        text = value.strip()
        if "integer" in allowed and _INTEGER.fullmatch(text):
            return int(text.partition(".")[0])
        if "number" in allowed and _NUMBER.fullmatch(text):
            number = float(text)
            if number not in (float("inf"), float("-inf")):
                return int(text) if text.lstrip("+-").isdigit() else number
        if "boolean" in allowed and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if "null" in allowed and text.lower() in _NULLS:
            return None
        wanted: tuple[type, ...] = tuple(kind for name, kind in (("array", list), ("object", dict)) if name in allowed)
        if wanted and text[:1] in ("[", "{"):
            try:
                parsed = self.parse(text)
            except (ValueError, RecursionError):
                return value
            return parsed if isinstance(parsed, wanted) else value
        return value

    def _object(self, value: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> Any:
        declared = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        needed = schema.get("required") or ()
        fitted: dict[str, Any] = {}
        changed = False
        for name, item in value.items():
            part = declared.get(name, extra)
            if not isinstance(part, Mapping):
                fitted[name] = item
                continue
            if item is None and name in declared and name not in needed and not self._fits(None, part):
                changed = True  # null for an optional field that knows no null: the model means "not given"
                continue
            fitted[name] = self.fit(item, part, depth + 1)
            changed = changed or fitted[name] is not item
        return fitted if changed else value

    def _array(self, value: list[Any], schema: Mapping[str, Any], depth: int) -> Any:
        leading = schema.get("prefixItems") or ()
        rest = schema.get("items")
        fitted = [
            self.fit(item, leading[index] if index < len(leading) else rest, depth + 1)
            for index, item in enumerate(value)
        ]
        return fitted if any(new is not old for new, old in zip(fitted, value, strict=True)) else value


def _validator(schema: Mapping[str, Any]) -> Any:
    """The validator of this schema object; cached by identity, the entry keeps the schema alive."""
    entry = _validators.get(id(schema))
    if entry is not None and entry[0] is schema:
        return entry[1]
    from jsonschema import Draft202012Validator
    from referencing import Registry

    validator = Draft202012Validator(schema, registry=Registry())  # an empty registry: no reference is ever fetched
    while len(_validators) >= _CACHED_VALIDATORS:
        _validators.pop(next(iter(_validators)), None)
    _validators[id(schema)] = (schema, validator)
    return validator


def _path(parts: Sequence[Any] | Any) -> str:
    """A field's path as people write it: steps[0].task."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text[:MAX_PROBLEM_CHARS]


def _spelled(member: Any) -> str | None:
    return None if isinstance(member, str) else json.dumps(member)


def _strict(text: str) -> Any:
    return json.loads(text)
