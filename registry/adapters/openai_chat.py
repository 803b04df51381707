"""Chat completions: vLLM, Ollama, llama.cpp, gateways, and OpenAI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from ..errors import LLMConnectionError, OverloadedError, ProviderError, RateLimitError
from ..llm import ChatRequest, Prepared, ToolSpec
from ..messages import FinishReason, LLMResult, Message, StreamChunk, Usage
from .base import NO_KEY, SDKAdapter, Sent, is_forced, no_client, transport_failures
from .calls import CallAssembler, RawCall, read_calls
from .clients import SDKClient
from .history import alternating, call_ids, paired
from .lessons import NEEDS_REASONING_ECHO, STRICT_ALTERNATION
from .wire import arguments_text, dumps, wire_name

STOP_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "safety": "content_filter",
    "refusal": "refusal",
}
"""OpenAI's finish reasons, and those that compatible servers use; an unknown one counts as a normal stop."""

BROKEN_OFF = {
    "error": ProviderError,
    "abort": LLMConnectionError,
    "cancelled": LLMConnectionError,
    "network_error": LLMConnectionError,
    "insufficient_system_resource": OverloadedError,
    "rate_limit": RateLimitError,
}
"""Finish reasons that say that the turn failed on the server's side."""

JSON_WORD = "Answer in JSON."
"""Added where JSON mode is on and no message says "json": OpenAI then refuses the request."""


