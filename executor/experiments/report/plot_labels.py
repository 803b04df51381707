"""Where the labels of a picture's points stand, so that they cover each other and the points as little as may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

WIDE, TALL = 0.58, 1.25
"""A letter's width and a line's height, in font sizes: a little more than most fonts take."""
PIECE = 4.0
"""Pixels of a line that are looked at together."""
POINT = 5.0
"""How far around its middle a point's mark reaches."""


class Box(NamedTuple):
    """A rectangle in pixels, from the left bottom to the right top."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """The area that two share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return width * height if width > 0 and height > 0 else 0.0

    def outside(self, frame: Box) -> float:
        """The area that does not lie in the frame."""
        return (self.right - self.left) * (self.top - self.bottom) - self.overlap(frame)


class Label(NamedTuple):
    """A text for a point at (x, y) pixels."""

    text: str
    x: float
    y: float


def placed(labels: Sequence[Label], taken: Sequence[Box], frame: Box, size: float) -> list[tuple[float, float]]:
    """For each label where its left bottom corner stands beside its point: one after the other, each at the place that
    covers least of what is there, and of those at the nearest. `size` of the font in pixels."""
    filled = [*taken, *(Box(one.x - POINT, one.y - POINT, one.x + POINT, one.y + POINT) for one in labels)]
    found = []
    for label in labels:
        width, height = WIDE * size * len(label.text), TALL * size
        best = min(
            ((dx, dy, _box(label, dx, dy, width, height)) for dx, dy in _places(width, height)),
            key=lambda place: (
                sum(place[2].overlap(box) for box in filled) + 4 * place[2].outside(frame) + 0.8 * _away(place, width)
            ),
        )
        filled.append(best[2])
        found.append((best[0], best[1]))
    return found


def covered(points: Sequence[tuple[float, ...]], *, steps: bool = False) -> Iterator[Box]:
    """What a line through these points covers, in small boxes; `steps`: first across, then up."""
    if steps:
        corners = [(two[0], one[1]) for one, two in pairwise(points)]
        points = [*(place for pair in zip(points, corners, strict=False) for place in pair), points[-1]]
    for one, two in pairwise(points):
        pieces = max(1, int(math.hypot(two[0] - one[0], two[1] - one[1]) / PIECE))
        for piece in range(pieces):
            x, y = (a + (b - a) * (piece + 0.5) / pieces for a, b in zip(one, two, strict=True))
            yield Box(x - PIECE / 2, y - PIECE / 2, x + PIECE / 2, y + PIECE / 2)


def _box(label: Label, dx: float, dy: float, width: float, height: float) -> Box:
    return Box(label.x + dx, label.y + dy, label.x + dx + width, label.y + dy + height)


def _away(place: tuple[float, float, Box], width: float) -> float:
    """How far the text's nearest side is from the point."""
    dx, dy, box = place
    height = box.top - box.bottom
    across = max(dx, -(dx + width), 0.0)
    return math.hypot(across, max(dy, -(dy + height), 0.0))


def _places(width: float, height: float) -> Iterator[tuple[float, float]]:
    """Around the point, near ones first."""
    for far in (7.0, 14.0, 24.0, 38.0, 54.0, 72.0):
        sides = (far, -far - width)
        for x in sides:
            for y in (-height / 2, far * 0.6, -far * 0.6 - height, far, -far - height):
                yield x, y
        for y in (far, -far - height):
            for x in (-width / 2, -width * 0.2, -width * 0.8):
                yield x, y
