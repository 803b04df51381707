"""Where the steps of a plan are drawn: in layers by generation, with few crossings, the same at every call.

After Sugiyama, Tagawa and Toda (1981): layers by the longest path, edges over several layers bent at virtual nodes,
orders by sweeps of medians, then places along each layer as near to the neighbours as the order allows.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from planner.plan import Plan, PlanStep

from .problems import ProblemError
from .state import database

if TYPE_CHECKING:
    import networkx
    from fastapi import Request

    from executor.store.database import Row

Node: TypeAlias = "str | tuple[str, str, int]"
"""A step's id, or the bend of an edge (from, to) in a layer."""
Layers: TypeAlias = list[list[Node]]
Beside: TypeAlias = "tuple[Mapping[Node, Sequence[Node]], Mapping[Node, Sequence[Node]]]"
"""What stands before each node, and what after it."""

SWEEPS = 8
"""Times the orders are improved, forth and back; few graphs change after the fourth."""
MOST_BENDS = 2_000
"""Bends of long edges that are ordered as well; beyond it edges go straight, so that any plan is drawn at once."""
MOST_ROUNDS = 1_000_000
ROUNDS = 4
"""Earlier rounds whose drawings the order of kept steps is taken from."""
ROOM: Mapping[bool, float] = {True: 1.0, False: 0.5}
"""Units a step and a bend take along their layer."""


async def drawing(request: Request, job: Row, of_round: int | None) -> dict[str, Any]:
    """The drawing of a job's plan in a round, None for the last. Raises the problem 404 where there is none."""
    rows = await database(request).rows("page.plans", job["id"], MOST_ROUNDS if of_round is None else of_round)
    given = job["request"].get("plan")
    told = [row["payload"] for row in rows] or ([] if given is None else [given])
    if not told:
        raise ProblemError(404, "no_plan", "The job has no plan", "the job has no plan so far")
    plans = [Plan.from_json(plan) for plan in told]
    return await asyncio.to_thread(layout, plans)


def layout(plans: Sequence[Plan]) -> dict[str, Any]:
    """The drawing of the last of a job's plans, those of earlier rounds before it.

    Steps that it keeps are drawn too, and keep their order. `x` is the layer, `y` the place along it, in units of one
    step's room; `points` of an edge are its ends and bends. Raises ValueError without a plan.
    """
    if not plans:
        raise ValueError("a drawing needs a plan")
    rank: dict[str, int] = {}
    for at in range(max(1, len(plans) - ROUNDS), len(plans) + 1):
        drawing = _drawn({**_kept(plans[:at]), **plans[at - 1].by_id}, rank)
        ordered = sorted(drawing["nodes"], key=lambda node: (node["layer"], node["y"]))
        rank = {node["id"]: place for place, node in enumerate(ordered)}
    return {"round": plans[-1].round, **drawing}


def _drawn(steps: Mapping[str, PlanStep], rank: Mapping[str, int]) -> dict[str, Any]:
    """The drawing of steps; `rank` is the order in which some of them were drawn before."""
    graph = _graph(steps)
    layers, chains = _layered(graph)
    beside = _neighbours(chains)
    _order(layers, beside, rank)
    places = _places(layers, beside)
    lowest = min(places.values())
    place = {node: (at, round(places[node] - lowest, 3)) for at, layer in enumerate(layers) for node in layer}
    return {
        "nodes": [{"id": name, "x": place[name][0], "y": place[name][1], "layer": place[name][0]} for name in steps],
        "edges": [
            {"from": chain[0], "to": chain[-1], "points": [list(place[node]) for node in chain]} for chain in chains
        ],
        "width": len(layers),
        "height": round(max(y for _, y in place.values()) + 1, 3),
    }


def _kept(plans: Sequence[Plan]) -> dict[str, PlanStep]:
    """Steps of earlier rounds whose results the last plan uses."""
    known = {name: step for plan in plans[:-1] for name, step in plan.by_id.items()}
    return {name: known[name] for name in plans[-1].kept if name in known}


def _graph(steps: Mapping[str, PlanStep]) -> networkx.DiGraph[str]:
    import networkx

    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from(steps)
    graph.add_edges_from((other, name) for name, step in steps.items() for other in step.dependencies if other in steps)
    reduced = networkx.transitive_reduction(graph)  # an edge that a longer path implies says nothing new
    reduced.add_nodes_from(steps)
    return reduced


