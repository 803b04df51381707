"""Tool calls in the markup of a chat template that leaked into the text: one table of marks and their readers."""

# ruff: noqa: RUF001 - curly and full-width marks are meant

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from .actions import FORMAT, KnownTools, TextCall, read_action
from .json_text import Found
from .lenient import Reader, parse_value
from .pythonic import read_python_calls

Read: TypeAlias = "tuple[list[TextCall], int] | None"
"""The calls and the place behind them; None where the mark is only text."""

MAX_MARKS = 1_000

_PARAMETER = re.compile(
    r"<[^<>\s/=\"]{0,20}parameter(?:\s{0,4}=\s{0,4}|\s{1,4}name=)[\"']?([^\"'>\s]{1,100})[\"']?([^>]{0,100})>"
)
_PARAMETER_END = re.compile(
    r"</[^<>\s]{0,20}parameter>|(?=<[^<>\s/=\"]{0,20}parameter(?:=|\s{1,4}name=))|(?=</[^<>\s]{0,20}(?:function|invoke)>)"
)
_CLOSING = re.compile(r"</[^<>\s]{0,30}>")
_ARGUMENT_PAIR = re.compile(r"<arg_key>([^<]{1,200})</arg_key>\s{0,20}<arg_value>")
_NAME = re.compile(r"[\w.:-]{1,100}")
_CHILD = re.compile(r"<(name|tool_name|function_name|tool)>\s{0,20}([\w.:-]{1,100})\s{0,20}</\1>\s{0,20}")
_CHILD_ARGUMENTS = re.compile(r"<(arguments|parameters|args|input|params|tool_args)>")
_CHILD_FIELD = re.compile(r"<([A-Za-z_][\w-]{0,63})>")
_HEADER_END = re.compile(r"<｜tool▁sep｜>|<\|tool_call_argument_begin\|>|<\|tool_sep\|>")
_FENCE = re.compile(r"```[a-z_]{0,12}\s{0,10}")
_SEPARATOR = re.compile(r"[\s,;]{0,50}(?:<\|?/?tool_call_sep\|?>)?[\s,;]{0,50}")
_QUOTED = re.compile(r"(<\|\"\|>|<escape>)(.*?)\1", re.DOTALL)
_CALL_END = re.compile(r"<tool_call\|>|<end_function_call>|<\|tool_call_end\|>|(?=\bcall:[\w.-]{1,100}\{)")
_ID_AND_ARGS = re.compile(r"(?:\[CALL_ID\][\w-]{1,100})?\s{0,10}(?:\[ARGS\])?\s{0,10}(?=\{)")
_ARGS_LINE = re.compile(r"\s{0,10}✿ARGS✿:\s{0,10}")


@dataclass(frozen=True, slots=True)
class _Text:
    """What every reader needs."""

    text: str
    known: KnownTools
    reader: Reader


def read_markup(text: str, known: KnownTools, reader: Reader, cut: bool = False) -> list[tuple[int, TextCall]]:
    """All calls in markup, in order, each with the place of its mark.

    Raises ValueError for a call that can't be read or names no tool. `cut`: the text ends at the output limit, so that
    a mark with something behind it is a cut call.
    """
    calls: list[tuple[int, TextCall]] = []
    source = _Text(text, known, reader)
    at = 0
    marks = _marks_in(text)
    for _ in range(MAX_MARKS if marks else 0):
        match = marks.search(text, at) if marks else None
        if match is None:
            break
        if cut and _BODY.match(text, match.end()):
            raise ValueError("the output limit cut the reply inside a tool call")
        read = _READERS[match.lastgroup or ""](source, match)
        at = match.end()
        if read is not None:
            calls += [(match.start(), call) for call in read[0]]
            at = max(at, read[1])
    return calls


def _container(source: _Text, match: re.Match[str]) -> Read:
    """<tool_call> and its relatives: JSON, a name with a body, or child elements."""
    at = source.reader.skip_blank(match.end())
    if fence := _FENCE.match(source.text, at):
        at = fence.end()
    if source.text[at : at + 1] in ("{", "["):
        return _json(source, at)
    if child := _CHILD.match(source.text, at):
        return _children(source, child)
    name = _NAME.match(source.text, at)
    return _named(source, name.group(), name.end()) if name else None


def _attributed(source: _Text, match: re.Match[str]) -> Read:
    """<tool_call name="x">: the arguments stand inside."""
    return _named(source, match.group("attribute"), match.end())