class OpenAIChatLLM(SDKAdapter):
    """A model behind chat completions. Parameters: see `SDKAdapter`."""

    dialect = "openai_chat"
    path = "/chat/completions"
    defaults: ClassVar[Mapping[str, bool]] = {
        "tool_call": True,
        "tool_choice": True,
        "json_mode": True,
        "streaming": True,
    }

    def __init__(self, model_id: str, **options: Any) -> None:
        super().__init__(model_id, **options)
        if self.base_url is None:
            self.lessons.max_tokens_name = "max_completion_tokens"  # OpenAI itself: the old name is deprecated there
        self._head = b'{"model":' + dumps(model_id) + b',"messages":['

    def _open_client(self) -> SDKClient:
        import httpx2
        import openai

        key = self._key or (NO_KEY if self.base_url else None)
        http = self._http(openai.DefaultAioHttpClient, httpx2)
        try:
            sdk = openai.AsyncOpenAI(
                api_key=key,
                base_url=self.base_url,
                max_retries=0,
                timeout=http.timeout,
                http_client=http,
                default_headers=self.extra_headers or None,
            )
        except openai.OpenAIError as error:
            raise no_client(error) from None
        return SDKClient(sdk, httpx2.Response, (openai.OpenAIError, *transport_failures()))

    @staticmethod
    def encode_tool(sent: str, tool: ToolSpec) -> Mapping[str, Any]:
        """A function tool."""
        function = {"name": sent, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": function}

    # The request

    def prepare(self, request: ChatRequest) -> Prepared:
        """The body, from each message's memoised bytes."""
        params = self._params(request)
        limit = params.get(self.lessons.max_tokens_name)
        parts = [self._head, b",".join(self._fragments(request)), b"]"]
        names: Mapping[str, str] = {}
        if request.tools:
            block, names = self._blocks.get(request.tools)
            parts += (b',"tools":', block)
        if params:
            parts += (b",", dumps(params)[1:])
        else:
            parts.append(b"}")
        effort = self.effort(request)
        reasoning = bool(effort) or (effort is None and self.may_reason())
        sent = Sent(params.keys() & _DROPPABLE, reasoning, is_forced(request), limit)
        return Prepared(request, b"".join(parts), limit, names, sent)

    def _params(self, request: ChatRequest) -> dict[str, Any]:
        params: dict[str, Any] = {}
        if request.tools:
            if request.tool_choice is not None:
                params["tool_choice"] = _tool_choice(request.tool_choice)
            if self.parallel_tool_calls is not None:
                params["parallel_tool_calls"] = self.parallel_tool_calls
        if request.response_format is not None:
            params["response_format"] = request.response_format
        if request.temperature is not None:
            params["temperature"] = request.temperature
        limit = self.lessons.output_limit(request, request.max_tokens)
        if limit is not None:
            params[self.lessons.max_tokens_name] = limit
        effort = self.effort(request)
        if effort or (effort == "" and self.may_reason()):
            params["reasoning_effort"] = effort or "none"
        if request.stream:
            params["stream"] = True
            params["stream_options"] = {"include_usage": True}
        for name in self.lessons.dropped:
            params.pop(name, None)
        return params

    def _fragments(self, request: ChatRequest) -> list[bytes]:
        quirks = self.lessons.quirks
        messages = paired(request.messages)
        form = request.response_format
        if form is not None and form.get("type") == "json_object":
            messages = with_json_word(messages)
        if STRICT_ALTERNATION in quirks:
            messages = alternating(messages)
        echo = NEEDS_REASONING_ECHO in quirks
        key = "openai_chat+echo" if echo else "openai_chat"
        fragments = []
        for message in messages:
            known = message.wire.get(key)
            if known is None:
                known = message.wire[key] = encode_message(message, echo)
            if known:
                fragments.append(known)
        return fragments

    # The reply

    def parse(self, reply: Any, prepared: Prepared) -> LLMResult:
        """Reads a whole reply."""
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices:
            raise ProviderError("the provider's reply has no choices")
        choice = choices[0]
        message = choice.get("message") or {}
        calls: list[RawCall] = [_raw_call(call) for call in message.get("tool_calls") or ()]
        if not calls and isinstance(message.get("function_call"), Mapping):
            calls = [_raw_call({"function": message["function_call"]})]
        text, thoughts = read_content(message.get("content"))
        reasoning = _text(message.get("reasoning_content")) or _text(message.get("reasoning")) or thoughts
        finish = choice.get("finish_reason")
        return self._result(prepared, text, reasoning, calls, finish, message.get("refusal"), reply)

    def _result(
        self,
        prepared: Prepared,
        text: str,
        reasoning: str,
        raw_calls: list[RawCall],
        finish: Any,
        refusal: Any,
        reply: Mapping[str, Any],
    ) -> LLMResult:
        if (failure := BROKEN_OFF.get(str(finish))) is not None:
            raise failure(f"the provider broke the turn off: {finish}", usage=read_usage(reply.get("usage")))
        reason = STOP_REASONS.get(str(finish), "stop")
        taken = call_ids(prepared.request.messages) if raw_calls else ()
        calls = read_calls(raw_calls, prepared.names, taken)
        if calls and reason == "stop":
            reason = "tool_calls"
        elif not calls and reason == "tool_calls":
            reason = "stop"
        if refusal and not calls:
            text, reason = str(refusal), "refusal"
        if reasoning and (text or calls):
            self.lessons.reasons = True
        elif reasoning and reason == "stop" and self.effort(prepared.request) in (None, "") and not self.may_reason():
            text, reasoning = reasoning, ""  # nobody asked for thoughts: the answer sits in the wrong field
        message = Message("assistant", text, calls, reasoning=reasoning or None)
        model = reply.get("model")
        return LLMResult(message, read_usage(reply.get("usage")), reason, str(model or self.model_id))

    async def stream_reply(
        self, events: AsyncIterator[dict[str, Any]], prepared: Prepared
    ) -> AsyncIterator[StreamChunk]:
        """Reads a stream; usage may come after the finish reason, in a chunk without choices."""
        texts: list[str] = []
        thoughts: list[str] = []
        refusals: list[str] = []
        calls = CallAssembler()
        finish: Any = None
        head: dict[str, Any] = {}
        async for event in until_lost(events, lambda: finish is not None):
            self.check(event)
            if event.get("model"):
                head["model"] = event["model"]
            if event.get("usage"):
                head["usage"] = event["usage"]
            for choice in event.get("choices") or ():
                finish = choice.get("finish_reason") or finish
                delta = choice.get("delta") or {}
                text, thought = read_content(delta.get("content"))
                thought = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning")) or thought
                for call in delta.get("tool_calls") or ():
                    calls.add(call)
                if delta.get("refusal"):
                    refusals.append(str(delta["refusal"]))
                if thought:
                    thoughts.append(thought)
                if text:
                    texts.append(text)
                if text or thought:
                    yield StreamChunk(text, thought)
        if finish is None:
            return
        refusal = "".join(refusals)
        yield StreamChunk(
            result=self._result(
                prepared, "".join(texts), "".join(thoughts), calls.calls(), finish, refusal or None, head
            )
        )


_DROPPABLE = frozenset({"temperature", "reasoning_effort", "parallel_tool_calls", "stream_options"})


async def until_lost(events: AsyncIterator[dict[str, Any]], finished: Any) -> AsyncIterator[dict[str, Any]]:
    """The events; a connection lost after the model has finished costs the usage, not the turn."""
    lost = transport_failures()
    try:
        async for event in events:
            yield event
    except lost:
        if not finished():
            raise


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping):
        return {"type": "function", "function": {"name": wire_name(choice["name"])}}
    return choice


