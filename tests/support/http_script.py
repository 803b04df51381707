"""A server on loopback that answers from a script: statuses, bodies, pieces of streams, and broken connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web


@asynccontextmanager
async def serving(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """A server on loopback where one function answers all requests; yields its port."""
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@dataclass
class Answer:
    """One answer. `chunks` makes it a stream of these texts; `cut` breaks the connection off after them."""

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Sequence[str] | None = None
    cut: bool = False
    delay: float = 0.0


class HttpScript:
    """Use as `async with HttpScript(answers) as server`; clients connect to `server.url`.

    `answers` is a list (the last one is repeated) or a function of the request's JSON body. `bodies` are the requests'
    bodies, `headers` their headers; `most` is how many were under way at once.
    """

    def __init__(self, answers: Iterable[Answer] | Callable[[Any], Answer]) -> None:
        self._of = answers if callable(answers) else None
        self._answers = [] if callable(answers) else list(answers)
        self.bodies: list[Any] = []
        self.headers: list[Mapping[str, str]] = []
        self.open = 0
        self.most = 0
        self.url = ""

    async def __aenter__(self) -> HttpScript:
        self._serving = serving(self._handle)
        self.url = f"http://127.0.0.1:{await self._serving.__aenter__()}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._serving.__aexit__(None, None, None)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        answer = self._of(body) if self._of is not None else self._answers[0]
        if len(self._answers) > 1:
            del self._answers[0]
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            if answer.delay:
                await asyncio.sleep(answer.delay)
            return await self._answer(request, answer)
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        if answer.chunks is None:
            if answer.cut and request.transport is not None:
                request.transport.abort()
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            kind = "application/json" if not isinstance(answer.body, str) else "text/plain"
            return web.Response(text=text, status=answer.status, headers=answer.headers, content_type=kind)
        headers = {"Content-Type": "text/event-stream", **answer.headers}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        for chunk in answer.chunks:
            await response.write(chunk.encode())
            await asyncio.sleep(0)
        if answer.cut and request.transport is not None:
            request.transport.abort()
        else:
            await response.write_eof()
        return response


def chat_reply(content: Any = "ok", **more: Any) -> dict[str, Any]:
    """A chat completion; `more`: fields of the message, finish_reason, usage."""
    finish = more.pop("finish_reason", "stop")
    usage = more.pop("usage", {"prompt_tokens": 5, "completion_tokens": 2})
    message = {"role": "assistant", "content": content, **more}
    return {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


def chat_chunks(*chunks: Mapping[str, Any], finish: str | None = "stop", done: bool = True) -> list[str]:
    """Chunks of a streamed chat completion as server-sent events, closed by a finish reason."""
    events = [json.dumps(chunk) for chunk in chunks]
    if finish is not None:
        at = next((n for n, chunk in enumerate(chunks) if not chunk["choices"]), len(events))
        events.insert(at, json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    return [f"data: {event}\n\n" for event in events] + (["data: [DONE]\n\n"] if done else [])


def claude_reply(*content: Mapping[str, Any], stop: str = "end_turn", **usage: int) -> dict[str, Any]:
    """A message of Anthropic's."""
    counts = {"input_tokens": 5, "output_tokens": 2, **usage}
    blocks = list(content) or [{"type": "text", "text": "ok"}]
    return {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": blocks,
        "stop_reason": stop,
        "usage": counts,
    }


def claude_events(*events: Mapping[str, Any]) -> list[str]:
    """Events of a streamed message of Anthropic's."""
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def response_reply(*output: Mapping[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    """A response of OpenAI's Responses."""
    text = {"type": "output_text", "text": "ok"}
    items = list(output) or [{"type": "message", "role": "assistant", "content": [text]}]
    usage = {"input_tokens": 5, "output_tokens": 2}
    return {
        "object": "response",
        "model": "m",
        "status": status,
        "output": items,
        "usage": usage,
        "error": None,
        **more,
    }
