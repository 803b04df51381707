"""Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from registry.errors import LLMError, UsageError
from registry.llm_types import ChatRequest, Prepared, ToolSpec
from registry.messages import FinishReason, LLMResult, Message, StreamChunk, Usage

from .anthropic_history import conversation, system_text, tools_used
from .base import NO_KEY, SDKAdapter, Sent, is_forced, no_client, transport_failures
from .calls import RawCall, read_calls
from .clients import SDKClient
from .failures import REFUSED, RefusedRequestError
from .history import call_ids
from .lessons import NEEDS_TOOLS_DEFINED
from .wire import count, dumps, loads_object, wire_name

STOP_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
    "refusal": "refusal",
}
"""All stop reasons of the Messages API; an unknown one counts as a normal stop."""

DEFAULT_MAX_TOKENS = 8_192
"""`max_tokens` is required: asked for where neither the caller nor the configuration says; a model that takes less
says so, and that is remembered."""

BUDGETS = {"minimal": 1_024, "low": 1_024, "medium": 4_096, "high": 16_384, "xhigh": 32_768, "max": 32_768}
"""Tokens of thinking per effort, for models that know no effort; 1,024 is the smallest that Anthropic takes."""
MIN_BUDGET = 1_024


class AnthropicLLM(SDKAdapter):
    """A model behind Anthropic's Messages API.

    Parameters: see `SDKAdapter`; `prompt_cache`: whether calls with tools mark the conversation for the provider's
    prompt cache (writing costs a quarter more once, reading a tenth after that).
    """

    dialect = "anthropic"
    path = "/v1/messages"
    service = "https://api.anthropic.com"
    sdk = "anthropic"
    defaults: ClassVar[Mapping[str, bool]] = {
        "tool_call": True,
        "tool_choice": True,
        "streaming": True,
        "vision": True,
        "thinking": True,
    }

    def __init__(self, model_id: str, *, prompt_cache: bool = True, **options: Any) -> None:
        super().__init__(model_id, **options)
        self.prompt_cache = prompt_cache

    def _open_client(self) -> SDKClient:
        import anthropic
        import httpx2

        http = self.http(anthropic.DefaultAioHttpClient, httpx2)
        try:
            sdk = anthropic.AsyncAnthropic(
                api_key=self.key or (NO_KEY if self.base_url else None),
                base_url=self.base_url,
                max_retries=0,
                timeout=http.timeout,
                http_client=http,
                default_headers=self.extra_headers or None,
            )
        except anthropic.AnthropicError as error:
            raise no_client(error) from None
        if not (sdk.api_key or sdk.auth_token or sdk.credentials):
            raise no_client(ValueError("no key was given, and ANTHROPIC_API_KEY is not set"))
        key = sdk.api_key or sdk.auth_token or ""
        return SDKClient(sdk, httpx2.Response, (anthropic.AnthropicError, *transport_failures()), key)

    @staticmethod
    def encode_tool(sent: str, tool: ToolSpec) -> Mapping[str, Any]:
        """A tool of the caller's."""
        schema = {"type": "object", **tool.parameters}
        return {"name": sent, "description": tool.description, "input_schema": schema}

    # The request

    def effort(self, request: ChatRequest) -> str | None:
        """As in general; thinking that was asked for is switched off beside a forced tool, where it is refused."""
        effort = super().effort(request)
        return "" if effort and is_forced(request) else effort

    def prepare(self, request: ChatRequest) -> Prepared:
        """The body, from each message's memoised blocks."""
        limit = self.lessons.output_limit(request, request.max_tokens or DEFAULT_MAX_TOKENS) or DEFAULT_MAX_TOKENS
        params, droppable = self._params(request, limit)
        names: Mapping[str, str] = {}
        parts = [b'{"model":', dumps(self.model_id), b',"messages":', conversation(request.messages, self.model_id)]
        if request.tools:
            block, names = self._blocks.get(request.tools)
            parts += (b',"tools":', block)
        elif NEEDS_TOOLS_DEFINED in self.lessons.quirks and (used := tools_used(request.messages)):
            parts += (b',"tools":', dumps(used), b',"tool_choice":{"type":"none"}')
        parts += (b",", dumps(params)[1:])
        sent = Sent(droppable, self.reasoning(request), is_forced(request), limit)
        return Prepared(request, b"".join(parts), limit, names, sent)

    def _params(self, request: ChatRequest, limit: int) -> tuple[dict[str, Any], dict[str, str]]:
        params: dict[str, Any] = {"max_tokens": limit}
        droppable: dict[str, str] = {}

        def offer(name: str, value: Any, lesson: str = "") -> None:
            if (lesson or name) not in self.lessons.dropped:
                params[name] = value
                droppable[lesson or name] = name

        if system := system_text(request.messages):
            params["system"] = system
        if request.tools:
            choice = self._tool_choice(request)
            if choice is not None:
                params["tool_choice"] = choice
            if self.prompt_cache and not is_forced(request):
                offer("cache_control", {"type": "ephemeral"})
        self._add_thinking(request, limit, params, droppable)
        if request.temperature is not None and params.get("thinking", _OFF) == _OFF:
            offer("temperature", request.temperature)
        schema = self.schema_of(request)
        if schema is not None:
            params.setdefault("output_config", {})["format"] = _output_format(schema)
        elif request.response_format is not None:
            raise UsageError(f"{request.response_format.get('type')!r}: Anthropic has no such response format")
        if request.stream:
            params["stream"] = True
        return params, droppable

    def _add_thinking(
        self, request: ChatRequest, limit: int, params: dict[str, Any], droppable: dict[str, str]
    ) -> None:
        effort, dropped = self.effort(request), self.lessons.dropped
        if effort is None:
            return
        if not effort:
            if self.may_reason() and "thinking_off" not in dropped:
                params["thinking"] = _OFF
                droppable["thinking_off"] = "thinking"
            return
        if "thinking" in dropped:
            return
        if "adaptive" not in dropped:
            params["thinking"] = {"type": "adaptive"}
            droppable["adaptive"] = "adaptive"
        else:
            budget = min(BUDGETS.get(effort, BUDGETS["medium"]), limit * 3 // 4)  # the rest is for the answer
            if budget < MIN_BUDGET:
                return
            params["thinking"] = {"type": "enabled", "budget_tokens": budget}
        droppable["thinking"] = "thinking"
        if "effort" not in dropped:
            params["output_config"] = {"effort": "low" if effort == "minimal" else effort}
            droppable["effort"] = "effort"

    def _tool_choice(self, request: ChatRequest) -> dict[str, Any] | None:
        asked = request.tool_choice
        if isinstance(asked, Mapping):
            choice = {"type": "tool", "name": wire_name(asked["name"])}
        elif asked is not None:
            choice = {"type": {"required": "any"}.get(asked, asked)}
        elif self.parallel_tool_calls is None:
            return None
        else:
            choice = {"type": "auto"}
        if self.parallel_tool_calls is not None and choice["type"] != "none":
            return {**choice, "disable_parallel_tool_use": not self.parallel_tool_calls}
        return choice

    def learn(self, error: LLMError, prepared: Prepared) -> bool:
        """As in general; a refusal of adaptive thinking or of an effort speaks of `thinking` too, but means less."""
        message = str(error)
        if isinstance(error, RefusedRequestError) and REFUSED.search(message) and isinstance(prepared.extra, Sent):
            for name in ("effort", "adaptive"):
                if re.search(rf"\b{name}\b", message) and name in {**prepared.extra.params, **self.lessons.dropped}:
                    self.lessons.dropped[name] = name
                    return True
        return super().learn(error, prepared)

    # The reply

    def parse(self, reply: Any, prepared: Prepared) -> LLMResult:
        """Reads a whole message."""
        blocks = [block for block in reply.get("content") or () if isinstance(block, Mapping)]
        raw_calls: list[RawCall] = [
            (block.get("id"), block.get("name"), block.get("input")) for block in blocks if block["type"] == "tool_use"
        ]
        calls = read_calls(raw_calls, prepared.names, call_ids(prepared.request.messages) if raw_calls else ())
        text = "".join(str(block.get("text") or "") for block in blocks if block["type"] == "text")
        thoughts = [str(block.get("thinking") or "") for block in blocks if block["type"] == "thinking"]
        reason = STOP_REASONS.get(str(reply.get("stop_reason")), "stop")
        if calls and reason == "stop":
            reason = "tool_calls"
        elif not calls and reason == "tool_calls":
            reason = "stop"
        keep = any(block["type"] not in ("text", "tool_use") for block in blocks)
        message = Message(
            "assistant",
            text,
            calls,
            reasoning="\n\n".join(filter(None, thoughts)) or None,
            provider={self.dialect: [_as_sent(block) for block in blocks], "model": self.model_id} if keep else None,
        )
        return LLMResult(message, read_usage(reply.get("usage")), reason, str(reply.get("model") or self.model_id))

    async def stream_reply(
        self, events: AsyncGenerator[dict[str, Any], None], prepared: Prepared
    ) -> AsyncGenerator[StreamChunk, None]:
        """Reads a stream, putting its blocks together."""
        blocks: dict[Any, dict[str, Any]] = {}
        reply: dict[str, Any] = {}
        try:
            async for event in events:
                self.check(event)
                kind = event.get("type")
                if kind == "message_start":
                    reply = dict(event.get("message") or {})
                elif kind == "content_block_start":
                    blocks[event.get("index")] = dict(event.get("content_block") or {})
                    if text := blocks[event.get("index")].get("text"):
                        yield StreamChunk(str(text))
                elif kind == "content_block_delta":
                    chunk = _add_delta(blocks.setdefault(event.get("index"), {}), event.get("delta") or {})
                    if chunk is not None:
                        yield chunk
                elif kind == "message_delta":
                    reply["stop_reason"] = (event.get("delta") or {}).get("stop_reason") or reply.get("stop_reason")
                    known = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
                    reply["usage"] = {**(reply.get("usage") or {}), **known}
        except transport_failures():
            if not reply.get("stop_reason"):  # lost after the model had finished costs nothing
                raise
        if reply.get("stop_reason"):
            reply["content"] = [block for _, block in sorted(blocks.items(), key=lambda item: str(item[0]).zfill(9))]
            yield StreamChunk(result=self.parse(reply, prepared))


_OFF = {"type": "disabled"}
_PIECES = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("signature", "signature", "thinking"),
    "input_json_delta": ("partial_json", "input", "tool_use"),
}
"""Kinds of deltas: the field they come in, the block's field they add to, and the kind of block."""


