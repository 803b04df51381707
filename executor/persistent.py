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
    """A node of a leftist heap (Crane 1972): the least item on top, the shorter spine always on the right.

    The empty heap is None. `rank` is the length of the right spine, at most log2 of the size.
    """

    rank: int
    item: int
    left: Heap | None
    right: Heap | None


def merge(one: Heap | None, other: Heap | None) -> Heap | None:
    """The items of both. O(log n)."""
    if one is None:
        return other
    if other is None:
        return one
    if other.item < one.item:
        one, other = other, one
    left, right = one.left, merge(one.right, other)
    if left is None or (right is not None and left.rank < right.rank):
        left, right = right, left
    return Heap(right.rank + 1 if right is not None else 1, one.item, left, right)


def push(heap: Heap | None, item: int) -> Heap:
    """The heap with one more item. O(log n)."""
    merged = merge(heap, Heap(1, item, None, None))
    assert merged is not None
    return merged


def pop(heap: Heap) -> tuple[int, Heap | None]:
    """The least item, and the heap without it. O(log n)."""
    return heap.item, merge(heap.left, heap.right)
