"""What the three adapters share: the client, one exchange, one stream, and what is remembered of a model's server."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar

from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import ConfigError, LLMConnectionError, LLMError, ProviderError, UsageError
from registry.gate import Gate, shared_gate
from registry.gate_limits import NO_LIMITS, Limits
from registry.llm import LLM
from registry.llm_types import INHERIT, ChatRequest, Prepared, ToolSpec
from registry.messages import StreamChunk
from registry.prices import Price
from registry.redaction import know_secret, know_url
from registry.retry import RetryPolicy

from . import failures
from .clients import CONNECT_SECONDS, KEEPALIVE_SECONDS, MAX_CONNECTIONS, LoopClients, SDKClient
from .lessons import QUIRKS, Lessons, Sent
from .sse import json_events
from .wire import ToolBlocks

_OPTIONS = {"headers": {"Content-Type": "application/json"}}
NO_KEY = "none"
"""Sent as the key to servers that were given an address but no key: they need none, and SDKs insist on one."""


class SDKAdapter(LLM):
    """A model behind one of the official SDKs.

    `timeout`: seconds without a byte from the server before a call counts as lost. `reasoning_effort`: None leaves the
    provider's default. `server`: known quirks of a compatible server, of `QUIRKS`. `extra_headers` go with every
    request. Without `base_url` the SDK's own default (and its environment variables) hold; with one and without
    `api_key`, no key is taken from the environment. Nothing is imported or opened before the first call. Without a
    `gate` it shares the process's one for its address, key and model.
    """

    path: ClassVar[str]
    defaults: ClassVar[Mapping[str, bool]]
    limit_name: ClassVar[str] = "max_tokens"
    service: ClassVar[str]
    """The address of the provider's own service."""
    sdk: ClassVar[str]
    """The SDK's package."""

    def __init__(
        self,
        model_id: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        abilities: Mapping[str, bool] | None = None,
        context_size: int | None = None,
        max_output_tokens: int | None = None,
        price: Price | None = None,
        timeout: float = 600.0,
        extra_headers: Mapping[str, str] | None = None,
        parallel_tool_calls: bool | None = None,
        reasoning_effort: str | None = None,
        server: Iterable[str] | str | None = None,
        max_connections: int = MAX_CONNECTIONS,
        retry: RetryPolicy | None = None,
        gate: Gate | None = None,
        limits: Limits = NO_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
        name: str | None = None,
    ) -> None:
        super().__init__(
            model_id,
            abilities={**self.defaults, **(abilities or {})},
            context_size=context_size,
            max_output_tokens=max_output_tokens,
            price=price,
            retry=retry,
            gate=gate or shared_gate(base_url or self.service, api_key, model_id, clock),
            limits=limits,
            clock=clock,
            name=name,
        )
        quirks = {server} if isinstance(server, str) else set(server or ())
        if unknown := quirks - set(QUIRKS):
            raise UsageError(f"unknown server quirks {', '.join(sorted(unknown))}: there are {', '.join(QUIRKS)}")
        self.base_url = base_url
        self.timeout = timeout
        self.extra_headers = dict(extra_headers or {})
        self.parallel_tool_calls = parallel_tool_calls
        self.reasoning_effort = reasoning_effort
        self.max_connections = max_connections
        self.lessons = Lessons(self.limit_name, quirks=quirks)
        self.key = api_key
        self._secrets = {*((api_key,) if api_key else ()), *_secret_values(self.extra_headers)}
        for secret in self._secrets:
            know_secret(secret)
        know_url(base_url)
        self._blocks = ToolBlocks(self.encode_tool)
        # made from a copy without the clients: else the clients would hold themselves, and wait for the collector
        self._clients = LoopClients(copy.copy(self)._open_client)

    @property
    def endpoint(self) -> str:
        """The address of the server; the provider's own where none was given."""
        return self.base_url or self.service

    @abstractmethod
    def _open_client(self) -> SDKClient:
        """Makes the SDK's client; imports the SDK."""

    @staticmethod
    @abstractmethod
    def encode_tool(sent: str, tool: ToolSpec) -> Mapping[str, Any]:
        """A tool as the provider wants it described, under the name it is sent by."""

    @abstractmethod
    def stream_reply(
        self, events: AsyncGenerator[dict[str, Any], None], prepared: Prepared
    ) -> AsyncGenerator[StreamChunk, None]:
        """Reads a stream's objects; the last chunk has the result."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r})"

    def effort(self, request: ChatRequest) -> str | None:
        """The reasoning effort to ask for: "" for reasoning off, None for the provider's default."""
        asked = request.reasoning_effort
        effort = self.reasoning_effort if asked is INHERIT else (asked or "")
        if self.lessons.no_reasoning_when_forced and is_forced(request):
            effort = ""
        return effort  # type: ignore[return-value]

    def schema_of(self, request: ChatRequest) -> Mapping[str, Any] | None:
        """The schema of a `json_schema` response format: the mapping with name, schema and strict."""
        form = request.response_format or {}
        return (form.get("json_schema") or form) if form.get("type") == "json_schema" else None

    def may_reason(self) -> bool:
        """Whether the model is known to reason: only then is there anything to switch off."""
        return self.reasoning_effort is not None or self.lessons.reasons or self.abilities["thinking"]

    def reasoning(self, request: ChatRequest) -> bool:
        """Whether the model may reason on this request, as far as we know."""
        effort = self.effort(request)
        return bool(effort) or (effort is None and self.may_reason())

    def learn(self, error: LLMError, prepared: Prepared) -> bool:
        """Takes in what a refusal teaches: parameters to drop or rename, limits, the server's quirks."""
        return self.lessons.learn(error, prepared)

    def warm_up(self) -> None:
        """Imports the SDK, its transport and the certificates."""
        sdk = import_module(self.sdk)
        sdk.DefaultAioHttpClient  # noqa: B018 - it is imported on first use, too
        transport_failures()
        _ssl_context()

    async def aclose(self) -> None:
        """Closes the running loop's client; a later call opens a new one."""
        await self._clients.aclose()

    async def send(self, prepared: Prepared) -> Any:
        """One HTTP exchange; the reply as plain JSON."""
        response = await self._post(prepared, stream=False)
        return self._json(response.content)

    async def open_stream(self, prepared: Prepared) -> AsyncGenerator[StreamChunk, None]:
        """One HTTP exchange, its reply piece by piece."""
        response = await self._post(prepared, stream=True)
        failures_of = self._clients.get().failures
        failed: BaseException | None = None
        done = False
        try:
            if "json" in response.headers.get("content-type", ""):  # a server that does not stream
                yield StreamChunk(result=self.parse(self._json(await response.aread()), prepared))
                return
            async with (
                aclosing(json_events(response.aiter_bytes())) as events,
                aclosing(self.stream_reply(events, prepared)) as chunks,
            ):
                async for chunk in chunks:
                    done = done or chunk.result is not None
                    yield chunk
        except failures_of as error:
            failed = error
        finally:
            await response.aclose()
        if failed is not None:
            raise self._failure(failed)
        if not done:
            raise LLMConnectionError("the stream ended before the model had finished")

    async def _post(self, prepared: Prepared, *, stream: bool) -> Any:
        client = self._clients.get()
        if client.key and client.key not in self._secrets:  # a key that the SDK took from the environment
            self._secrets.add(client.key)
            know_secret(client.key)
        try:
            return await client.sdk.post(
                self.path,
                cast_to=client.response,
                content=prepared.body,
                options=_OPTIONS,
                **({"stream": True, "stream_cls": object} if stream else {}),
            )
        except client.failures as error:
            failed: BaseException = error
        # raised out here, so that no traceback shows the SDK's own text: servers repeat keys in it
        raise self._failure(failed)

    def _failure(self, error: BaseException) -> LLMError:
        if isinstance(error, LLMError):
            return error
        response = getattr(error, "response", None)
        if response is None:
            return failures.from_exception(error, self._secrets)
        return failures.from_response(
            response.status_code, response.headers, response.text, now=self.clock.time(), secrets=self._secrets
        )

    def _json(self, content: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(content)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            start = failures.redacted(content[:2_000].decode("utf-8", "replace"), self._secrets)
            raise ProviderError(f"the provider's reply is no JSON object: {start[:200]}")
        self.check(reply)
        return reply

    def check(self, reply: Mapping[str, Any]) -> None:
        """Raises the error that stands in a reply or in a piece of a stream."""
        if reply.get("error"):
            raise failures.from_body(reply, secrets=self._secrets)

    def http(self, client_type: Any, httpx2: Any) -> Any:
        """The SDK's aiohttp client with our limits."""
        return client_type(
            verify=_ssl_context(),
            timeout=httpx2.Timeout(self.timeout, connect=min(CONNECT_SECONDS, self.timeout), pool=None),
            limits=httpx2.Limits(
                max_connections=self.max_connections,
                max_keepalive_connections=self.max_connections,
                keepalive_expiry=KEEPALIVE_SECONDS,
            ),
        )


@lru_cache(maxsize=1)
def _ssl_context() -> Any:
    """One for all clients: reading the certificates takes longer than all the rest of a client."""
    import httpx2

    return httpx2.create_ssl_context()


def _secret_values(headers: Mapping[str, str]) -> list[str]:
    """Values of headers that look like keys."""
    return [
        value
        for name, value in headers.items()
        if any(word in name.lower() for word in ("auth", "key", "token", "secret", "cookie"))
    ]


def transport_failures() -> tuple[type[Exception], ...]:
    """What the HTTP layers below the SDKs may let through."""
    import aiohttp
    import httpx2

    return (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, aiohttp.ClientError, OSError)


def is_forced(request: ChatRequest) -> bool:
    """Whether the request forces a tool call."""
    return bool(request.tools) and request.tool_choice not in (None, "auto", "none")


def no_client(error: Exception) -> ConfigError:
    """The error of an SDK that can't be set up: most often a missing key."""
    return ConfigError(f"The provider's client can't be set up: {failures.redacted(str(error))}")


__all__ = ["NO_KEY", "SDKAdapter", "Sent", "is_forced", "no_client", "transport_failures"]
