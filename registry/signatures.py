"""A function's signature and docstring as a tool's name, description and JSON Schema, by pydantic."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.errors import UsageError
from registry.tool_context import context_parameter

_ARGS_HEADING = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_ARGS_ENTRY = re.compile(r"^(\*{0,2}[A-Za-z_]\w*)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD_ENTRY = re.compile(r"^:param\s+(?:[^:]*\s)?([A-Za-z_]\w*):\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model must know to call a function, and the way from its JSON arguments to the function's own types.

    `context` names the parameter that takes a ToolContext, which no model is told of.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    model: Any
    fields: Mapping[str, str]
    context: str = ""

    def convert(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The arguments as the function's types, and what is wrong with them, one text a field."""
        from pydantic import ValidationError

        try:
            values = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            return {}, [_problem(entry) for entry in error.errors(include_url=False, include_context=False)]
        return {name: getattr(values, field) for field, name in self.fields.items() if name in arguments}, []


def _problem(entry: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in entry["loc"])
    return f"{place}: {entry['msg']}" if place else str(entry["msg"])


def read_signature(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    localns: Mapping[str, Any] | None = None,
) -> Signature:
    """Reads a function with docstring and type hints.

    `localns`: names that hints given as text may use besides the function's module. Raises UsageError that says what
    to change where the signature can't be a tool's.
    """
    name = name or getattr(function, "__name__", "")
    if not name or name == "<lambda>":
        raise UsageError("this callable has no name of its own: give one, @tool(name=…)")
    doc = description or _doc(function)
    if not doc.strip():
        raise UsageError(f"tool {name!r} has no docstring: write one, it is all that a model is told of the tool")
    context = context_parameter(function)
    parameters = [parameter for parameter in _parameters(function, name) if parameter.name != context]
    hints = _hints(function, name, localns)
    notes = argument_notes(doc)
    model, fields = _model(name, parameters, hints, notes)
    return Signature(name, doc.strip(), _schema(model, name), model, fields, context)


def _doc(function: Callable[..., Any]) -> str:
    """The function's own docstring; that of its type (for a partial or a callable object) says nothing of it."""
    doc = getattr(function, "__doc__", None)
    if not doc or (not inspect.isroutine(function) and doc == type(function).__doc__):
        doc = getattr(getattr(function, "func", None), "__doc__", None)
    return inspect.cleandoc(doc) if doc else ""


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"tool {name!r} takes {parameter}: name every parameter, a model must know them")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(f"tool {name!r}: parameter {parameter.name!r} is positional-only: arguments go by name")
    return parameters


def _hints(function: Callable[..., Any], name: str, localns: Mapping[str, Any] | None) -> dict[str, Any]:
    target: Any = getattr(function, "func", function)
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, localns=dict(localns or {}), include_extras=True)
    except (NameError, TypeError) as error:
        raise UsageError(
            f"tool {name!r}: a type hint can't be read ({error}): define its types before the tool"
        ) from error


def argument_notes(doc: str) -> dict[str, str]:
    """The parameters' descriptions from a docstring: an `Args:` section, or `:param name: text` lines."""
    lines = doc.splitlines()
    notes = _field_notes(lines)
    for number, line in enumerate(lines):
        if _ARGS_HEADING.match(line.strip()):
            depth = len(line) - len(line.lstrip())
            notes |= _section_notes(lines[number + 1 :], depth)
    return notes


def _section_notes(lines: Sequence[str], heading_depth: int) -> dict[str, str]:
    block = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= heading_depth:
            break
        block.append(line)
    notes: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in textwrap.dedent("\n".join(block)).splitlines():
        if not line.startswith((" ", "\t")) and (entry := _ARGS_ENTRY.match(line)):
            current = notes.setdefault(entry[1].lstrip("*"), [])
            current.append(entry[2].strip())
        elif current is not None and line.strip():
            current.append(line.strip())
    return {name: " ".join(filter(None, texts)) for name, texts in notes.items()}


def _field_notes(lines: Sequence[str]) -> dict[str, str]:
    notes: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        if entry := _FIELD_ENTRY.match(line.strip()):
            current = notes.setdefault(entry[1], [])
            current.append(entry[2].strip())
        elif current is not None and line.strip() and not line.strip().startswith(":"):
            current.append(line.strip())
        else:
            current = None
    return {name: " ".join(filter(None, texts)) for name, texts in notes.items()}


def _model(
    name: str, parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any], notes: Mapping[str, str]
) -> tuple[Any, dict[str, str]]:
    """A pydantic model of the parameters. Its fields have names of their own and the parameters' as aliases, since
    pydantic refuses or shadows some names that parameters may have (`schema`, `json`, `_x`)."""
    from pydantic import ConfigDict, Field, create_model
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    definitions: dict[str, Any] = {}
    fields: dict[str, str] = {}
    for number, parameter in enumerate(parameters):
        if parameter.name not in hints:
            raise UsageError(f"tool {name!r}: parameter {parameter.name!r} has no type hint: add one")
        hint = hints[parameter.name]
        options: dict[str, Any] = {"alias": parameter.name}
        if note := notes.get(parameter.name):
            options["description"] = note
        if parameter.default is not parameter.empty:
            options |= _default(parameter.default)
            hint = hint | None if parameter.default is None else hint
        if not _described(hint):
            hint = typing.Annotated[hint, Field(**{k: v for k, v in options.items() if k == "description"})]
        options.pop("description", None)
        field = f"p{number}"
        fields[field] = parameter.name
        definitions[field] = (hint, Field(**options))
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **definitions), fields
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise UsageError(f"tool {name!r}: a parameter's type can't be described in JSON: {error.message}") from error


def _described(hint: Any) -> bool:
    return any(getattr(mark, "description", None) for mark in getattr(hint, "__metadata__", ()))


def _default(value: Any) -> dict[str, Any]:
    """The default as a schema may state it; one that JSON can't hold is left out there."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        json.dumps(to_jsonable_python(value), allow_nan=False)
    except (PydanticSerializationError, ValueError, TypeError):
        return {"default_factory": lambda: value}
    return {"default": value}


def _schema(model: Any, name: str) -> dict[str, Any]:
    from pydantic.errors import PydanticUserError

    try:
        schema = model.model_json_schema(by_alias=True, mode="validation")
    except PydanticUserError as error:
        raise UsageError(f"tool {name!r}: a parameter's type can't be described in JSON: {error.message}") from error
    plain: dict[str, Any] = _without_titles(schema)
    plain.pop("description", None)
    plain.setdefault("properties", {})
    return plain


_MAPS = ("properties", "$defs", "patternProperties")


def _without_titles(schema: Any) -> Any:
    """The schema less the titles that pydantic makes from names: tokens that tell a model nothing."""
    if isinstance(schema, list):
        return [_without_titles(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(entry) for name, entry in value.items()}
        if key in _MAPS and isinstance(value, dict)
        else value
        if key in ("default", "const", "enum", "examples")
        else _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