def encode_message(message: Message, echo: bool = False) -> bytes:
    """A message's JSON; nothing for an empty system text or an empty turn of the model."""
    if message.role == "tool":
        return dumps({"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content})
    if message.role != "assistant":
        if message.role == "system" and not message.content.strip():
            return b""
        return dumps({"role": message.role, "content": message.content})
    data: dict[str, Any] = {"role": "assistant", "content": message.content or None}
    if echo:
        data["reasoning_content"] = message.reasoning or ""
    if message.tool_calls:
        data["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": wire_name(call.name), "arguments": arguments_text(call)},
            }
            for call in message.tool_calls
        ]
    elif not message.content:
        return b""
    return dumps(data)


def with_json_word(messages: list[Message]) -> list[Message]:
    """The conversation with the word "json" in it: unchanged where it is, else added to the last user text."""
    if any(_says_json(message) for message in messages):
        return messages
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].role == "user":
            text = f"{messages[at].content}\n\n{JSON_WORD}".lstrip()
            return [*messages[:at], Message.user(text), *messages[at + 1 :]]
    return [*messages, Message.user(JSON_WORD)]


def _says_json(message: Message) -> bool:
    known = message.wire.get("says_json")
    if known is None:
        known = message.wire["says_json"] = "json" in message.content.lower()
    return bool(known)


def _raw_call(call: Mapping[str, Any]) -> RawCall:
    function = call.get("function") or {}
    return call.get("id"), function.get("name"), function.get("arguments")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def read_content(content: Any) -> tuple[str, str]:
    """Text and thoughts of a content that is a string or a list of parts."""
    if isinstance(content, str):
        return content, ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type") in ("thinking", "reasoning"):
            inner = part.get("thinking", part.get("text", part.get("reasoning")))
            thoughts.append(inner if isinstance(inner, str) else read_content(inner)[0])
        elif isinstance(part, Mapping):
            texts.append(_text(part.get("text")))
    return "".join(texts), "".join(thoughts)


def read_usage(usage: Any) -> Usage | None:
    """Usage in OpenAI's words, where `prompt_tokens` includes cached ones; None where the server says nothing."""
    if not isinstance(usage, Mapping):
        return None
    given, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(given, int) or not isinstance(made, int):
        return None
    inputs = usage.get("prompt_tokens_details") or {}
    outputs = usage.get("completion_tokens_details") or {}
    return Usage(
        given,
        made,
        count(inputs.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")),
        count(inputs.get("cache_write_tokens")),
        count(outputs.get("reasoning_tokens")),
    )


def count(value: Any) -> int:
    """A number of tokens; 0 where it is missing or nonsense."""
    return max(0, value) if isinstance(value, int) else 0
