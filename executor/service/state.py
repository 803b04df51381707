"""What the routes work with; kept in the application's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request
from pydantic_core import to_json
from starlette.responses import Response

from executor.store.database import Database
from executor.store.jobs import JobStore
from registry.models import ModelRegistry
from registry.tools import ToolRegistry

if TYPE_CHECKING:
    from executor.settings_model import Settings


@dataclass(frozen=True, slots=True)
class Offer:
    """The models and tools that jobs may name; nothing of it is called in this process. `notice` stands above answers,
    where a demonstration model gives them."""

    models: ModelRegistry
    tools: ToolRegistry
    notice: str | None = None


def database(request: Request) -> Database:
    """The service's database."""
    found: Database = request.app.state.database
    return found


def jobs(request: Request) -> JobStore:
    """The service's jobs."""
    found: JobStore = request.app.state.jobs
    return found


def settings(request: Request) -> Settings:
    """The service's settings."""
    found: Settings = request.app.state.settings
    return found


def offer(request: Request) -> Offer:
    """What jobs may name; a Workshop of a worker will do, too."""
    found: Offer = request.app.state.workshop
    return found


def reply(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON as it stands in the database: NaN and infinity null. No cache keeps it, no browser takes it for a page."""
    own = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(to_json(data, inf_nan_mode="null"), status, headers=own, media_type="application/json")


def reply_page(rows: Sequence[Mapping[str, Any]], more: bool, by: str = "id") -> Response:
    """A page of a list. `next`: after which row the next page begins, by that column; null where there is none."""
    return reply({"data": rows, "has_more": more, "next": rows[-1][by] if rows and more else None})
