"""What is a JSON value in a model's text, what is none, and what a schema makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from agent.extract import extract_json, parse_tool_arguments

INTEGER = {"type": "integer"}
TEXT = {"type": "string"}


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


CASES: list[tuple[str, Any, str, Any]] = [
    ('{"a": 1', None, "stop", {"a": 1}),
    ('{"a": 1,', None, "stop", None),
    ('{"a": "x', None, "stop", None),
    ('{"a":', None, "stop", None),
    ('{"a": [1, 2}', None, "stop", {"a": [1, 2]}),
    ('[{"a": 1]', None, "stop", [{"a": 1}]),
    ('```json\n{"a": [1, 2]\n```', None, "stop", {"a": [1, 2]}),
    ('{"a": 1}\n```', None, "stop", {"a": 1}),
    ('```json\n{"a": "```x```"}\n```', None, "stop", {"a": "```x```"}),
    ("```\n42\n```", None, "stop", 42),
    ('```json\n"x"\n```', None, "stop", "x"),
    ("42", None, "stop", 42),
    ("true", None, "stop", True),
    ('"hi"', None, "stop", "hi"),
    ("hello", None, "stop", None),
    ("", None, "stop", None),
    ("NaN", None, "stop", None),
    ('{"a": NaN}', None, "stop", None),
    ('{"a": 1e999}', None, "stop", None),
    ('~~~json\n{"a": 1}\n~~~', None, "stop", {"a": 1}),
    ('```json {"a": 1}```', None, "stop", {"a": 1}),
    ('Answer: `{"a": 1}`', None, "stop", {"a": 1}),
    ('{"a": 1} // done', None, "stop", {"a": 1}),
    ('/* c */ {"a": 1}', None, "stop", {"a": 1}),
    ('json\n{"a": 1}', None, "stop", {"a": 1}),
    ('{"a": 01234}', None, "stop", None),
    ('{"a": +1, "b": .5, "c": 5.}', None, "stop", {"a": 1, "b": 0.5, "c": 5.0}),
    ('{"a": undefined}', None, "stop", None),
    ('{"a": 2+3}', None, "stop", None),
    ('{"a": __import__("os")}', None, "stop", None),
    ('{"a": ("x", "y"), "b": (1,)}', None, "stop", {"a": ["x", "y"], "b": [1]}),
    ('{"a": """multi\n"quoted" line"""}', None, "stop", {"a": 'multi\n"quoted" line'}),
    ("{'a': 'it\\'s', 'b': 'don't'}", None, "stop", {"a": "it's", "b": "don't"}),
    ("{'a': 'x', 'b': ['p', 'q'], 'c': {'d': None}}", None, "stop", {"a": "x", "b": ["p", "q"], "c": {"d": None}}),
    ('{"a": "he said "hi" to me", "b": 2}', None, "stop", {"a": 'he said "hi" to me', "b": 2}),
    ('{"a": "he said "hi", "b": 2}', None, "stop", None),
    ('{"a": ["say "hi", "bye" now", "x"]}', None, "stop", {"a": ['say "hi", "bye" now', "x"]}),
    ('{"text": "a\\d+ \\w"}', None, "stop", {"text": "a\\d+ \\w"}),
    ('{"f": "\\\\frac{1}{2} \\alpha"}', None, "stop", {"f": "\\frac{1}{2} \\alpha"}),
    ('{"f": "\\frac{1}{2} \\alpha \\nu"}', None, "stop", {"f": "\\frac{1}{2} \\alpha \\nu"}),
    ('{"p": "C:\\Users\\temp\\"}', None, "stop", None),
    ('{"p": "C:\\dir\\file.txt", "q": "x\\ny"}', None, "stop", {"p": "C:\\dir\\file.txt", "q": "x\ny"}),
    ('{"e": "\\ud83d\\ude00", }', None, "stop", {"e": "😀"}),
    ('{"a": 1}{"b": 2}', fields(b=INTEGER), "stop", {"b": 2}),
    ('{"a": 1}{"b": 2}', None, "stop", None),
    (
        '{"type":"tool_call","tool_name":"x","tool_args":{}}\n{"type":"final_answer","answer":"y"}',
        None,
        "stop",
        {"type": "tool_call", "tool_name": "x", "tool_args": {}},
    ),
    ("See [1] and [2].", None, "stop", None),
    ("See [1].", None, "stop", [1]),
    ("[1, 2]", None, "stop", [1, 2]),
    ('See [1]: {"a": 2}', None, "stop", {"a": 2}),
    ("The result: [1, 2, 3]", {"type": "array", "items": INTEGER}, "stop", [1, 2, 3]),
    ('{"a": 1, "b": oops, "c": {"x": 1}}', None, "stop", None),
    ('Format: {"score": <n>}\nAnswer: {"score": 7}', None, "stop", {"score": 7}),
    ('{"a": "text {"x": 1} end', None, "stop", None),
    ('{"a": 1, "a": 1}', None, "stop", {"a": 1}),
    ('{"a": 1, "a": 2}', None, "stop", None),
    ('{"a": 1, "a": true}', None, "stop", None),
    ('{"a": {"b": 1, "b": 2}}', None, "stop", None),
    ('{"result": {"a": 1}}', fields(a=INTEGER), "stop", {"a": 1}),
    ('{"name": "fn", "arguments": {"a": "1"}}', fields(a=INTEGER), "stop", {"a": 1}),
    ('{"a": "x"}', fields(a=INTEGER), "stop", None),
    ('{"a": 1.0}', fields(a=INTEGER), "stop", {"a": 1}),
    ('{"a": "1.5"}', fields(a={"type": "number"}), "stop", {"a": 1.5}),
    ('{"a": "TRUE"}', fields(a={"type": "boolean"}), "stop", {"a": True}),
    ('{"a": "yes"}', fields(a={"type": "boolean"}), "stop", None),
    ('{"a": 5}', fields(a=TEXT), "stop", None),
    ('{"a": null}', {"type": "object", "properties": {"a": INTEGER}}, "stop", {}),
    ('{"a": "null"}', fields(a={"anyOf": [INTEGER, {"type": "null"}]}), "stop", {"a": None}),
    ('{"a": "5"}', fields(a={"anyOf": [INTEGER, {"type": "null"}]}), "stop", {"a": 5}),
    ('{"a": "5"}', fields(a={"anyOf": [INTEGER, TEXT]}), "stop", {"a": "5"}),
    ('{"a": "2"}', fields(a={"enum": [1, 2]}), "stop", {"a": 2}),
    ('{"a": "{\'x\': 1}"}', fields(a={"type": "object"}), "stop", {"a": {"x": 1}}),
    (
        '{"a": {"b": "1"}}',
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/B"}}, "$defs": {"B": fields(b=INTEGER)}},
        "stop",
        {"a": {"b": 1}},
    ),
    ('{"a": 1}', None, "length", {"a": 1}),
    ('{"a": 1', None, "length", None),
    ("12", None, "length", None),
    ('x {"a": 1} y', None, "length", None),
    ("{“a”: “x, “quoted” y”}", None, "stop", {"a": "x, “quoted” y"}),
    ('｛"a"：1｝', None, "stop", {"a": 1}),
    ('{"a": «x», «b»: 1}', None, "stop", {"a": "x", "b": 1}),
    ("{`a`: `x`}", None, "stop", {"a": "x"}),
    ('"{\\"a\\": 1}"', None, "stop", {"a": 1}),
    ('"\\"{\\\\\\"a\\\\\\": 1}\\""', None, "stop", {"a": 1}),
    ('{\\"a\\": 1}', None, "stop", {"a": 1}),
    ('{"a": 1,\n"b": 2\n"c": 3}', None, "stop", {"a": 1, "b": 2, "c": 3}),
    ("[1 2 3]", None, "stop", [1, 2, 3]),
    ('[{"a":1} {"a":2}]', None, "stop", [{"a": 1}, {"a": 2}]),
    ('{"a" "b"}', None, "stop", None),
    ('{"a": 1,, "b": 2}', None, "stop", None),
    ('{"a": [1,,2]}', None, "stop", None),
    ('{"a": 1} }', None, "stop", {"a": 1}),
    ('{"a": [1, 2]]}', None, "stop", None),
    ('<think>x</think>```json\n{"a": 1}\n```', None, "stop", {"a": 1}),
    ('Here: {"html": "<think>a</think>"} ok', None, "stop", {"html": "<think>a</think>"}),
    ('{"a": 1}\n{"a": 1}', None, "stop", {"a": 1}),
    ('```json\n{"a": 1}\n```\n```json\n{"b": 2}\n```', fields(a=INTEGER), "stop", {"a": 1}),
    ('```json\n{"a": 1}\n{"a": 2}\n```', fields(a=INTEGER), "stop", None),
    ('```yaml\na: 1\n```\n{"a": 1}', None, "stop", {"a": 1}),
    ("a: 1", None, "stop", None),
    ('<answer>{"a": 1}</answer>', None, "stop", {"a": 1}),
    ('const x = {"a": 1};', None, "stop", {"a": 1}),
    ("[{'a': 1}, {'a': 2}]", None, "stop", [{"a": 1}, {"a": 2}]),
    ('{"a": True, "b": None}', None, "stop", {"a": True, "b": None}),
    ('{"a": "x" + "y"}', None, "stop", None),
    ('{"a": 1_000}', None, "stop", None),
    ('{"a": 1,000}', None, "stop", None),
    ('{"a": 12kg}', None, "stop", None),
    ('{"a": 0x1F}', None, "stop", None),
    ('{"a": -Infinity}', None, "stop", None),
    ('{"a": "x"; "b": 1}', None, "stop", None),
    ('{"a": ...}', None, "stop", None),
    ('{"a": [1, ...]}', None, "stop", None),
    ('{"a": <string>}', None, "stop", None),
    ('{"a": "x", ...}', None, "stop", None),
    ('{"a":"line1\\\nline2"}', None, "stop", {"a": "line1\\\nline2"}),
    ("{'q': 'say \"hi\"'}", None, "stop", {"q": 'say "hi"'}),
    ('{"path": "C:\\\\x", "b": \'y\'}', None, "stop", {"path": "C:\\x", "b": "y"}),
]


@pytest.mark.parametrize(("text", "schema", "finish", "expected"), CASES)
def test_the_value_that_was_meant(text: str, schema: Any, finish: str, expected: Any) -> None:
    assert json.dumps(extract_json(text, schema, finish)) == json.dumps(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"type":"final_answer","answer":"Hello wor', {"type": "final_answer", "answer": "Hello wor"}),
        ('{"a": [1, 2, {"b": "x', {"a": [1, 2, {"b": "x"}]}),
        ('{"a": "x", "n": 12', {"a": "x"}),
        ('{"a": "x", "t": tr', {"a": "x"}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('```json\n{"a": "x', {"a": "x"}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x\\u00e', {"a": "x"}),
        ("<think>abc", None),
        ("only words", None),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_a_cut_value_as_far_as_it_goes(text: str, expected: Any) -> None:
    assert extract_json(text, None, "length", allow_partial=True) == expected
    if expected != {"a": 1}:
        assert extract_json(text, None, "length") is None


def test_partial_data_needs_no_required_fields() -> None:
    schema = fields(a=INTEGER, b=TEXT)
    assert extract_json('{"a": "1", "b', schema, "length", allow_partial=True) == {"a": 1}


def test_a_pydantic_model_is_a_schema() -> None:
    class Inner(BaseModel):
        n: int

    class Outer(BaseModel):
        inner: Inner
        note: str | None = None

    assert extract_json('{"inner": {"n": "7"}}', Outer) == {"inner": {"n": 7}}
    assert extract_json('{"inner": {"n": "x"}}', Outer) is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"a": "7"}', {"a": 7}),
        ({"a": "7"}, {"a": 7}),
        ("{'a': 7,}", {"a": 7}),
        ('{}{"a": 7}', {"a": 7}),
        ('{"a": 7}<|call|>', {"a": 7}),
        ('{"arguments": {"a": 7}}', {"a": 7}),
        ('```json\n{"a": 7}\n```', {"a": 7}),
    ],
)
def test_tool_arguments(raw: Any, expected: Any) -> None:
    assert parse_tool_arguments(raw, fields(a=INTEGER), "tool_calls") == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"a": "x"}', "a: 'x' is not of type 'integer'"),
        ("{}", "'a' is a required property"),
        ("", "'a' is a required property"),
        (None, "'a' is a required property"),
        ('{"a": 7', "not valid JSON"),
        ('{"a": 7, "a": 8}', "twice"),
        ('{"a": 7}{"a": 8}', "several"),
        ("[7]", "a list"),
        ("a = 7", "not valid JSON"),
        ('{"a":' * 5000, "not valid JSON"),
    ],
)
def test_wrong_tool_arguments_are_told(raw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tool_arguments(raw, fields(a=INTEGER))


def test_cut_arguments_never_run() -> None:
    with pytest.raises(ValueError, match="cut"):
        parse_tool_arguments('{"a": 7}', fields(a=INTEGER), "length")