def _add_delta(block: dict[str, Any], delta: Mapping[str, Any]) -> StreamChunk | None:
    kind = delta.get("type")
    if kind not in _PIECES:
        return None
    source, target, block_type = _PIECES[kind]
    block.setdefault("type", block_type)
    piece = str(delta.get(source) or "")
    before = block.get(target)
    block[target] = (before if isinstance(before, str) else "") + piece
    if not piece or kind not in ("text_delta", "thinking_delta"):
        return None
    return StreamChunk(piece) if kind == "text_delta" else StreamChunk(reasoning=piece)


def _as_sent(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """A block as it goes back: a streamed input is a text until here."""
    given = block.get("input")
    return {**block, "input": loads_object(given) or {}} if isinstance(given, str) else block


def _output_format(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    import anthropic

    wanted = dict(schema.get("schema") or {})
    with suppress(ValueError, AssertionError, TypeError):  # the API's own word on it is then the better one
        wanted = anthropic.transform_schema(wanted)  # the API takes part of JSON Schema: the SDK knows which
    return {"type": "json_schema", "schema": wanted}


def read_usage(usage: Any) -> Usage | None:
    """Usage in Anthropic's words: its `input_tokens` leaves out what the cache gave or took, ours does not."""
    if not isinstance(usage, Mapping):
        return None
    plain, made = usage.get("input_tokens"), usage.get("output_tokens")
    if not isinstance(plain, int) or not isinstance(made, int):
        return None
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    details = usage.get("output_tokens_details") or {}
    return Usage(plain + read + written, made, read, written, count(details.get("thinking_tokens")))
