"""Tool calls in Python's form: name(key=value, …), alone, in a list, or printed. Read, never evaluated."""

from __future__ import annotations

import re
from typing import Any

from .actions import KnownTools
from .json_text import Found
from .lenient import AFTER_ARGUMENT, Reader

_NAME = re.compile(r"(?:print\(\s{0,5})?([A-Za-z_][\w.-]{0,100})\(")
_KEYWORD = re.compile(r"([A-Za-z_]\w{0,100})\s{0,5}=(?!=)\s{0,5}")
MAX_CALLS = 100


def read_python_calls(
    text: str, at: int, known: KnownTools, reader: Reader
) -> tuple[list[tuple[str, dict[str, Any]]], int] | None:
    """The names and arguments of the calls that begin at `at`, and the place behind them; None where there are none."""
    at = reader.skip_blank(at)
    listed = text.startswith("[", at)
    at = reader.skip_blank(at + 1) if listed else at
    calls: list[tuple[str, dict[str, Any]]] = []
    while len(calls) < MAX_CALLS and (match := _NAME.match(text, at)):
        read = _arguments(text, match, known, reader)
        if read is None:
            return None
        arguments, at = read
        calls.append((match.group(1).removesuffix(".call"), arguments))
        if match.group().startswith("print("):
            at = reader.skip_blank(at)
            at += text.startswith(")", at)
        at = reader.skip_blank(at)
        if listed and text.startswith("]", at):
            return calls, at + 1
        if text[at : at + 1] in (",", ";"):
            at = reader.skip_blank(at + 1)
    return (calls, at) if calls and not listed else None


def _arguments(text: str, match: re.Match[str], known: KnownTools, reader: Reader) -> tuple[dict[str, Any], int] | None:
    """The arguments of one call and the place behind its bracket; positional ones get the parameters' names."""
    name = known.resolve(match.group(1).removesuffix(".call"))
    fields = list(known.fields(name)) if name else []
    arguments: dict[str, Any] = {}
    at = reader.skip_blank(match.end())
    place = 0
    while not text.startswith(")", at):
        keyword = _KEYWORD.match(text, at)
        found = reader.read(keyword.end() if keyword else at, AFTER_ARGUMENT)
        if not isinstance(found, Found) or found.conflict is not None:
            return None
        if keyword:
            arguments[keyword.group(1)] = found.value
        elif isinstance(found.value, dict) and not arguments:
            arguments = found.value
        elif place < len(fields):
            arguments[fields[place]] = found.value
        else:
            return None
        place += 1
        at = reader.skip_blank(found.end)
        if text.startswith(",", at):
            at = reader.skip_blank(at + 1)
        elif not text.startswith(")", at):
            return None
    return arguments, at + 1