def _layered(graph: networkx.DiGraph[str]) -> tuple[Layers, list[list[Node]]]:
    """Nodes by layer, and each edge as the chain of nodes from its beginning over its bends to its end."""
    import networkx

    rank = {name: at for at, layer in enumerate(networkx.topological_generations(graph)) for name in layer}
    layers: Layers = [[] for _ in range(max(rank.values()) + 1)]
    for name in graph:
        layers[rank[name]].append(name)
    order = {name: at for at, name in enumerate(graph)}
    edges = sorted(graph.edges, key=lambda edge: (order[edge[0]], order[edge[1]]))
    bent = sum(rank[end] - rank[start] - 1 for start, end in edges) <= MOST_BENDS
    chains: list[list[Node]] = []
    for start, end in edges:
        between = range(rank[start] + 1, rank[end]) if bent else ()
        bends: list[Node] = [(start, end, at) for at in between]
        for at, bend in zip(between, bends, strict=True):
            layers[at].append(bend)
        chains.append([start, *bends, end])
    return layers, chains


def _neighbours(chains: Iterable[Sequence[Node]]) -> Beside:
    before: dict[Node, list[Node]] = {}
    after: dict[Node, list[Node]] = {}
    for chain in chains:
        for start, end in itertools.pairwise(chain):
            before.setdefault(end, []).append(start)
            after.setdefault(start, []).append(end)
    return before, after


def _order(layers: Layers, neighbours: Beside, rank: Mapping[str, int]) -> None:
    """Orders each layer so that few edges cross; the best order of all sweeps stays."""
    for layer in layers:
        _keep_order(layer, rank)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, neighbours[1])
    for sweep in range(SWEEPS):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        turn = range(1, len(layers)) if down else range(len(layers) - 2, -1, -1)
        for at in turn:
            beside = {node: place for place, node in enumerate(layers[at - 1 if down else at + 1])}
            _by_medians(layers[at], neighbours[0 if down else 1], beside)
            _keep_order(layers[at], rank)
        crossings = _crossings(layers, neighbours[1])
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _by_medians(layer: list[Node], beside_of: Mapping[Node, Sequence[Node]], places: Mapping[Node, int]) -> None:
    """Sorts a layer by the median place of each node's neighbours; one without any stays where it is."""
    wanted = {}
    for at, node in enumerate(layer):
        beside = [places[other] for other in beside_of.get(node, ()) if other in places]
        wanted[node] = median(beside) if beside else float(at)
    layer.sort(key=wanted.__getitem__)


def _keep_order(layer: list[Node], rank: Mapping[str, int]) -> None:
    """Puts those that were drawn before into their former order, in the places that they have together."""
    drawn = [at for at, node in enumerate(layer) if isinstance(node, str) and node in rank]
    kept = sorted((layer[at] for at in drawn), key=lambda node: rank[node] if isinstance(node, str) else 0)
    for at, node in zip(drawn, kept, strict=True):
        layer[at] = node


def _crossings(layers: Layers, after: Mapping[Node, Sequence[Node]]) -> int:
    """How many pairs of edges cross between neighbouring layers, counted with a Fenwick tree."""
    found = 0
    for layer, following in itertools.pairwise(layers):
        place = {node: at for at, node in enumerate(following)}
        ends = [sorted(place[end] for end in after.get(node, ()) if end in place) for node in layer]
        tree, seen = [0] * (len(following) + 1), 0
        for group in ends:
            for end in group:
                found += seen - _sum(tree, end + 1)
            for end in group:
                _add(tree, end + 1)
                seen += 1
    return found


def _sum(tree: Sequence[int], at: int) -> int:
    total = 0
    while at:
        total += tree[at]
        at -= at & -at
    return total


def _add(tree: list[int], at: int) -> None:
    while at < len(tree):
        tree[at] += 1
        at += at & -at


def _places(layers: Layers, neighbours: Beside) -> dict[Node, float]:
    """Where each node stands along its layer: as near to its neighbours' middle as its order and room allow."""
    place: dict[Node, float] = {}
    for layer in layers:
        offsets = _offsets(layer)
        place.update({node: at - offsets[-1] / 2 for node, at in zip(layer, offsets, strict=True)})
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            near = neighbours[0 if down else 1]
            offsets = _offsets(layer)
            wanted = [_mean([place[other] for other in near.get(node, ())], place[node]) for node in layer]
            moved = _rising([want - offset for want, offset in zip(wanted, offsets, strict=True)])
            place.update({node: at + offset for node, at, offset in zip(layer, moved, offsets, strict=True)})
    return place


def _offsets(layer: Sequence[Node]) -> list[float]:
    """Places of a layer's nodes side by side, from 0 on."""
    found = [0.0]
    for one, other in itertools.pairwise(layer):
        found.append(found[-1] + (ROOM[isinstance(one, str)] + ROOM[isinstance(other, str)]) / 2)
    return found


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _rising(wanted: Sequence[float]) -> list[float]:
    """The rising numbers nearest to these by least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in wanted:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            total, count = total + pools[-1][0], count + pools[-1][1]
            pools.pop()
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]
