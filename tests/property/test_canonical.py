"""The one spelling of a value, however deep it is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.messages import MAX_SPELT_DEPTH, _spelt_by_stack, canonical_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int, leaf: Any = 1) -> Any:
    value = leaf
    for level in range(levels):
        value = {"b": value, "a": level % 2} if level % 3 else [value]
    return value


@given(VALUES)
def test_both_ways_to_spell_a_value_agree(value: Any) -> None:
    assert canonical_json(value) == _spelt_by_stack(value)
    assert json.loads(canonical_json(value)) == json.loads(canonical_json(json.loads(canonical_json(value))))


def test_depth_is_no_failure_and_still_tells_values_apart() -> None:
    assert canonical_json(nested(1_000)) == canonical_json(nested(1_000))
    assert canonical_json(nested(1_000)) != canonical_json(nested(1_000, leaf=2))
    assert canonical_json(nested(MAX_SPELT_DEPTH * 2)) == canonical_json(nested(MAX_SPELT_DEPTH * 2))