def _named(source: _Text, name: str, at: int) -> Read:
    """A name, then its arguments: key and value elements, an object, brackets as in Python, or nothing at all."""
    text, reader = source.text, source.reader
    after = reader.skip_blank(at)
    if _ARGUMENT_PAIR.match(text, after):
        return _pairs(source, name, after)
    if _PARAMETER.match(text, after):
        return _parameters(source, name, after)
    if text.startswith("{", after):
        return _arguments(source, name, after)
    if text.startswith("(", at):
        return _python(source, at - len(name))
    if _CLOSING.match(text, after) and source.known.resolve(name):
        return _one(source, name, {}, after)
    return None


def _json(source: _Text, at: int) -> Read:
    """One or more JSON values that are calls, or calls in Python's form in a list."""
    text, reader = source.text, source.reader
    calls: list[TextCall] = []
    while text[at : at + 1] in ("{", "["):
        found = reader.read(at)
        if not isinstance(found, Found):
            python = _python(source, at) if text[at] == "[" and not calls else None
            if python is None and (text[at] == "{" or '"' in text[at : at + 50]):
                raise ValueError(f"the tool call is not valid JSON. {FORMAT}")
            return python
        _complete(source, found)
        action = read_action(found.value, source.known, marked=True)
        if action is None:
            break
        calls += action.calls
        at = _SEPARATOR.match(text, found.end).end()  # type: ignore[union-attr]  # matches the empty string
    return (calls, at) if calls else None


def _complete(source: _Text, found: Found) -> None:
    """Raises for a value with conflicting keys, and for one that the end of the text may have cut."""
    if found.conflict is not None:
        raise ValueError(f"the key {found.conflict!r} comes twice with different values. {FORMAT}")
    if not found.closed and found.end >= len(source.text) and source.text.rstrip()[-1:] not in ("}", "]"):
        raise ValueError(f"the tool call is not complete. {FORMAT}")


def _arguments(source: _Text, name: str, at: int) -> Read:
    """A name whose arguments are the JSON object at `at`."""
    found = source.reader.read(at)
    if not isinstance(found, Found):
        raise ValueError(f"the arguments of {name!r} are not valid JSON. {FORMAT}")
    _complete(source, found)
    return _one(source, name, found.value, found.end)


def _one(source: _Text, name: str, arguments: Any, end: int) -> Read:
    call = source.known.call(name, arguments)
    return ([call], end) if call else None


def _function(source: _Text, match: re.Match[str]) -> Read:
    """<function=name> or <invoke name="…">: parameters, an object, or nothing before the closing tag."""
    name, text = match.group(match.lastgroup or 0), source.text
    read = _named(source, name, match.end())
    if read is None and source.known.resolve(name):
        at = source.reader.skip_blank(match.end())
        if at >= len(text) or text[at] == "<":
            return _one(source, name, {}, at)
        raise ValueError(f"the arguments of {name!r} can't be read. {FORMAT}")
    return read


def _parameters(source: _Text, name: str, at: int) -> Read:
    """<parameter=key>value</parameter> and <parameter name="key">value</parameter>, with any prefix."""
    text = source.text
    values: dict[str, Any] = {}
    while match := _PARAMETER.match(text, at):
        end = _PARAMETER_END.search(text, match.end())
        if end is None:
            raise ValueError(f"the parameter {match.group(1)!r} of {name!r} is not complete. {FORMAT}")
        value = _trimmed(text[match.end() : end.start()])
        values[match.group(1)] = _typed(value) if 'string="false"' in match.group(2) else value
        at = source.reader.skip_blank(end.end())
    return _one(source, name, values, at)


def _pairs(source: _Text, name: str, at: int) -> Read:
    """<arg_key>key</arg_key><arg_value>value</arg_value> …"""
    text = source.text
    fields = source.known.fields(source.known.resolve(name) or "")
    values: dict[str, Any] = {}
    while match := _ARGUMENT_PAIR.match(text, at):
        end = text.find("</arg_value>", match.end())
        if end < 0:
            raise ValueError(f"the argument {match.group(1)!r} of {name!r} is not complete. {FORMAT}")
        key, value = match.group(1).strip(), _trimmed(text[match.end() : end])
        values[key] = value if key in fields else _typed(value)
        at = source.reader.skip_blank(end + len("</arg_value>"))
    return _one(source, name, values, at)


