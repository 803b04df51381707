"""Where a plan's steps are drawn: in layers, without overlap, with few crossings, the same at every call."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.service.layout import layout
from planner.plan import Plan, PlanStep


def plan(steps: dict[str, tuple[str, ...]], **more: Any) -> Plan:
    return Plan("goal", tuple(PlanStep(name, f"do {name}", after) for name, after in steps.items()), **more)


def places(drawn: dict[str, Any]) -> dict[str, tuple[int, float]]:
    return {node["id"]: (node["x"], node["y"]) for node in drawn["nodes"]}


def crossings(drawn: dict[str, Any]) -> int:
    """Pairs of pieces of edges that cross between two layers."""
    pieces = {}
    for edge in drawn["edges"]:
        for (x, y), (_, after) in pairwise(edge["points"]):
            pieces.setdefault(x, []).append((y, after))
    return sum((a - c) * (b - d) < 0 for found in pieces.values() for (a, b), (c, d) in combinations(found, 2))


DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def test_a_diamond_is_one() -> None:
    drawn = layout([plan(DIAMOND)])
    assert places(drawn) == {"a": (0, 0.5), "b": (1, 0.0), "c": (1, 1.0), "d": (2, 0.5)}
    assert [(edge["from"], edge["to"]) for edge in drawn["edges"]] == [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    assert (drawn["width"], drawn["height"], drawn["round"]) == (3, 2.0, 1)


def test_an_edge_over_layers_is_bent_around_what_lies_between() -> None:
    drawn = layout([plan({"a": (), "b": ("a",), "c": ("b",), "x": (), "d": ("c", "x")})])
    (long,) = [edge for edge in drawn["edges"] if (edge["from"], edge["to"]) == ("x", "d")]
    assert [x for x, _ in long["points"]] == [0, 1, 2, 3]
    found = places(drawn)
    for x, y in long["points"][1:-1]:
        assert all(abs(y - other) >= 0.75 for name, (at, other) in found.items() if at == x)


def test_an_edge_that_a_longer_path_implies_is_left_out() -> None:
    drawn = layout([plan({"a": (), "b": ("a",), "c": ("a", "b")})])
    assert [(edge["from"], edge["to"]) for edge in drawn["edges"]] == [("a", "b"), ("b", "c")]


def test_edges_that_need_not_cross_don_t() -> None:
    twisted = {"a": (), "b": (), "c": (), "x": ("c",), "y": ("b",), "z": ("a",), "end": ("x", "y", "z")}
    assert crossings(layout([plan(twisted)])) == 0
    ladder = {f"{row}{at}": (f"{row}{at - 1}",) if at else () for at in range(8) for row in "dbca"}
    assert crossings(layout([plan(ladder)])) == 0


def test_kept_steps_keep_their_order_and_their_layer() -> None:
    first = plan({"a": (), "b": ("a",), "c": ("a",), "e": ("a",), "d": ("b", "c", "e")})
    second = plan({"n": ("e",), "m": ("b",), "d": ("n", "m", "c")}, round=2, kept=("a", "b", "c", "e"))
    before, after = places(layout([first])), places(layout([first, second]))
    kept = ("b", "c", "e")
    assert sorted(kept, key=before.__getitem__) == sorted(kept, key=after.__getitem__)
    assert all(before[name][0] == after[name][0] for name in ("a", *kept))
    third = plan({"o": ("m",)}, round=3, kept=("a", "b", "c", "e", "m"))
    drawn = places(layout([first, second, third]))
    assert drawn.keys() == {"a", "b", "c", "e", "m", "o"}
    assert sorted(kept, key=before.__getitem__) == sorted(kept, key=drawn.__getitem__)


def test_without_a_plan_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="needs a plan"):
        layout([])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(1, 24))
    steps: dict[str, tuple[str, ...]] = {}
    for at in range(size):
        before = draw(st.lists(st.integers(0, at - 1), unique=True, max_size=4)) if at else []
        steps[f"s{at}"] = tuple(f"s{other}" for other in before)
    return plan(steps)


@settings(max_examples=150, deadline=None)
@given(plans())
def test_every_drawing_is_right(given_plan: Plan) -> None:
    drawn = layout([given_plan])
    assert drawn == layout([given_plan])
    found = places(drawn)
    assert found.keys() == given_plan.by_id.keys()
    for one, other in combinations(found.values(), 2):
        assert one[0] != other[0] or abs(one[1] - other[1]) >= 0.998, "steps of a layer don't touch"
    for name, step in given_plan.by_id.items():
        assert all(found[other][0] < found[name][0] for other in step.dependencies), "all edges lead forward"
    assert {(edge["from"], edge["to"]) for edge in drawn["edges"]} == set(given_plan.edges)
    for edge in drawn["edges"]:
        assert tuple(edge["points"][0]) == found[edge["from"]]
        assert tuple(edge["points"][-1]) == found[edge["to"]]
        assert all(after[0] == before[0] + 1 for before, after in pairwise(edge["points"]))
    assert all(0 <= x < drawn["width"] and 0 <= y <= drawn["height"] - 1 + 1e-6 for x, y in found.values())


def test_any_plan_is_drawn_at_once() -> None:
    """The largest plan there may be, with the most edges."""
    names = [f"s{at}" for at in range(64)]
    drawn = layout([plan({name: tuple(names[:at]) for at, name in enumerate(names)})])
    assert (drawn["width"], len(drawn["edges"])) == (64, 63)
    half = {name: () for name in names[:32]} | {name: tuple(names[:32]) for name in names[32:]}
    drawn = layout([plan(half)])
    assert (drawn["width"], len(drawn["edges"])) == (2, 1_024)
