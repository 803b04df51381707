"""Server-sent events as plain JSON objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any

DRAIN_SECONDS = 1.0
"""How long to wait for the body's end after `[DONE]`, so that the connection can be used again."""


def _object(data: str) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def json_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON objects of a stream, as they come. Comments and data that is no JSON object are passed over.

    An object is handed on with its own line, without waiting for the blank line after it; data that spans lines is
    joined. Ends at `[DONE]` or with the body.
    """
    rest = b""
    pending: list[str] = []
    async for chunk in chunks:
        rest += chunk
        if b"\n" not in chunk:
            continue
        *lines, rest = rest.split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r")
            if not line:
                if pending and (value := _object("\n".join(pending))) is not None:
                    yield value
                pending = []
                continue
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip().decode("utf-8", "replace")
            if data.startswith("[DONE]"):
                await _drain(chunks)
                return
            value = None if pending else _object(data)
            if value is None:
                pending.append(data)
            else:
                yield value
    if rest.startswith(b"data:") and (value := _object(rest[5:].decode("utf-8", "replace"))) is not None:
        yield value


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in chunks:
                pass