def _children(source: _Text, match: re.Match[str]) -> Read:
    """<name>x</name><arguments>…</arguments>: an object, or one element per argument."""
    text, name = source.text, match.group(2)
    holder = _CHILD_ARGUMENTS.match(text, match.end())
    if holder is None:
        return _one(source, name, {}, match.end())
    at = source.reader.skip_blank(holder.end())
    if text.startswith("{", at):
        return _arguments(source, name, at)
    values, at = _fields(source, at)
    if not values:
        end = text.find("</", at)
        return _one(source, name, text[at : end if end >= 0 else len(text)].strip(), max(at, end))
    return _one(source, name, values, at)


def _fields(source: _Text, at: int) -> tuple[dict[str, Any], int]:
    """<key>value</key> … up to something else."""
    text = source.text
    values: dict[str, Any] = {}
    while field := _CHILD_FIELD.match(text, at):
        end = text.find(f"</{field.group(1)}>", field.end())
        if end < 0:
            raise ValueError(f"the element {field.group(1)!r} of a tool call is not complete. {FORMAT}")
        values[field.group(1)] = _trimmed(text[field.end() : end])
        at = source.reader.skip_blank(end + len(field.group(1)) + 3)
    return values, at


def _mistral(source: _Text, match: re.Match[str]) -> Read:
    """[TOOL_CALLS] with a JSON list, or name[ARGS]{…}."""
    at = source.reader.skip_blank(match.end())
    if source.text[at : at + 1] in ("[", "{"):
        return _json(source, at)
    name = _NAME.match(source.text, at)
    arguments = _ID_AND_ARGS.match(source.text, name.end()) if name else None
    return _arguments(source, name.group(), arguments.end()) if name and arguments else None


def _body_at_mark(source: _Text, match: re.Match[str]) -> Read:
    """A mark in front of JSON or of calls in Python's form."""
    at = source.reader.skip_blank(match.end())
    if source.text[at : at + 1] in ("{", "["):
        return _json(source, at)
    return _python(source, at)


def _python(source: _Text, at: int) -> Read:
    read = read_python_calls(source.text, at, source.known, source.reader)
    if read is None:
        return None
    calls = [source.known.call(name, arguments) for name, arguments in read[0]]
    return [call for call in calls if call], read[1]


def _sectioned(source: _Text, match: re.Match[str]) -> Read:
    """begin mark, name, separator mark, arguments. The name may stand behind the type: function<sep>name."""
    text = source.text
    separator = _HEADER_END.search(text, match.end(), match.end() + 300)
    if separator is None:
        return None
    header = text[match.end() : separator.start()].strip()
    at = source.reader.skip_blank(separator.end())
    if header == "function" and source.known.resolve(header) is None:
        name = _NAME.match(text, at)
        if name is None:
            return None
        header, at = name.group(), source.reader.skip_blank(name.end())
    if fence := _FENCE.match(text, at):
        at = fence.end()
    if text.startswith("{", at):
        return _arguments(source, header, at)
    return _one(source, header, {}, at) if text.startswith("<", at) else None


def _harmony(source: _Text, match: re.Match[str]) -> Read:
    """to=functions.name … <|message|>{…}"""
    name, at = match.group("recipient"), source.reader.skip_blank(match.end())
    if source.text.startswith("{", at):
        return _arguments(source, name, at)
    return _one(source, name, {}, at) if at >= len(source.text) or source.text[at] == "<" else None


def _gemma(source: _Text, match: re.Match[str]) -> Read:
    """call:name{key:value, …}: bare keys, strings between marks of their own, or bare text."""
    text, name = source.text, match.group("gemma")
    start = match.end() - 1
    end = _CALL_END.search(text, start)
    body = text[start : end.start() if end else len(text)].rstrip()
    stop = end.end() if end else len(text)
    quoted = _QUOTED.sub(lambda part: json.dumps(part.group(2), ensure_ascii=False), body)
    reader = Reader(quoted)
    found = reader.read(0)
    if isinstance(found, Found) and found.closed and found.conflict is None:
        if "\n" in quoted[found.end :] or not end:
            stop = start + len(body) if quoted != body else start + found.end
        return _one(source, name, found.value, stop)
    known = source.known.resolve(name)
    if known is None:
        raise source.known.unknown(name)
    close = body.rfind("}")
    if close < 0:
        raise ValueError(f"the call of {name!r} is not complete. {FORMAT}")
    return _one(source, name, _bare_pairs(body[1:close], list(source.known.fields(known))), stop)


