"""What went wrong at a provider, as one of our errors: one table for all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from registry.errors import (
    AuthError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    LLMConnectionError,
    LLMError,
    LLMTimeoutError,
    OverloadedError,
    ProviderError,
    QuotaError,
    RateLimitError,
)
from registry.messages import Usage
from registry.redaction import redact_error
from registry.text import cut_middle

MAX_ERROR_CHARS = 2_000
"""An error's text is cut to this many characters: some gateways send whole pages."""

STATUSES: dict[int, type[LLMError]] = {
    400: BadRequestError,
    401: AuthError,
    402: QuotaError,
    403: AuthError,
    404: BadRequestError,
    405: BadRequestError,
    408: LLMTimeoutError,
    409: ProviderError,
    413: ContextLengthError,
    422: BadRequestError,
    425: OverloadedError,
    429: RateLimitError,
    498: OverloadedError,
    503: OverloadedError,
    504: LLMTimeoutError,
    524: LLMTimeoutError,
    529: OverloadedError,
}
"""Other statuses: BadRequestError below 500, ProviderError from there on."""

CODES: dict[str, type[LLMError]] = {
    "insufficient_quota": QuotaError,
    "billing_hard_limit_reached": QuotaError,
    "billing_not_active": QuotaError,
    "billing_error": QuotaError,
    "rate_limit_exceeded": RateLimitError,
    "rate_limit_error": RateLimitError,
    "overloaded_error": OverloadedError,
    "overloaded": OverloadedError,
    "server_overloaded": OverloadedError,
    "engine_overloaded": OverloadedError,
    "slow_down": OverloadedError,
    "authentication_error": AuthError,
    "invalid_api_key": AuthError,
    "permission_error": AuthError,
    "context_length_exceeded": ContextLengthError,
    "exceed_context_size_error": ContextLengthError,
    "request_too_large": ContextLengthError,
    "content_filter": ContentFilterError,
    "content_policy_violation": ContentFilterError,
    "bio_policy": ContentFilterError,
    "misalignment_policy_violation": ContentFilterError,
    "timeout_error": LLMTimeoutError,
}
"""Codes and types in an error's body that say more than the status."""

VAGUE_CODES: dict[str, type[LLMError]] = {
    "invalid_request_error": BadRequestError,
    "invalid_prompt": BadRequestError,
    "not_found_error": BadRequestError,
}
"""Codes that count only where there is no status: in streams, and in errors that come as 200."""

_TOO_LONG = re.compile(
    r"prompt is too long|maximum context length|exceeds? (?:the )?(?:available |model'?s? |maximum )*context"
    r"|context (?:length|window|size) (?:was |is )?exceeded|exceeds? the maximum number of tokens"
    r"|longer than the maximum model length|input is too long|reduce the length of the (?:messages|input|prompt)",
    re.IGNORECASE,
)
_SIZES = (
    re.compile(r"tokens? > (\d+) maximum"),
    re.compile(r"maximum context length (?:is|of) (\d+)"),
    re.compile(r"maximum model length of (\d+)"),
    re.compile(r"exceeds? context limit: \d+ \+ \d+ > (\d+)"),
    re.compile(r"maximum number of tokens allowed \(?(\d+)"),
    re.compile(r"context (?:length|window|size)(?: of| is|:)?(?: only)? \(?(\d+)"),
)
_QUOTA = re.compile(r"current quota|credit balance is too low|out of credits|insufficient (?:balance|credits)", re.I)
_OVERLOADED = re.compile(r"overloaded|over capacity|at capacity", re.IGNORECASE)
_HINT = re.compile(
    r"(?:try again|retry|retry after|wait)(?: again)?(?: in| after)? "
    r"(?:(\d+)h)?\s*(?:(\d+)m(?!s))?\s*(?:(\d+(?:\.\d+)?)\s*(ms|s\b|sec|milliseconds))?",
    re.IGNORECASE,
)

MECHANISMS = (
    ("tool_choice", re.compile(r"tool[ _]choice|forced tool", re.IGNORECASE)),
    ("response_format", re.compile(r"response[ _]format|json_object|json_schema|structured output", re.IGNORECASE)),
    ("tools", re.compile(r"\btools?\b|function call", re.IGNORECASE)),
)
"""How to tell from its text which mechanism a 400 refuses, where it names no parameter."""
REFUSED = re.compile(
    r"unsupported|not support|n't support|deprecated|unknown|unrecogni[sz]ed|unexpected|not permitted|not allowed"
    r"|incompatible|not available|not enabled|only the default|may only be set|cannot be used|must be passed back"
    r"|requires? .{0,40}(?:flag|enable)|use .{0,40}instead",
    re.IGNORECASE,
)
"""Words by which servers say that they don't take a parameter or a mechanism."""


class RefusedRequestError(BadRequestError):
    """The provider refused the request.

    `provider_code` is the provider's own code, "" where there is none.
    """

    provider_code = ""


def from_response(
    status: int, headers: Mapping[str, str], text: str, *, now: float, secrets: Collection[str] = ()
) -> LLMError:
    """The error that a response with an error status is. `now`: seconds since the epoch, for Retry-After dates."""
    try:
        body = json.loads(text) if text else None
    except ValueError:
        body = None
    return _error(_details(body), text, status, retry_after(headers, text, now), secrets)


