"""What holds for every text: nothing raises, pure JSON is JSON, what was embedded comes back, time is linear."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.extract import extract_json, parse_tool_arguments, parse_tool_text, strip_reasoning
from registry.schema import coerce, problems

TOOLS = [
    {
        "name": "find",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]
PIECES = [
    *"{}[]()\"'`“”‘’:,：，｛｝<>/\\#\n\t =",
    "```",
    "```json\n",
    "~~~",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<function=find>",
    "</function>",
    "<parameter=query>",
    "</parameter>",
    '<invoke name="find">',
    "</invoke>",
    "call:find{",
    "<|python_tag|>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<|tool_call_begin|>",
    "find",
    "now",
    "nope",
    "<|tool_call_argument_begin|>",
    "to=functions.find<|message|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "\nAction: ",
    "\nAction Input: ",
    "\nObservation: ",
    "\nFinal Answer: ",
    "Thought: ",
    "finish[",
    '{"name": "find", ',
    '"arguments": ',
    '{"query": "x"}',
    '"type": "tool_call"',
    '"type": "final_answer"',
    '"answer": ',
    "find(query=",
    "null",
    "True",
    "12",
    "1e999",
    "0x1",
    "\\u12",
    "\\ud83d",
    "\\n",
    "//",
    "/*",
    "*/",
    "\ufeff",
    "\u200b",
    "\ud800",
    "a",
    "",
]
TEXTS = st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
NUMBERS = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)
CONTAINERS = VALUES.filter(lambda value: isinstance(value, dict | list) and bool(value))
PROSE = st.text("abcdefgh XYZ.,;:!?\n", max_size=60)
REASONS = st.sampled_from([None, "stop", "length", "tool_calls"])
SCHEMAS = st.sampled_from(
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["integer", "boolean", "null"]}}]},
        {"$ref": "#/$defs/T", "$defs": {"T": {"type": ["array", "number", "object"], "items": {"$ref": "#/$defs/T"}}}},
        {"type": "integer"},
        {},
    ]
)


def same(left: Any, right: Any) -> bool:
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@settings(deadline=None, max_examples=200)
@given(TEXTS, SCHEMAS | st.none(), REASONS, st.booleans())
def test_no_text_makes_extract_json_raise_and_what_it_gives_is_json(
    text: str, schema: Any, reason: str | None, partial: bool
) -> None:
    value = extract_json(text, schema, reason, partial)
    json.dumps(value, allow_nan=False)
    if value is not None and schema and not partial:
        assert problems(value, schema) == []


@settings(deadline=None, max_examples=200)
@given(TEXTS, REASONS)
def test_no_text_makes_the_readers_of_calls_fail_otherwise_than_by_value_error(text: str, reason: str | None) -> None:
    with contextlib.suppress(ValueError):
        turn = parse_tool_text(text, TOOLS, reason)
        assert turn.keys() in ({"final"}, {"tool_calls"})
        if "tool_calls" in turn:
            assert reason != "length"
            assert all(call["name"] in ("find", "now") for call in turn["tool_calls"])
    with contextlib.suppress(ValueError):
        assert isinstance(parse_tool_arguments(text, TOOLS[0]["parameters"], reason), dict)
    strip_reasoning(text)


@settings(deadline=None, max_examples=200)
@given(VALUES, st.booleans(), st.sampled_from([None, 1, 4]))
def test_pure_json_is_what_json_loads_says(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    if not isinstance(value, str):
        assert same(extract_json(text), json.loads(text))


@settings(deadline=None, max_examples=200)
@given(CONTAINERS, PROSE, PROSE)
def test_a_value_in_prose_comes_back(value: Any, before: str, behind: str) -> None:
    assert same(extract_json(f"{before}\n{json.dumps(value)}\n{behind}"), value)


@settings(deadline=None, max_examples=200)
@given(VALUES.filter(lambda value: not isinstance(value, str)), PROSE, PROSE, st.sampled_from(["", "json", "JSON"]))
def test_a_value_in_a_fence_comes_back(value: Any, before: str, behind: str, label: str) -> None:
    assert same(extract_json(f"{before}\n```{label}\n{json.dumps(value, indent=1)}\n```\n{behind}"), value)


@settings(deadline=None, max_examples=200)
@given(CONTAINERS)
def test_a_python_literal_is_the_value(value: Any) -> None:
    """repr() escapes what can't be printed in Python's own way: only printable texts are compared."""
    text = repr(value)
    if "\\x" not in text and "\\U" not in text and '"""' not in text and "'''" not in text:
        read = extract_json(text)
        assert read is None or same(read, value)