def _bare_pairs(body: str, fields: list[str]) -> dict[str, Any]:
    """key:value, … with bare values: only a declared parameter's name begins a new pair."""
    if not fields:
        raise ValueError(f"the tool call's arguments can't be read. {FORMAT}")
    key = re.compile(rf"(?:\A|,)\s{{0,20}}[\"']?({'|'.join(map(re.escape, fields))})[\"']?\s{{0,20}}:")
    marks = list(key.finditer(body))
    if not marks or body[: marks[0].start()].strip():
        raise ValueError(f"the tool call's arguments can't be read. {FORMAT}")
    ends = [mark.start() for mark in marks[1:]] + [len(body)]
    values = {mark.group(1): body[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}
    if len(values) < len(marks):
        raise ValueError(f"a parameter of the tool call comes twice. {FORMAT}")
    return {name: _unquoted(value) for name, value in values.items()}


def _qwen_agent(source: _Text, match: re.Match[str]) -> Read:
    """✿FUNCTION✿: name ✿ARGS✿: {…}"""
    name = _NAME.match(source.text, source.reader.skip_blank(match.end()))
    arguments = _ARGS_LINE.match(source.text, name.end()) if name else None
    return _arguments(source, name.group(), arguments.end()) if name and arguments else None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`" else text


def _trimmed(text: str) -> str:
    """A value without the one line break that templates put before and after it."""
    return text.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")


def _typed(text: str) -> Any:
    """A value whose type nobody declared: JSON where it is JSON, else the text."""
    try:
        return parse_value(text)
    except ValueError:
        return text


_FORMS: tuple[tuple[str, str, str, Callable[[_Text, re.Match[str]], Read]], ...] = (
    # name, a word that every text with the mark holds (in lower case), the mark, its reader
    (
        "function",
        "<function",
        r"<function(?:=|\s{1,4}name=)[\"']?(?P<function>[\w.:-]{1,100})[\"']?\s{0,4}>",
        _function,
    ),
    (
        "invoke",
        "invoke",
        r"<[^<>\s/=\"]{0,20}invoke\s{1,4}name=[\"'](?P<invoke>[\w.:/-]{1,100})[\"'][^>]{0,100}>",
        _function,
    ),
    (
        "attribute",
        "=",
        r"<(?:tool_call|tool_use|tool|function_call|call)\s{1,4}(?:name|tool)=[\"'](?P<attribute>[\w.:/-]{1,100})[\"'][^>]{0,100}>",
        _attributed,
    ),
    ("mistral", "[tool_calls]", r"(?P<mistral>\[TOOL_CALLS\])", _mistral),
    ("sectioned", "begin", r"(?P<sectioned><｜tool▁call▁begin｜>|<\|tool_call_begin\|>)", _sectioned),
    (
        "recipient",
        "<|message|>",
        r"\bto=(?P<recipient>[\w.-]{1,100})\s{0,5}(?:<\|channel\|>\w{1,20})?\s{0,5}(?:<\|constrain\|>)?\s{0,5}\w{0,10}\s{0,5}<\|message\|>",
        _harmony,
    ),
    ("gemma", "call:", r"\bcall:(?P<gemma>[\w.-]{1,100})\s{0,4}\{", _gemma),
    ("tag", "<|", r"(?P<tag><\|python_tag\|>|<\|tool_call_start\|>|<\|plugin\|>|<\|START_ACTION\|>)", _body_at_mark),
    ("code", "tool_code", r"(?P<code>```tool_code\b|<tool_code>)", _body_at_mark),
    ("tools", "functools", r"(?P<tools>\bfunctools(?=\[))", _body_at_mark),
    ("calling", "[calling", r"(?P<calling>\[Calling\stool:)", _body_at_mark),
    ("qwen", "✿function✿", r"(?P<qwen>✿FUNCTION✿:)", _qwen_agent),
    (
        "container",
        "call",
        r"(?P<container><\|?(?:[\w.-]{1,30}:)?(?i:tool_?calls?|function_?calls?|start_function_call)\|?>)",
        _container,
    ),
    ("use", "tool_", r"(?P<use><(?:[\w.-]{1,30}:)?(?:tool_use|tool_request)>)", _container),
)
_READERS = {name: reader for name, _, _, reader in _FORMS}
_BODY = re.compile(r"\s{0,20}(?:[{\[<✿]|[\w.:-]{1,100}\s{0,5}[\[{(<])|(?<=\{)")


@lru_cache(maxsize=64)
def _marks(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(mark for name, _, mark, _ in _FORMS if name in names))


def _marks_in(text: str) -> re.Pattern[str] | None:
    """The marks that the text may hold, as one pattern; None where it holds none."""
    lowered = text.lower()
    names = tuple(name for name, word, _, _ in _FORMS if word in lowered)
    return _marks(names) if names else None
