"""Errors as problem+json (RFC 9457): every answer that is no success has this shape and a stable code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from executor.store.database import BusyError, DatabaseError, database_errors
from registry.errors import DagwrightError
from registry.redaction import error_fields, redact, redact_data

MEDIA_TYPE = "application/problem+json"
TYPES = "https://dagwright.dev/errors/"
"""What problems' types begin with; they identify the kind and need not lead anywhere (RFC 9457, 3.1.1)."""
RETRY_AFTER = 1
"""Seconds after which it is worth asking again where the database was busy."""
MAX_PROBLEMS = 20
"""Faults of one request that are told."""

SHAPE: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "problems": {"type": "array", "items": {"type": "array"}},
    },
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {"description": "What went wrong (RFC 9457)", "content": {MEDIA_TYPE: {"schema": SHAPE}}}
}
"""What every route may answer beside what it is asked for."""

log = structlog.get_logger(__name__)


class ProblemError(DagwrightError):
    """The request can't be answered as it was asked."""

    code = "bad_request"

    def __init__(
        self,
        status: int,
        code: str,
        title: str,
        detail: str | None = None,
        *,
        problems: Sequence[Sequence[Any]] | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail or title)
        self.status, self.title, self.headers = status, title, dict(headers or {})
        self.body: dict[str, Any] = {
            "type": TYPES + code.replace("_", "-"),
            "title": title,
            "status": status,
            "code": code,
            "detail": redact(detail or title),
        }
        if problems is not None:
            self.body["problems"] = redact_data([list(problem) for problem in problems])
        self.body |= more

    def response(self) -> Response:
        """The answer that says it."""
        return Response(
            to_json(self.body, inf_nan_mode="null"), self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


def not_found(what: str, name: str = "") -> ProblemError:
    """There is no such thing, or it is not the caller's."""
    return ProblemError(404, "not_found", f"There is no such {what}", f"there is no {what} {name}".strip())


def busy(error: Exception) -> ProblemError:
    """The database has no room at the moment, can't be reached, or is not of this version."""
    headers = {"Retry-After": str(RETRY_AFTER)}
    if isinstance(error, DatabaseError):
        return ProblemError(503, error.code, "The database can't be used", str(error), headers=headers)
    if isinstance(error, BusyError):
        return ProblemError(503, "busy", "The service is busy", str(error), headers=headers)
    detail = "the database can't be reached at the moment; what was accepted before is not lost"
    return ProblemError(503, "database_unavailable", "The database can't be reached", detail, headers=headers)


def handle(app: FastAPI, routes: Sequence[APIRoute], answer_at: Callable[[str, ProblemError], Response]) -> None:
    """Makes the application tell everything that goes wrong as a problem, as `answer_at` a path tells it; `routes` are
    its own."""

    async def answer(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.status == HTTPStatus.METHOD_NOT_ALLOWED:  # the router names the methods of one route only
            problem.headers["Allow"] = ", ".join(sorted(_methods(routes, request.url.path)))
        return answer_at(request.url.path, problem)

    for kind in (ProblemError, HTTPException, RequestValidationError, BusyError, DatabaseError, *database_errors()):
        app.add_exception_handler(kind, answer)


def _methods(routes: Sequence[APIRoute], path: str) -> set[str]:
    return {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}


def problem_of(error: Exception) -> ProblemError:
    """The problem that an exception comes to. What is nobody's fault but ours shows nothing of its inside."""
    import asyncpg

    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        return _http(error)
    ours = (asyncpg.SyntaxOrAccessError, asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)
    if isinstance(error, BusyError | DatabaseError) or (
        isinstance(error, database_errors()) and not isinstance(error, ours)
    ):
        if not isinstance(error, BusyError):
            log.error("database_failed", **error_fields(error))
        return busy(error)
    log.error("request_failed", **error_fields(error))
    return ProblemError(500, "internal", "Something went wrong in the service", "the service's log says what")


def _http(error: HTTPException) -> ProblemError:
    status = HTTPStatus(error.status_code)
    if isinstance(error.__cause__, ValueError) and status == HTTPStatus.BAD_REQUEST:  # of the body: it is no UTF-8
        return ProblemError(400, "invalid_json", "The body is no JSON", "the body is no valid JSON in UTF-8")
    return ProblemError(
        status, status.phrase.lower().replace(" ", "_"), status.phrase, str(error.detail), headers=error.headers
    )


def _invalid(error: RequestValidationError) -> ProblemError:
    """What is wrong with a request, each fault with its place; unknown fields are named."""
    faults = error.errors()
    if any(fault["type"] == "json_invalid" for fault in faults):
        cause = faults[0].get("ctx", {}).get("error", "")
        return ProblemError(400, "invalid_json", "The body is no JSON", f"the body is no valid JSON: {cause}")
    problems = [_fault(fault) for fault in faults[:MAX_PROBLEMS]]
    detail = "; ".join(f"{', '.join(names)}: {text}" if names else text for _, names, text in problems)
    if more := len(faults) - len(problems):
        detail += f"; and {more} more"
    return ProblemError(422, "validation", "The request is not valid", detail, problems=problems)


def _fault(fault: Mapping[str, Any]) -> tuple[str, list[str], str]:
    place = ".".join(str(part)[:100] for part in fault["loc"] if part not in ("body", "query", "path", "header"))
    if fault["type"] == "extra_forbidden":
        return "unknown_field", [place], "there is no such field"
    return str(fault["type"]), [place] if place else [], str(fault["msg"])[:500]
