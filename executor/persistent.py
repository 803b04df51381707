"""Two values that never change: a sequence and a priority queue whose "changes" are new values sharing the rest.

They let the scheduler's state be a frozen value without being copied whole at every event: a change costs O(log n).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_BITS = 5
_WIDTH = 1 << _BITS


@dataclass(frozen=True, slots=True)
class Vector(Generic[T]):
    """A sequence of fixed length, kept as a tree of tuples with up to 32 branches."""

    length: int
    shift: int
    root: tuple[Any, ...]

    @classmethod
    def of(cls, items: Iterable[T]) -> Vector[T]:
        """The vector of these items."""
        level: list[Any] = list(items)
        length, shift = len(level), 0
        while len(level) > _WIDTH:
            level = [tuple(level[start : start + _WIDTH]) for start in range(0, len(level), _WIDTH)]
            shift += _BITS
        return cls(length, shift, tuple(level))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> T:
        node: Any = self.root
        for shift in range(self.shift, -1, -_BITS):
            node = node[(index >> shift) & (_WIDTH - 1)]
        return node  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        level: Iterable[Any] = self.root
        for _ in range(self.shift // _BITS):
            level = (item for node in level for item in node)
        return iter(level)

    def set(self, index: int, value: T) -> Vector[T]:
        """The same vector but for one item; shares all branches except those on the way to it."""
        return Vector(self.length, self.shift, _with(self.root, self.shift, index, value))


def _with(node: tuple[Any, ...], shift: int, index: int, value: Any) -> tuple[Any, ...]:
    place = (index >> shift) & (_WIDTH - 1)
    child = _with(node[place], shift - _BITS, index, value) if shift else value
    return (*node[:place], child, *node[place + 1 :])


class Heap(NamedTuple):
    """A pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986): the least item on top, below it heaps in a linked list
    of pairs (heap, rest). The empty heap is None."""

    item: int
    below: tuple[Heap, Any] | None


def push(heap: Heap | None, item: int) -> Heap:
    """The heap with one more item. O(1)."""
    return _merge(Heap(item, None), heap)


def pop(heap: Heap) -> tuple[int, Heap | None]:
    """The least item, and the heap without it. O(log n), amortised."""
    merged: list[Heap] = []
    below = heap.below
    while below is not None:
        one, below = below
        if below is not None:
            other, below = below
            one = _merge(one, other)
        merged.append(one)
    rest: Heap | None = None
    while merged:
        rest = _merge(merged.pop(), rest)
    return heap.item, rest


def _merge(one: Heap, other: Heap | None) -> Heap:
    if other is None:
        return one
    if other.item < one.item:
        one, other = other, one
    return Heap(one.item, (other, one.below))
