"""Checks of the body itself, the same for all dialects."""

from __future__ import annotations

import json

from .common import Request, strings

FIRST_SURROGATE, LAST_SURROGATE = "\ud800", "\udfff"


def valid_json(body: bytes) -> str | None:
    """The raw body: UTF-8 that holds one JSON object, without NaN and Infinity."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        return "The request body is not valid UTF-8."
    except ValueError:
        return "We could not parse the JSON body of your request."
    return None if isinstance(value, dict) else "The request body must be a JSON object."


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def no_lone_surrogate(request: Request) -> str | None:
    for text in strings(request):
        if any(FIRST_SURROGATE <= char <= LAST_SURROGATE for char in text):
            return "The request body is not valid JSON: no low surrogate in string"
    return None
