"""A provider on loopback that speaks three dialects over real HTTP, keeps their rules, and answers by a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from itertools import count
from types import TracebackType
from typing import Any

from aiohttp import web

from . import wire_anthropic, wire_chat, wire_responses
from .rules import Refusal, first_broken
from .turn import Turn, tokens, turn_of
from .view import Reply, View, as_reply, view_of

WIRES: dict[str, Any] = {"chat": wire_chat, "responses": wire_responses, "anthropic": wire_anthropic}
PATHS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "anthropic"}
BAD_KEY = "bad-key"
"""With this key every call is a 401."""
LARGEST_BODY = 64 * 2**20


@dataclass
class Billed:
    """What the server counted and would charge for, answered requests only."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    calls: int = 0
    by_model: dict[str, Billed] = field(default_factory=dict)

    def add(self, turn: Turn, *, top: bool = True) -> None:
        """Counts one turn."""
        self.input_tokens += turn.input_tokens
        self.output_tokens += turn.output_tokens
        self.cached_tokens += turn.cached
        self.reasoning_tokens += turn.reasoning_tokens
        self.calls += 1
        if top:
            self.by_model.setdefault(turn.model, Billed()).add(turn, top=False)


class ProviderFake:
    """Use as `async with ProviderFake(script) as fake`; clients connect to `fake.openai_url` or `fake.anthropic_url`.

    `script` is a function, sync or async, of a View; it answers with text, a list of (tool, arguments), a dict of
    Reply's fields, or a Reply. `views` are the accepted requests, `requests` all bodies as they came, `refusals` the
    broken rules; `billed` is the sum of what was answered; `open` and `most_open` count requests under way.
    """

    def __init__(self, script: Callable[[View], Any] = lambda view: "ok", *, models: tuple[str, ...] = ("fake-model",)):
        self.script = script
        self.models = models
        self.views: list[View] = []
        self.requests: list[dict[str, Any]] = []
        self.refusals: list[Refusal] = []
        self.turns: list[Turn] = []
        self.billed = Billed()
        self.open = self.most_open = 0
        self.port = 0
        self._ids = count(1)
        self._runner: web.AppRunner | None = None

    @property
    def anthropic_url(self) -> str:
        """The base URL for Anthropic's SDK."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI's SDK."""
        return f"{self.anthropic_url}/v1"

    async def __aenter__(self) -> ProviderFake:
        app = web.Application(client_max_size=LARGEST_BODY)
        for path in PATHS:
            app.router.add_post(path, self._answer)
        app.router.add_post("/v1/messages/count_tokens", self._count)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._answered(http)
        finally:
            self.open -= 1

    async def _answered(self, http: web.Request) -> web.StreamResponse:
        dialect = PATHS[http.path]
        raw = await http.read()
        request = _parsed(raw)
        self.requests.append(request if request is not None else {})
        if _key(http) == BAD_KEY:
            return _error(dialect, Reply(status=401, error="Incorrect API key provided."))
        if refusal := first_broken(dialect, raw, request):
            self.refusals.append(refusal)
            return _refused(dialect, refusal)
        assert request is not None  # a body that is no object is refused above
        view = view_of(dialect, request, len(self.views) + 1, dict(http.headers))
        self.views.append(view)
        answer = self.script(view)
        reply = as_reply(await answer if isawaitable(answer) else answer)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.status >= 400:
            return _error(dialect, reply)
        turn = turn_of(reply, view, raw, self._ids)
        self.turns.append(turn)
        self.billed.add(turn)
        return await _sent(http, dialect, reply, turn, request)

    async def _count(self, http: web.Request) -> web.Response:
        return web.json_response({"input_tokens": tokens(await http.read())})

    async def _models(self, http: web.Request) -> web.Response:
        if "anthropic-version" in http.headers:
            date = "2026-01-01T00:00:00Z"
            data = [{"type": "model", "id": name, "display_name": name, "created_at": date} for name in self.models]
            ends = {"has_more": False, "first_id": self.models[0], "last_id": self.models[-1]}
            return web.json_response({"data": data, **ends})
        data = [
            {"id": name, "object": "model", "created": wire_chat.CREATED, "owned_by": "fake"}  # type: ignore[dict-item]
            for name in self.models
        ]
        return web.json_response({"object": "list", "data": data})


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _key(http: web.Request) -> str:
    return http.headers.get("x-api-key") or http.headers.get("authorization", "").removeprefix("Bearer ")


def _refused(dialect: str, refusal: Refusal) -> web.Response:
    rule = refusal.rule
    body = WIRES[dialect].error_body(refusal.message, rule.param, rule.code, rule.status)
    return web.json_response(body, status=rule.status, headers={"request-id": "req_fake"})


def _error(dialect: str, reply: Reply) -> web.Response:
    body = reply.error
    if not isinstance(body, dict):
        code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(reply.status)
        body = WIRES[dialect].error_body(str(body or "The server had an error."), None, code, reply.status)
    return web.json_response(body, status=reply.status, headers=dict(reply.headers))


async def _sent(
    http: web.Request, dialect: str, reply: Reply, turn: Turn, request: dict[str, Any]
) -> web.StreamResponse:
    wire = WIRES[dialect]
    streamed = bool(request.get("stream"))
    if reply.raw is not None:
        frames = [reply.raw]
    elif streamed:
        frames = wire.stream(turn, request)
        if reply.stream_error is not None:
            frames = [*frames[: max(1, len(frames) // 2)], wire.stream_error(reply.stream_error)]
    else:
        frames = [json.dumps(wire.plain(turn, request), ensure_ascii=False).encode()]
    kind = "text/event-stream" if streamed else "application/json"
    response = web.StreamResponse(headers={"content-type": f"{kind}; charset=utf-8", **reply.headers})
    if not streamed:
        response.content_length = sum(map(len, frames))
    await response.prepare(http)
    room = reply.cut_after
    for frame in frames:
        await response.write(frame if room is None else frame[:room])
        if reply.pace:
            await asyncio.sleep(reply.pace)
        if room is not None:
            room -= len(frame)
            if room <= 0:
                await asyncio.sleep(0.02)  # lets what was written go out before the connection breaks
                if http.transport is not None:
                    http.transport.abort()
                return response
    await response.write_eof()
    return response