@settings(deadline=None, max_examples=200)
@given(CONTAINERS, st.data())
def test_no_part_of_a_cut_value_passes_for_a_value(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    assert extract_json(cut, None, "length") is None
    with pytest.raises(ValueError, match=r"\w"):
        parse_tool_arguments(cut, {"type": "object", "required": ["_"]})


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.text("abcxyz", min_size=1, max_size=6), VALUES, max_size=4))
def test_a_call_comes_back_from_every_markup_that_holds_json(arguments: dict[str, Any]) -> None:
    body = json.dumps(arguments)
    call = json.dumps({"name": "now", "arguments": arguments})
    for text in (
        f"<tool_call>\n{call}\n</tool_call>",
        f"[TOOL_CALLS][{call}]",
        f"[TOOL_CALLS]now[ARGS]{body}",
        f"<function=now>{body}</function>",
        f"<|python_tag|>{call}",
        f"<｜tool▁call▁begin｜>now<｜tool▁sep｜>{body}<｜tool▁call▁end｜>",
        f"<|tool_call_begin|>functions.now:3<|tool_call_argument_begin|>{body}<|tool_call_end|>",
        f"<|channel|>commentary to=functions.now <|constrain|>json<|message|>{body}<|call|>",
        f"Thought: so\nAction: now\nAction Input: {body}\nObservation: x",
        f"```json\n{call}\n```",
        f"I look.\n{call}",
    ):
        read = parse_tool_text(text, TOOLS)
        assert same(read, {"tool_calls": [{"name": "now", "arguments": arguments}]}), text


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=40))
def test_nothing_is_evaluated(expression: str) -> None:
    marker = "__import__('sys').exit(1)"
    assert extract_json(f'{{"a": {marker}}}') is None
    assert extract_json('{"a": 2 ** 9}') is None
    assert extract_json(f'{{"a": f({json.dumps(expression)})}}') is None


@settings(deadline=None, max_examples=300)
@given(VALUES, SCHEMAS)
def test_coercion_never_changes_a_valid_value_and_is_done_after_one_pass(value: Any, schema: dict[str, Any]) -> None:
    fitted, wrong = coerce(value, schema)
    if not problems(value, schema):
        assert fitted == value
        assert not wrong
    if not wrong:
        assert problems(fitted, schema) == []
        assert same(coerce(fitted, schema)[0], fitted)


HOSTILE = [
    *"{[\"\\'`",
    '{"a":',
    '{"',
    '["',
    "[1,",
    "[{",
    "```",
    "```json\n",
    "<think>",
    "[THINK]",
    "<tool_call>",
    "\n{",
    '{"a":"',
    "{/*",
    "{//",
    "“",
    '<tool_call>{"name":"',
    "<function=find>",
    "<parameter=query>",
    "[TOOL_CALLS]",
    "call:find{",
    "call:find{query:",
    "to=functions.find",
    "\nAction: find\nAction Input: {",
    "Action: find[",
    '{"a":1}',
    '{"a":1,',
    "<a>",
    "find(query=",
    "{'a':'b',",
]


def seconds(run: Callable[[str], Any], text: str, short: float = 0.0) -> float:
    """The best of three (what the machine does beside it only ever adds), or the first that is short."""
    best = float("inf")
    for _ in range(3):
        if best < short:
            break
        started = time.process_time()  # of this process alone: others may be at work
        with contextlib.suppress(ValueError):
            run(text)
        best = min(best, time.process_time() - started)
    return best


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("run", [extract_json, lambda text: parse_tool_text(text, TOOLS)], ids=["json", "text"])
@pytest.mark.parametrize("size", [200_000, pytest.param(1_000_000, marks=pytest.mark.heavy)])
def test_time_is_linear(run: Callable[[str], Any], unit: str, size: int) -> None:
    """1 MB within 0.5 s on an idle machine, five times that here; and no faster growth than the text's own."""
    text = unit * (size // len(unit))
    allowed = 2.5 * size / 1_000_000
    short = allowed / 10  # a shorter time says nothing about growth
    whole = seconds(run, text, short)
    assert whole < allowed
    if whole > short:
        assert whole < 8 * seconds(run, text[: size // 4], short) + short


@pytest.mark.parametrize("unit", ["[", '{"a":', "(", "{'a':[", '[{"b":'])
def test_deep_nesting_is_no_value_and_no_recursion_error(unit: str) -> None:
    text = unit * 100_000
    assert extract_json(text) is None
    assert extract_json("[" * 5_000 + "]" * 5_000) is None
    with contextlib.suppress(ValueError):
        assert "final" in parse_tool_text(text, TOOLS)
