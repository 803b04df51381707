"""Problems in the shape that clients of OpenAI's API know: {"error": {message, type, param, code}}."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from executor.service.problems import ProblemError
from executor.service.state import reply

PATHS = ("/v1/chat", "/v1/models")
"""The paths at which, and below which, errors are told so."""
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's types of errors by status; others are the request's fault below 500 and the server's from there on."""
NO_RETRY = {"x-should-retry": "false"}
"""Clients of OpenAI's ask anew by themselves unless this stands in the answer: the work would be paid for again."""

_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": _TEXT, "type": _TEXT, "param": {"type": ["string", "null"]}, "code": _TEXT},
        }
    },
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "What went wrong, as OpenAI tells it",
        "content": {"application/json": {"schema": _ERROR}},
    }
}
"""What every route of this kind may answer beside what it is asked for."""


def is_chat(path: str) -> bool:
    """Whether errors at a path are told as OpenAI tells them, also where there is no route."""
    return any(path == head or path.startswith(f"{head}/") for head in PATHS)


def refused(message: str, param: str | None, code: str = "unsupported_parameter", status: int = 400) -> ProblemError:
    """A request that can't be done; `param` names the field that says so."""
    return ProblemError(status, code, "The request can't be answered", message, param=param)


def error_of(problem: ProblemError) -> dict[str, object]:
    """The problem as a client of OpenAI's reads it; `code` is the one that the rest of the service has for it."""
    status = _status(problem)
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    message, code = problem.body["detail"], problem.body["code"]
    return {"error": {"message": message, "type": kind, "param": _param(problem), "code": code}}


def response_of(problem: ProblemError) -> Response:
    """The answer that says it."""
    return reply(error_of(problem), _status(problem), problem.headers)


def answer_at(path: str, problem: ProblemError) -> Response:
    """The answer that says it, in the shape that clients of this path know."""
    return response_of(problem) if is_chat(path) else problem.response()


def _status(problem: ProblemError) -> int:
    """A field that can't be taken is a bad request at OpenAI's; 422 is kept for work that came to nothing."""
    return 400 if problem.status == 422 and "problems" in problem.body else problem.status


def _param(problem: ProblemError) -> str | None:
    if "param" in problem.body:
        named: str | None = problem.body["param"]
        return named
    places = [name for _, names, _ in problem.body.get("problems", ()) for name in names]
    return places[0] if places else None
