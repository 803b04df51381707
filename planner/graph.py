"""The few graph questions that scheduling and display ask, on plain dicts: importing networkx costs 0.2 s, which a
running plan need not pay. `Plan.graph` is the networkx graph for everything else; tests hold the two side by side.

Everywhere `deps` maps a node to the nodes it depends on, in plan order; nodes that aren't keys are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Deps = Mapping[str, Sequence[str]]


def cycles(deps: Deps) -> list[tuple[str, ...]]:
    """The groups of nodes that wait for each other, each in plan order; a node that only waits for itself is a group
    of one. Nodes that merely hang on a cycle are not in it (strongly connected components, Tarjan 1972)."""
    place = {node: at for at, node in enumerate(deps)}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[tuple[str, ...]] = []
    for root in deps:
        if root in index:
            continue
        work = [(root, iter(deps[root]))]  # by hand: a chain of thousands of steps must not hit the recursion limit
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in place:
                    continue
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(deps[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = _pop_until(node, stack, on_stack)
                    if len(group) > 1 or node in deps[node]:
                        found.append(tuple(sorted(group, key=place.__getitem__)))
    return sorted(found, key=lambda group: place[group[0]])


def _pop_until(node: str, stack: list[str], on_stack: set[str]) -> list[str]:
    group = []
    while True:
        member = stack.pop()
        on_stack.discard(member)
        group.append(member)
        if member == node:
            return group


def order(deps: Deps) -> list[str]:
    """The nodes so that each comes after what it depends on, plan order first; members of cycles are left out."""
    waiting = {node: len({other for other in others if other in deps}) for node, others in deps.items()}
    users: dict[str, list[str]] = {node: [] for node in deps}
    for node, others in deps.items():
        for other in dict.fromkeys(others):
            if other in users:
                users[other].append(node)
    ready = [node for node, count in waiting.items() if not count]
    for node in ready:
        for user in users[node]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return ready


def generations(deps: Deps) -> tuple[tuple[str, ...], ...]:
    """The nodes in layers: each in the first layer after all it depends on, within a layer in plan order."""
    depth = _depths(deps)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in deps:
        if node in depth:
            layers[depth[node]].append(node)
    return tuple(tuple(layer) for layer in layers)


def longest_path(deps: Deps) -> tuple[str, ...]:
    """The longest chain of nodes that must run one after the other; among equals the first in plan order."""
    depth = _depths(deps)
    if not depth:
        return ()
    node = max((node for node in deps if node in depth), key=depth.__getitem__)
    path = [node]
    while depth[node]:
        node = next(other for other in deps[node] if depth.get(other) == depth[node] - 1)
        path.append(node)
    return tuple(reversed(path))


def _depths(deps: Deps) -> dict[str, int]:
    depth: dict[str, int] = {}
    for node in order(deps):
        depth[node] = max((depth[other] + 1 for other in deps[node] if other in depth), default=0)
    return depth


def reduction(deps: Deps) -> tuple[tuple[str, str], ...]:
    """The edges (from, to) of the transitive reduction: those that no longer path already implies."""
    bit = {node: 1 << at for at, node in enumerate(deps)}
    above: dict[str, int] = {}  # a node's ancestors as a bit set: 64 steps are one machine word
    kept: dict[str, list[str]] = {}
    for node in order(deps):
        others = [other for other in dict.fromkeys(deps[node]) if other in bit]
        implied = 0
        for other in others:
            implied |= above[other]
        kept[node] = [other for other in others if not implied & bit[other]]
        above[node] = implied
        for other in others:
            above[node] |= bit[other]
    return tuple((other, node) for node in deps for other in kept.get(node, ()))
