"""Schemas of strangers: nothing in them breaks the check of a call, or holds it up."""

from __future__ import annotations

import time
from typing import Any

import pytest

from registry.mcp.schemas import safe_schema
from registry.schema import coerce
from registry.tools import Tool, ToolArgumentsError


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def doubling(levels: int) -> dict[str, Any]:
    """A schema that doubles with each level."""
    definitions: dict[str, Any] = {f"a{levels}": {"type": "integer"}}
    for level in range(levels):
        below = {"$ref": f"#/$defs/a{level + 1}"}
        definitions[f"a{level}"] = {"anyOf": [below, below]}
    return {**of(x={"$ref": "#/$defs/a0"}), "$defs": definitions}


def test_regular_expressions_are_told_and_not_run() -> None:
    schema = safe_schema(of(x={"type": "string", "pattern": "(a+)+$", "description": "Letters"}, pattern={"const": 1}))
    assert schema["properties"] == {
        "x": {"type": "string", "description": "Letters (pattern: (a+)+$)"},
        "pattern": {"const": 1},
    }
    began = time.monotonic()
    assert coerce({"x": "a" * 40 + "!"}, schema)[1] == []
    assert time.monotonic() - began < 5
    assert safe_schema({"type": "object", "patternProperties": {"^(a+)+$": {}}}) == {"type": "object"}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (of(x={"type": "nonsense"}), "not valid"),
        ({"type": "object", "properties": "x"}, "not valid"),
        (doubling(25), "too large"),
        (of(x={"$ref": "http://127.0.0.1/x.json"}), "which is not in it"),
        (of(x={"$ref": "#/$defs/gone"}), "which is not in it"),
    ],
)
def test_what_can_not_be_checked_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        safe_schema(schema)


def test_ordinary_and_recursive_schemas_stay_as_they_are() -> None:
    tree = {**of(x={"$ref": "#/$defs/T"}), "$defs": {"T": of(l={"$ref": "#/$defs/T"}, r={"$ref": "#/$defs/T"})}}
    listed = of(x={"prefixItems": [{"type": "string"}]}, y={"$ref": "#/properties/x/prefixItems/0"}, z={"$ref": "#"})
    for schema in (tree, listed, doubling(8), of(x={"type": "string", "default": {"pattern": "x"}})):
        assert safe_schema(schema) == schema


@pytest.mark.parametrize("schema", [of(x={"type": "nonsense"}), {"type": "object", "properties": "x"}])
def test_a_check_under_a_broken_schema_is_a_refusal(schema: dict[str, Any]) -> None:
    with pytest.raises(ToolArgumentsError, match="the schema itself cannot be used"):
        Tool("t", "A tool.", schema, lambda x: x).check({"x": "a"})