def from_body(body: Any, *, secrets: Collection[str] = ()) -> LLMError:
    """The error that stands in a body or in a stream, without a status of its own."""
    text = json.dumps(body, ensure_ascii=False, default=str)
    return _error(_details(body), text, None, retry_after({}, text, 0.0), secrets)


def from_exception(error: BaseException, secrets: Collection[str] = ()) -> LLMError:
    """The error that a failed exchange is: no answer in time, or a connection that failed or broke off. Where there
    never was a connection, nothing was sent and it cost nothing."""
    import aiohttp

    root: BaseException = error
    late = unsent = False
    while True:
        late = late or isinstance(root, TimeoutError)
        unsent = unsent or isinstance(root, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        if root.__cause__ is None:
            break
        root = root.__cause__
    # the SDKs' aiohttp transport calls a lost connection a ConnectTimeout: only a real time-out is one
    late = late or (type(root).__name__.endswith("Timeout") and type(root).__module__.startswith("httpx"))
    text = redacted(str(root) or type(root).__name__, secrets)
    usage = Usage.zero() if unsent else None
    if late:
        return LLMTimeoutError(f"The provider did not answer in time: {text}", usage=usage)
    return LLMConnectionError(f"The connection to the provider failed: {text}", usage=usage)


def redacted(text: str, secrets: Collection[str] = ()) -> str:
    """The text without keys, and not endless."""
    return cut_middle(redact_error(text, secrets), MAX_ERROR_CHARS)


def _details(body: Any) -> dict[str, Any]:
    """The part of a body that tells of the error, whichever way servers wrap it."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error", body.get("detail", body))
    if isinstance(inner, str):
        return {"message": inner, "code": body.get("code"), "type": body.get("type")}
    if not isinstance(inner, Mapping):
        return {"message": json.dumps(inner, default=str)}
    return dict(inner)


def _error(
    details: dict[str, Any], text: str, status: int | None, wait: float | None, secrets: Collection[str]
) -> LLMError:
    message = details.get("message")
    message = message if isinstance(message, str) and message else text
    kind = _kind(details, message, status, wait)
    shown = redacted(message, secrets)
    if status is not None:
        shown = f"{shown} (HTTP {status})" if shown.strip() else f"HTTP {status} without an explanation"
    if kind is ContextLengthError:
        return ContextLengthError(shown, context_size=context_size(details, message), status=status)
    if kind is BadRequestError:
        code = str(details.get("code") or details.get("type") or "")
        refused = RefusedRequestError(shown, status=status, param=_param(details, message))
        refused.provider_code = code
        return refused
    return kind(shown, status=status, retry_after=wait)


def _kind(details: dict[str, Any], message: str, status: int | None, wait: float | None) -> type[LLMError]:
    for key in ("code", "type", "status"):
        known = CODES.get(str(details.get(key)).lower())
        if known is not None:
            return known
    if status in (400, 413, 422, None) and (_TOO_LONG.search(message) or "exceed context limit" in message):
        return ContextLengthError
    if status in (400, 402, 403, 429, None) and wait is None and _QUOTA.search(message):
        return QuotaError
    if (status is None or status >= 500) and _OVERLOADED.search(message):
        return OverloadedError
    if status is None:
        code = details.get("code")
        if isinstance(code, int) and 400 <= code < 600:  # gateways put the status there
            return _kind({}, message, code, wait)
        return VAGUE_CODES.get(str(details.get("type")), VAGUE_CODES.get(str(code), ProviderError))
    return STATUSES.get(status, BadRequestError if status < 500 else ProviderError)


def _param(details: dict[str, Any], message: str) -> str | None:
    given = details.get("param")
    if isinstance(given, str) and given:
        return given
    if REFUSED.search(message):
        for name, words in MECHANISMS:
            if words.search(message):
                return name
    return None


def context_size(details: Mapping[str, Any], message: str) -> int | None:
    """The context's size in tokens, where an error names it."""
    known = details.get("n_ctx")
    if isinstance(known, int):
        return known
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", message)
    for pattern in _SIZES:
        if match := pattern.search(plain):
            return int(match[1])
    return None


def retry_after(headers: Mapping[str, str], text: str, now: float) -> float | None:
    """Seconds that the provider asks to wait: retry-after-ms, Retry-After as seconds or date, or words in the body."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            return max(0.0, float(value) / unit)
        except ValueError:
            try:
                return max(0.0, parsedate_to_datetime(value).timestamp() - _server_time(headers, now))
            except ValueError:
                continue
    for match in _HINT.finditer(text):
        hours, minutes, number, unit_name = match.groups()
        if hours or minutes or number:
            scale = 0.001 if (unit_name or "").lower() in ("ms", "milliseconds") else 1.0
            return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(number or 0) * scale
    return None


def _server_time(headers: Mapping[str, str], now: float) -> float:
    """The server's own clock, so that a wrong one on either side does not matter."""
    try:
        return parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (ValueError, TypeError):
        return now
