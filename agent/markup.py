"""Tool calls in the markup of a chat template that leaked into the text: one table of marks and their readers."""

# ruff: noqa: RUF001 - curly and full-width marks are meant

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .actions import FORMAT, KnownTools, TextCall
from .json_text import Found
from .lenient import Reader
from .markup_bodies import (
    CHILD,
    Read,
    Source,
    children_body,
    elements,
    json_body,
    named_body,
    object_body,
    one_call,
    python_body,
)

MAX_MARKS = 1_000

_NAME = re.compile(r"[\w.:-]{1,100}")
_HEADER_END = re.compile(r"<｜tool▁sep｜>|<\|tool_call_argument_begin\|>|<\|tool_sep\|>")
_FENCE = re.compile(r"```[a-z_]{0,12}\s{0,10}")
_QUOTED = re.compile(r"(<\|\"\|>|<escape>)(.*?)\1", re.DOTALL)
_CALL_END = re.compile(r"<tool_call\|>|<end_function_call>|<\|tool_call_end\|>|(?=\bcall:[\w.-]{1,100}[{(])")
_ID_AND_ARGS = re.compile(r"(?:\[CALL_ID\][\w-]{1,100})?\s{0,10}(?:\[ARGS\])?\s{0,10}(?=\{)")
_OPEN_ARGUMENT = re.compile(r"<\|open\|>argument\s+key=\"([^\"<>]{1,100})\"[^<>]{0,50}<\|sep\|>")
_ARGS_LINE = re.compile(r"\s{0,10}✿ARGS✿:\s{0,10}")


def read_markup(text: str, known: KnownTools, reader: Reader, cut: bool = False) -> list[tuple[int, TextCall]]:
    """All calls in markup, in order, each with the place of its mark.

    Raises ValueError for a call that can't be read or names no tool. `cut`: the text ends at the output limit, so that
    a mark with something behind it is a cut call.
    """
    calls: list[tuple[int, TextCall]] = []
    source = Source(text, known, reader)
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


def _container(source: Source, match: re.Match[str]) -> Read:
    """<tool_call> and its relatives: JSON, a name with a body, or child elements."""
    at = source.reader.skip_blank(match.end())
    if fence := _FENCE.match(source.text, at):
        at = fence.end()
    if source.text[at : at + 1] in ("{", "["):
        return json_body(source, at)
    if source.text.startswith("call:", at):
        return None  # a mark of its own
    if child := CHILD.match(source.text, at):
        return children_body(source, child)
    name = _NAME.match(source.text, at)
    return named_body(source, name.group(), name.end()) if name else None


def _attributed(source: Source, match: re.Match[str]) -> Read:
    """<tool_call name="x">: the arguments stand inside."""
    return named_body(source, match.group("attribute"), match.end())


def _function(source: Source, match: re.Match[str]) -> Read:
    """<function=name> or <invoke name="…">: parameters, an object, or nothing before the closing tag."""
    name, text = match.group(match.lastgroup or 0), source.text
    read = named_body(source, name, match.end())
    if read is None:
        at = source.reader.skip_blank(match.end())
        if text.startswith("</", at) or (source.known.resolve(name) and (at >= len(text) or text[at] == "<")):
            return one_call(source, name, {}, at)
        if source.known.resolve(name):
            raise ValueError(f"the arguments of {name!r} can't be read. {FORMAT}")
    return read


def _mistral(source: Source, match: re.Match[str]) -> Read:
    """[TOOL_CALLS] with a JSON list, or name[ARGS]{…}."""
    at = source.reader.skip_blank(match.end())
    if source.text[at : at + 1] in ("[", "{"):
        return json_body(source, at)
    name = _NAME.match(source.text, at)
    arguments = _ID_AND_ARGS.match(source.text, name.end()) if name else None
    return object_body(source, name.group(), arguments.end()) if name and arguments else None


def _body_at_mark(source: Source, match: re.Match[str]) -> Read:
    """A mark in front of JSON or of calls in Python's form."""
    at = source.reader.skip_blank(match.end())
    if source.text[at : at + 1] in ("{", "["):
        return json_body(source, at)
    return python_body(source, at)


def _sectioned(source: Source, match: re.Match[str]) -> Read:
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
        return object_body(source, header, at)
    return one_call(source, header, {}, at) if text.startswith("<", at) else None


def _harmony(source: Source, match: re.Match[str]) -> Read:
    """to=functions.name … <|message|>{…}"""
    name, at = match.group("recipient"), source.reader.skip_blank(match.end())
    if source.text.startswith("{", at):
        return object_body(source, name, at)
    return one_call(source, name, {}, at) if at >= len(source.text) or source.text[at] == "<" else None


