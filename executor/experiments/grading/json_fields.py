"""The grader of structured answers: the fields of a JSON value compared one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from registry.text import cut_end
from registry.toml_file import Table, shown

from .base import RuleGrader, Verdict, at_least_0
from .texts import Normal

MISSING: Any = object()
RELATIVE = 1e-9
"""Relative difference of numbers that still counts as equal where nothing is said: rounding of floats."""
SHOWN = 60


class JsonFields(RuleGrader):
    """The part of the target's fields that the answer's JSON value has with the same value.

    `fields` names those that count, by a path such as "author.name" (all top ones where it is not given); what the
    answer has beside them is not looked at. Texts are made alike (`ignore`, see `Normal`), numbers may differ by
    `tolerance` (absolute, 0) or `relative` (1e-9); true is not 1. With `all = true` anything less than all fields is
    worth 0. A target that is no object is one field. The answer's value is found in its text, code fence or not.
    """

    def __init__(self, table: Table) -> None:
        table.only(("fields", "ignore", "tolerance", "relative", "all"))
        self.fields, self.normal = table.texts("fields"), Normal.of(table)
        self.tolerance, self.relative = at_least_0(table, "tolerance", 0), at_least_0(table, "relative", RELATIVE)
        self.all = table.flag("all")

    def verdict(self, target: Any, answer: str) -> Verdict:
        """What the answer is worth."""
        target = _data(target)
        paths = self.fields or (tuple(target) if isinstance(target, Mapping) else ())
        wanted = {path: at(target, path) for path in paths} if paths else {"": target}
        if isinstance(target, Mapping) and not paths:
            return Verdict(None, "the target has no fields")
        if lacking := [path for path, value in wanted.items() if value is MISSING]:
            return Verdict(None, f"the target has no field {lacking[0]!r}")
        from agent.extract import extract_json

        value = extract_json(answer)
        if value is None:
            return Verdict(0.0, "there is no JSON value in the answer")
        wrong = self._wrong(wanted, value)
        share = 1 - len(wrong) / len(wanted)
        score = float(not wrong) if self.all else share
        return Verdict(score, "; ".join(wrong.values()), {"wrong": list(wrong)} if wrong else {})

    def _wrong(self, wanted: Mapping[str, Any], value: Any) -> dict[str, str]:
        """The fields that are not as they should be, each with what it is."""
        found = {path: at(value, path) if path else value for path in wanted}
        return {
            path: f"{path or 'the value'}: {_short(found[path])}, not {_short(right)}"
            for path, right in wanted.items()
            if not self.same(found[path], right)
        }

    def same(self, one: Any, two: Any) -> bool:
        """Whether two values are the same: kinds are kept apart, lists have an order, objects the same keys."""
        if isinstance(one, str) and isinstance(two, str):
            return self.normal(one) == self.normal(two)
        if isinstance(one, bool) or isinstance(two, bool) or one is None or two is None:
            return one is two
        if isinstance(one, int | float) and isinstance(two, int | float):
            return one == two or self._near(one, two)
        if isinstance(one, list) and isinstance(two, list):
            return len(one) == len(two) and all(map(self.same, one, two))
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            return one.keys() == two.keys() and all(self.same(one[key], two[key]) for key in one)
        return False

    def _near(self, one: float, two: float) -> bool:
        """Whether two numbers differ by no more than is allowed; nothing is near to what no float can hold."""
        try:
            apart = abs(one - two)
            return math.isfinite(apart) and apart <= max(self.tolerance, self.relative * abs(two))
        except OverflowError:
            return False


def at(value: Any, path: str) -> Any:
    """What stands at a path of keys and places, such as "authors.0.name"; a key that has the whole path in it goes
    first. MISSING where there is nothing."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return MISSING
    return value


def _data(target: Any) -> Any:
    """The target as data: a table's column has it as text."""
    if not isinstance(target, str):
        return target
    try:
        return json.loads(target)
    except (ValueError, RecursionError):
        return target


def _short(value: Any) -> str:
    return "missing" if value is MISSING else cut_end(shown(value), SHOWN)
