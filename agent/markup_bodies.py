"""The bodies of tool calls in markup: JSON, elements, parameters, or calls in Python's form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from .actions import FORMAT, KnownTools, TextCall, read_action
from .json_text import Found
from .lenient import Reader, parse_value
from .pythonic import read_python_calls

Read: TypeAlias = "tuple[list[TextCall], int] | None"
"""The calls and the place behind them; None where the mark is only text."""

_PARAMETER = re.compile(
    r"<[^<>\s/=\"]{0,20}parameter(?:\s{0,4}=\s{0,4}|\s{1,4}name=)[\"']?([^\"'>\s]{1,100})[\"']?([^>]{0,100})>"
)
_PARAMETER_END = re.compile(
    r"</[^<>\s]{0,20}parameter>|(?=<[^<>\s/=\"]{0,20}parameter(?:=|\s{1,4}name=))|(?=</[^<>\s]{0,20}(?:function|invoke)>)"
)
_CLOSING = re.compile(r"</[^<>\s]{0,30}>")
_ARGUMENT_PAIR = re.compile(r"<arg_key>([^<]{1,200})</arg_key>\s{0,20}<arg_value>")
CHILD = re.compile(r"<(name|tool_name|function_name|tool)>\s{0,20}([\w.:-]{1,100})\s{0,20}</\1>\s{0,20}")
_CHILD_ARGUMENTS = re.compile(r"<(arguments|parameters|args|input|params|tool_args|tool_input)>")
_CHILD_FIELD = re.compile(r"<([A-Za-z_][\w-]{0,63})>")
_SEPARATOR = re.compile(r"[\s,;]{0,50}(?:<\|?/?tool_call_sep\|?>)?[\s,;]{0,50}")


@dataclass(frozen=True, slots=True)
class Source:
    """What every reader needs."""

    text: str
    known: KnownTools
    reader: Reader


def named_body(source: Source, name: str, at: int) -> Read:
    """A name, then its arguments: key and value elements, an object, brackets as in Python, or nothing at all."""
    text, reader = source.text, source.reader
    after = reader.skip_blank(at)
    if _ARGUMENT_PAIR.match(text, after):
        return pairs_body(source, name, after)
    if _PARAMETER.match(text, after):
        return parameters_body(source, name, after)
    if text.startswith("{", after):
        return object_body(source, name, after)
    if text.startswith("(", at):
        return python_body(source, at - len(name))
    field = _CHILD_FIELD.match(text, after)
    if field and field.group(1) in source.known.fields(source.known.resolve(name) or ""):
        values, end = elements(source, after)
        return one_call(source, name, values, end)
    if _CLOSING.match(text, after) and source.known.resolve(name):
        return one_call(source, name, {}, after)
    return None


def json_body(source: Source, at: int) -> Read:
    """One or more JSON values that are calls, or calls in Python's form in a list."""
    text, reader = source.text, source.reader
    calls: list[TextCall] = []
    while text[at : at + 1] in ("{", "["):
        found = reader.read(at)
        if not isinstance(found, Found):
            python = python_body(source, at) if text[at] == "[" and not calls else None
            if python is None and (text[at] == "{" or '"' in text[at : at + 50]):
                raise ValueError(f"the tool call is not valid JSON. {FORMAT}")
            return python
        check_complete(source, found)
        action = read_action(found.value, source.known, marked=True)
        if action is None:
            break
        calls += action.calls
        at = _SEPARATOR.match(text, found.end).end()  # type: ignore[union-attr]  # matches the empty string
    return (calls, at) if calls else None


def check_complete(source: Source, found: Found) -> None:
    """Raises for a value with conflicting keys, and for one that the end of the text may have cut."""
    if found.conflict is not None:
        raise ValueError(f"the key {found.conflict!r} comes twice with different values. {FORMAT}")
    if not found.closed and found.end >= len(source.text) and source.text.rstrip()[-1:] not in ("}", "]"):
        raise ValueError(f"the tool call is not complete. {FORMAT}")


def object_body(source: Source, name: str, at: int) -> Read:
    """A name whose arguments are the JSON object at `at`."""
    found = source.reader.read(at)
    if not isinstance(found, Found):
        raise ValueError(f"the arguments of {name!r} are not valid JSON. {FORMAT}")
    check_complete(source, found)
    return one_call(source, name, found.value, found.end)


def one_call(source: Source, name: str, arguments: Any, end: int) -> Read:
    call = source.known.call(name, arguments)
    return ([call], end) if call else None


def parameters_body(source: Source, name: str, at: int) -> Read:
    """<parameter=key>value</parameter> and <parameter name="key">value</parameter>, with any prefix."""
    text = source.text
    values: dict[str, Any] = {}
    while match := _PARAMETER.match(text, at):
        end = _PARAMETER_END.search(text, match.end())
        if end is None:
            raise ValueError(f"the parameter {match.group(1)!r} of {name!r} is not complete. {FORMAT}")
        value = trimmed(text[match.end() : end.start()])
        values[match.group(1)] = typed(value) if 'string="false"' in match.group(2) else value
        at = source.reader.skip_blank(end.end())
    return one_call(source, name, values, at)


def pairs_body(source: Source, name: str, at: int) -> Read:
    """<arg_key>key</arg_key><arg_value>value</arg_value> …"""
    text = source.text
    fields = source.known.fields(source.known.resolve(name) or "")
    values: dict[str, Any] = {}
    while match := _ARGUMENT_PAIR.match(text, at):
        end = text.find("</arg_value>", match.end())
        if end < 0:
            raise ValueError(f"the argument {match.group(1)!r} of {name!r} is not complete. {FORMAT}")
        key, value = match.group(1).strip(), trimmed(text[match.end() : end])
        values[key] = value if key in fields else typed(value)
        at = source.reader.skip_blank(end + len("</arg_value>"))
    return one_call(source, name, values, at)


def children_body(source: Source, match: re.Match[str]) -> Read:
    """<name>x</name><arguments>…</arguments>: an object, or one element per argument."""
    text, name = source.text, match.group(2)
    holder = _CHILD_ARGUMENTS.match(text, match.end())
    if holder is None:
        return one_call(source, name, {}, match.end())
    at = source.reader.skip_blank(holder.end())
    if text.startswith("{", at):
        return object_body(source, name, at)
    values, at = elements(source, at)
    if not values:
        end = text.find("</", at)
        return one_call(source, name, text[at : end if end >= 0 else len(text)].strip(), max(at, end))
    return one_call(source, name, values, at)


def elements(source: Source, at: int) -> tuple[dict[str, Any], int]:
    """<key>value</key> … up to something else."""
    text = source.text
    values: dict[str, Any] = {}
    while field := _CHILD_FIELD.match(text, at):
        end = text.find(f"</{field.group(1)}>", field.end())
        if end < 0:
            raise ValueError(f"the element {field.group(1)!r} of a tool call is not complete. {FORMAT}")
        values[field.group(1)] = trimmed(text[field.end() : end])
        at = source.reader.skip_blank(end + len(field.group(1)) + 3)
    return values, at


def python_body(source: Source, at: int) -> Read:
    read = read_python_calls(source.text, at, source.known, source.reader)
    if read is None:
        return None
    calls = [source.known.call(name, arguments) for name, arguments in read[0]]
    return [call for call in calls if call], read[1]


def trimmed(text: str) -> str:
    """A value without the one line break that templates put before and after it."""
    return text.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")


def typed(text: str) -> Any:
    """A value whose type nobody declared: JSON where it is JSON, else the text."""
    try:
        return parse_value(text)
    except ValueError:
        return text
