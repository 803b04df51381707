"""A server's schemas, made safe: checking a call's arguments must neither break nor take for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_CHECKS = 5_000
"""Parts of a schema that one check may go through, references followed: a few dozen lines can make millions."""

_PLAIN = frozenset({"default", "const", "enum", "examples"})
"""Keys that hold values, not schemas."""

_NAMED = frozenset({"properties", "$defs", "definitions"})
"""Keys whose values have names for keys."""

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def safe_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without its regular expressions, which the server checks itself: one of a stranger's can hold up the
    whole process. They are told in the descriptions. Raises ValueError for what is no schema, or has no end."""
    try:
        if _Counter(schema).size(schema) > MAX_CHECKS:
            raise ValueError("its schema is too large to be checked")
        plain = _without_patterns(schema)
    except RecursionError:
        raise ValueError("its schema is nested too deeply") from None
    return plain if isinstance(plain, dict) else {}


def _without_patterns(value: Any, named: bool = False) -> Any:
    """`named`: the keys are names of properties or definitions, not the schema language's words."""
    if isinstance(value, list):
        return [_without_patterns(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    copy: dict[str, Any] = {}
    for key, item in value.items():
        if not named and key in ("pattern", "patternProperties"):
            continue
        if not named and key in _PLAIN:
            copy[key] = item
        else:
            copy[key] = _without_patterns(item, not named and key in _NAMED)
    if not named and isinstance(pattern := value.get("pattern"), str):
        copy["description"] = f"{value.get('description') or ''} (pattern: {pattern[:200]})".strip()
    return copy


class _Counter:
    """Counts the parts that a check can come through: what two references lead to is counted twice."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}

    def size(self, part: Any, named: bool = False) -> int:
        """The number of parts; a reference back into what is being counted is one. `named` as in `_without_patterns`.
        Raises ValueError for what is no schema: the full check against the language's own takes a second for a thousand
        parts."""
        if isinstance(part, list):
            return sum(map(self.size, part))
        if not isinstance(part, Mapping):
            return 0
        if named:
            return sum(map(self.size, part.values()))
        _check(part)
        inside = ((key, item) for key, item in part.items() if key not in _PLAIN | {"$defs", "definitions"})
        count = 1 + sum(self.size(item, key in _NAMED) for key, item in inside)
        references = (part[key] for key in ("$ref", "$dynamicRef") if isinstance(part.get(key), str))
        return count + sum(map(self._referred, references))

    def _referred(self, reference: str) -> int:
        if reference not in self._known:
            self._known[reference] = 1
            self._known[reference] = self.size(_found(self._root, reference))
        return self._known[reference]


def _check(part: Mapping[str, Any]) -> None:
    kinds = part.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            raise ValueError(f"its schema is not valid: there is no type {str(kind)[:100]!r}")
    for key in _NAMED & part.keys():
        if not isinstance(part[key], Mapping):
            raise ValueError(f"its schema is not valid: {key} must be an object")


def _found(root: Any, reference: str) -> Any:
    """What a reference within the schema leads to. Raises ValueError where it leads elsewhere, or nowhere."""
    place = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            place = place.get(name) if isinstance(place, Mapping) else None
    if place is None or (reference != "#" and not reference.startswith("#/")):
        raise ValueError(f"its schema refers to {reference[:200]!r}, which is not in it")
    return place
