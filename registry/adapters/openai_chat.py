"""Chat completions: vLLM, Ollama, llama.cpp, gateways, and OpenAI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar

from registry.errors import LLMConnectionError, OverloadedError, ProviderError, RateLimitError
from registry.llm_types import ChatRequest, Prepared, ToolSpec
from registry.messages import FinishReason, LLMResult, Message, StreamChunk, Usage

from .base import SDKAdapter, Sent, is_forced, transport_failures
from .calls import CallAssembler, RawCall, read_calls
from .clients import SDKClient
from .history import alternating, call_ids, paired, with_json_word
from .lessons import NEEDS_REASONING_ECHO, STRICT_ALTERNATION
from .openai_client import open_openai
from .wire import arguments_text, count, dumps, wire_name

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


class OpenAIChatLLM(SDKAdapter):
    """A model behind chat completions. Parameters: see `SDKAdapter`."""

    dialect = "openai_chat"
    path = "/chat/completions"
    service = "https://api.openai.com/v1"
    sdk = "openai"
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
        return open_openai(self)

    @staticmethod
    def encode_tool(sent: str, tool: ToolSpec) -> Mapping[str, Any]:
        """A function tool."""
        function = {"name": sent, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": function}

    # The request

    def prepare(self, request: ChatRequest) -> Prepared:
        """The body, from each message's memoised bytes."""
        params, droppable = self._params(request)
        limit = params.get(self.lessons.max_tokens_name)
        parts = [self._head, b",".join(self._fragments(request)), b"]"]
        names: Mapping[str, str] = {}
        if request.tools:
            block, names = self._blocks.get(request.tools)
            parts += (b',"tools":', block)
        parts += (b",", dumps(params)[1:]) if params else (b"}",)
        sent = Sent(droppable, self.reasoning(request), is_forced(request), limit)
        return Prepared(request, b"".join(parts), limit, names, sent)

    def _params(self, request: ChatRequest) -> tuple[dict[str, Any], dict[str, str]]:
        """The parameters beside messages and tools; those that can be left out, by the lesson's name."""
        params: dict[str, Any] = {}
        droppable: dict[str, str] = {}

        def offer(name: str, value: Any, lesson: str = "") -> None:
            if (lesson or name) not in self.lessons.dropped:
                params[name] = value
                droppable[lesson or name] = name

        if request.tools:
            if request.tool_choice is not None:
                params["tool_choice"] = _tool_choice(request.tool_choice)
            if self.parallel_tool_calls is not None:
                offer("parallel_tool_calls", self.parallel_tool_calls)
        if request.response_format is not None:
            params["response_format"] = request.response_format
        if request.temperature is not None:
            offer("temperature", request.temperature)
        limit = self.lessons.output_limit(request, request.max_tokens)
        if limit is not None:
            params[self.lessons.max_tokens_name] = limit
        effort = self.effort(request)
        if effort:
            offer("reasoning_effort", effort)
        elif effort == "" and self.may_reason():
            offer("reasoning_effort", "none", "reasoning_off")
        if request.stream:
            params["stream"] = True
            offer("stream_options", {"include_usage": True})
        return params, droppable

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
        self, events: AsyncGenerator[dict[str, Any], None], prepared: Prepared
    ) -> AsyncGenerator[StreamChunk, None]:
        """Reads a stream; usage may come after the finish reason, in a chunk without choices."""
        texts: list[str] = []
        thoughts: list[str] = []
        refusals: list[str] = []
        calls = CallAssembler()
        finish: Any = None
        head: dict[str, Any] = {}
        try:
            async for event in events:
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
        except transport_failures():
            if finish is None:  # lost after the model had finished costs the usage, not the turn
                raise
        if finish is None:
            return
        refusal = "".join(refusals)
        yield StreamChunk(
            result=self._result(
                prepared, "".join(texts), "".join(thoughts), calls.calls(), finish, refusal or None, head
            )
        )


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