def _gemma(source: Source, match: re.Match[str]) -> Read:
    """call:name{key:value, …}: bare keys, strings between marks of their own, or bare text."""
    text, name = source.text, match.group("gemma")
    start = match.end() - 1
    if text[start] == "(" and (read := python_body(source, match.start("gemma"))):
        return read
    end = _CALL_END.search(text, start)
    body = text[start : end.start() if end else len(text)].rstrip()
    stop = end.end() if end else len(text)
    if body[0] == "(":
        body = "{" + body[1:].removesuffix(")") + "}"
    quoted = _QUOTED.sub(lambda part: json.dumps(part.group(2), ensure_ascii=False), body)
    reader = Reader(quoted)
    found = reader.read(0)
    if isinstance(found, Found) and found.closed and found.conflict is None:
        if "\n" in quoted[found.end :] or not end:
            stop = start + len(body) if quoted != body else start + found.end
        return one_call(source, name, found.value, stop)
    known = source.known.resolve(name)
    if known is None:
        raise source.known.unknown(name)
    close = body.rfind("}")
    if close < 0:
        raise ValueError(f"the call of {name!r} is not complete. {FORMAT}")
    return one_call(source, name, _bare_pairs(body[1:close], list(source.known.fields(known))), stop)


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


def _tool_element(source: Source, match: re.Match[str]) -> Read:
    """<tool>name</tool><tool_input>…</tool_input>"""
    child = CHILD.match(source.text, match.start())
    return children_body(source, child) if child and source.known.resolve(child.group(2)) else None


def _open_close(source: Source, match: re.Match[str]) -> Read:
    """<|open|>call tool="name"<|sep|><|open|>argument key="k"<|sep|>value<|close|>argument<|sep|>"""
    values: dict[str, Any] = {}
    at = source.reader.skip_blank(match.end())
    while argument := _OPEN_ARGUMENT.match(source.text, at):
        end = source.text.find("<|close|>argument", argument.end())
        if end < 0:
            raise ValueError(f"the argument {argument.group(1)!r} is not complete. {FORMAT}")
        values[argument.group(1)] = source.text[argument.end() : end]
        at = source.reader.skip_blank(end + len("<|close|>argument"))
        at = source.reader.skip_blank(at + len("<|sep|>")) if source.text.startswith("<|sep|>", at) else at
    return one_call(source, match.group("open"), values, at)


def read_tool_elements(text: str, known: KnownTools, reader: Reader) -> list[TextCall]:
    """Calls whose element is named after the tool: <name><parameter>value</parameter></name>."""
    source = Source(text, known, reader)
    calls: list[tuple[int, TextCall]] = []
    for name in known.schemas:
        start, fields = text.find(f"<{name}>"), known.fields(name)
        while start >= 0 and len(calls) < MAX_MARKS:
            end = text.find(f"</{name}>", start)
            at = reader.skip_blank(start + len(name) + 2)
            if end < 0:
                break
            values, stop = elements(source, at) if text.startswith("<", at) and at < end else ({}, at)
            if stop == end and values.keys() <= fields.keys() and (values or not fields):
                calls.append((start, TextCall(name, known.coerced(name, values))))
            start = text.find(f"<{name}>", end)
    return [call for _, call in sorted(calls, key=lambda entry: entry[0])]


def _qwen_agent(source: Source, match: re.Match[str]) -> Read:
    """✿FUNCTION✿: name ✿ARGS✿: {…}"""
    name = _NAME.match(source.text, source.reader.skip_blank(match.end()))
    arguments = _ARGS_LINE.match(source.text, name.end()) if name else None
    return object_body(source, name.group(), arguments.end()) if name and arguments else None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`" else text


_FORMS: tuple[tuple[str, str, str, Callable[[Source, re.Match[str]], Read]], ...] = (
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
    ("gemma", "call:", r"\bcall:(?P<gemma>[\w.-]{1,100})\s{0,4}[{(]", _gemma),
    ("tag", "<|", r"(?P<tag><\|python_tag\|>|<\|tool_call_start\|>|<\|plugin\|>|<\|START_ACTION\|>)", _body_at_mark),
    ("code", "tool_code", r"(?P<code>```tool_code\b|<tool_code>)", _body_at_mark),
    ("tools", "functools", r"(?P<tools>\bfunctools(?=\[))", _body_at_mark),
    ("calling", "[calling", r"(?P<calling>\[Calling\stool:)", _body_at_mark),
    ("tool", "<tool>", r"(?P<tool><tool>)", _tool_element),
    (
        "open",
        "<|open|>",
        r"<\|open\|>(?:tools)?call\s+tool=\"(?P<open>[\w.:/-]{1,100})\"[^<>]{0,50}<\|sep\|>",
        _open_close,
    ),
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
