"""Parameters of requests: one that a route does not have is refused by its name, as fields of bodies are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastapi import Request

from .orders import invalid

if TYPE_CHECKING:
    from fastapi.dependencies.models import Dependant

PREFIXES = {"/v1/jobs": "metadata."}
"""What names of further parameters of a route begin with."""


async def known_parameters(request: Request) -> None:
    """Raises 422 for a parameter that the route does not have: a misspelt one would change nothing, unseen."""
    if not request.query_params:
        return
    route = request.scope["route"]
    known = set(_names(route.dependant))
    prefix = PREFIXES.get(route.path)
    for name in request.query_params:
        if name not in known and not (prefix and name.startswith(prefix) and name != prefix):
            detail = f"there is no such parameter; there are: {', '.join(sorted(known)) or 'none'}"
            raise invalid("unknown_field", "There is no such parameter", detail, name[:100])


def _names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        yield parameter.alias
    for other in dependant.dependencies:
        yield from _names(other)
