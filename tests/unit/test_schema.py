"""Coercion to a JSON Schema, and how problems are told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from registry.schema import MAX_PROBLEM_CHARS, coerce, format_problems

NULLABLE = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def one(schema: Any, *, needed: bool = True) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"] if needed else []}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("7", {"type": "integer"}, 7),
        (" -7 ", {"type": "integer"}, -7),
        ("7.0", {"type": "integer"}, 7),
        (7.0, {"type": "integer"}, 7),
        (7.0, {"type": "number"}, 7.0),
        ("1.5", {"type": "number"}, 1.5),
        ("1e3", {"type": "number"}, 1000.0),
        ("True", {"type": "boolean"}, True),
        ("null", {"type": "null"}, None),
        ('[1, "2"]', {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("7", {"type": ["string", "integer"]}, "7"),
        ("7", {"type": ["integer", "null"]}, 7),
        ("7", NULLABLE, 7),
        (None, NULLABLE, None),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["2", 2]}, "2"),
        ("true", {"type": "string"}, "true"),
        ("[1]", {"type": "string"}, "[1]"),
        ({"a": "1"}, {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}),
        ({"a": "1"}, {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}]}, {"a": 1}),
        (["1", "x"], {"type": "array", "prefixItems": [{"type": "integer"}]}, [1, "x"]),
        (
            {"n": {"n": {"n": "1"}}},
            {
                "$ref": "#/$defs/T",
                "$defs": {"T": {"type": ["object", "integer"], "properties": {"n": {"$ref": "#/$defs/T"}}}},
            },
            {"n": {"n": {"n": 1}}},
        ),
    ],
)
def test_coercion(value: Any, schema: dict[str, Any], expected: Any) -> None:
    fitted, problems = coerce(value, schema)
    assert (json.dumps(fitted), problems) == (json.dumps(expected), [])


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        ({"x": "ten"}, one({"type": "integer"}), "x: 'ten' is not of type 'integer'"),
        ({"x": 7}, one({"type": "string"}), "x: 7 is not of type 'string'"),
        ({"x": True}, one({"type": "integer"}), "x: True is not of type 'integer'"),
        ({"x": "yes"}, one({"type": "boolean"}), "x: 'yes' is not of type 'boolean'"),
        ({"x": "inf"}, one({"type": "number"}), "x: 'inf' is not of type 'number'"),
        (
            {"x": [{"y": 1}]},
            one({"type": "array", "items": one({"type": "integer"})}),
            "x[0]: 'x' is a required property",
        ),
        ({}, one({"type": "integer"}), "'x' is a required property"),
        ({"x": "c"}, one({"enum": ["a", "b"]}), "x: 'c' is not one of ['a', 'b']"),
        ({"x": None}, one({"type": "integer"}), "x: None is not of type 'integer'"),
    ],
)
def test_problems_name_the_field(value: Any, schema: dict[str, Any], message: str) -> None:
    assert coerce(value, schema)[1] == [message]


def test_null_for_an_optional_field_means_not_given() -> None:
    assert coerce({"x": None}, one({"type": "integer"}, needed=False)) == ({}, [])
    assert coerce({"x": None}, one(NULLABLE, needed=False)) == ({"x": None}, [])


def test_problems_are_bounded() -> None:
    problems = coerce({"x": ["y" * 100_000] * 1_000}, one({"type": "array", "items": {"type": "integer"}}))[1]
    assert len(problems) <= 5
    assert all(len(problem) <= MAX_PROBLEM_CHARS + 100 for problem in problems)
    assert len(format_problems(problems)) < 2_500


def test_the_value_given_is_not_changed() -> None:
    value = {"x": ["1"]}
    coerce(value, one({"type": "array", "items": {"type": "integer"}}))
    assert value == {"x": ["1"]}


def test_no_reference_is_fetched() -> None:
    problems = coerce({"x": 1}, one({"$ref": "http://127.0.0.1:9/schema.json"}))[1]
    assert problems
    assert problems[0].startswith("the schema itself cannot be used")


def test_nesting_has_an_end() -> None:
    value: Any = "1"
    for _ in range(5_000):
        value = [value]
    schema = {"$ref": "#/$defs/T", "$defs": {"T": {"type": ["array", "integer"], "items": {"$ref": "#/$defs/T"}}}}
    assert coerce(value, schema)[1] == ["nested too deeply"]
