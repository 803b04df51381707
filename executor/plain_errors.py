"""Errors of ours out of the groups that tasks wrap them in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from registry.errors import DagwrightError


@contextmanager
def plain_errors() -> Iterator[None]:
    """Within the block a group of exceptions that holds one of ours is raised as that one, whatever else is in it."""
    try:
        yield
    except BaseExceptionGroup as group:
        found: BaseException | None = group.subgroup(DagwrightError)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is None:
            raise
        raise found from None
