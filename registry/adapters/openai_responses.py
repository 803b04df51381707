"""OpenAI's Responses API, stateless: nothing is stored there, and encrypted reasoning goes along with the history."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar

from registry.errors import LLMConnectionError, LLMError, ProviderError
from registry.llm_types import ChatRequest, Prepared, ToolSpec
from registry.messages import FinishReason, LLMResult, Message, StreamChunk, Usage

from . import failures
from .base import SDKAdapter, Sent, is_forced
from .calls import RawCall, read_calls
from .clients import SDKClient
from .history import call_ids, paired, with_json_word
from .openai_client import open_openai
from .wire import arguments_text, count, dumps, wire_name

INCOMPLETE: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""Why a response is incomplete."""
STATUSES: dict[str, FinishReason | type[LLMError]] = {
    "completed": "stop",
    "incomplete": "length",
    "failed": ProviderError,
    "cancelled": LLMConnectionError,
    "in_progress": LLMConnectionError,
    "queued": LLMConnectionError,
}
"""What a response's status makes of the turn; calls turn `stop` into `tool_calls`."""
MAX_CALL_ID = 64
"""Characters that OpenAI takes in a call id."""
ENCRYPTED = "reasoning.encrypted_content"


class OpenAIResponsesLLM(SDKAdapter):
    """A model of OpenAI's behind the Responses API. Parameters: see `SDKAdapter`."""

    dialect = "openai_responses"
    path = "/responses"
    service = "https://api.openai.com/v1"
    sdk = "openai"
    limit_name = "max_output_tokens"
    defaults: ClassVar[Mapping[str, bool]] = {
        "tool_call": True,
        "tool_choice": True,
        "json_mode": True,
        "json_schema": True,
        "streaming": True,
        "vision": True,
        "thinking": True,
    }

    def _open_client(self) -> SDKClient:
        return open_openai(self)

    @staticmethod
    def encode_tool(sent: str, tool: ToolSpec) -> Mapping[str, Any]:
        """A function tool; not strict, since strict mode takes only some schemas."""
        return {
            "type": "function",
            "name": sent,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,
        }

    # The request

    def prepare(self, request: ChatRequest) -> Prepared:
        """The body, from each message's memoised bytes."""
        params, droppable = self._params(request)
        names: Mapping[str, str] = {}
        parts = [b'{"model":', dumps(self.model_id), b',"input":[', b",".join(self._fragments(request)), b"]"]
        if request.tools:
            block, names = self._blocks.get(request.tools)
            parts += (b',"tools":', block)
        parts += (b",", dumps(params)[1:])
        limit = params.get("max_output_tokens")
        sent = Sent(droppable, self.reasoning(request), is_forced(request), limit)
        return Prepared(request, b"".join(parts), limit, names, sent)

    def _params(self, request: ChatRequest) -> tuple[dict[str, Any], dict[str, str]]:
        params: dict[str, Any] = {"store": False}
        droppable: dict[str, str] = {}

        def offer(name: str, value: Any, lesson: str = "") -> None:
            if (lesson or name) not in self.lessons.dropped:
                params[name] = value
                droppable[lesson or name] = name

        offer("include", [ENCRYPTED])
        if request.tools:
            if request.tool_choice is not None:
                params["tool_choice"] = _tool_choice(request.tool_choice)
            if self.parallel_tool_calls is not None:
                offer("parallel_tool_calls", self.parallel_tool_calls)
        schema = self.schema_of(request)
        if schema is not None:
            params["text"] = {"format": {"name": "answer", **schema, "type": "json_schema"}}
        elif request.response_format is not None:
            params["text"] = {"format": request.response_format}
        if request.temperature is not None:
            offer("temperature", request.temperature)
        limit = self.lessons.output_limit(request, request.max_tokens)
        if limit is not None:
            params["max_output_tokens"] = limit
        effort = self.effort(request)
        if effort:
            offer("reasoning", {"effort": effort})
        elif effort == "" and self.may_reason():
            offer("reasoning", {"effort": "none"}, "reasoning_off")
        if request.stream:
            params["stream"] = True
        return params, droppable

    def _fragments(self, request: ChatRequest) -> list[bytes]:
        messages = paired(request.messages)
        if (request.response_format or {}).get("type") == "json_object":
            messages = with_json_word(messages)
        key = f"openai_responses:{self.model_id}"
        fragments = []
        for message in messages:
            known = message.wire.get(key)
            if known is None:
                items = encode_message(message, self.model_id)
                known = message.wire[key] = b",".join(map(dumps, items))
            if known:
                fragments.append(known)
        return fragments

    def learn(self, error: LLMError, prepared: Prepared) -> bool:
        """As in general; models that don't reason refuse to include encrypted reasoning without naming it so."""
        if isinstance(error, failures.RefusedRequestError) and "encrypted content" in str(error).lower():
            self.lessons.dropped["include"] = "include"
            return True
        return super().learn(error, prepared)

    # The reply

    def parse(self, reply: Any, prepared: Prepared) -> LLMResult:
        """Reads a whole response."""
        status = str(reply.get("status") or "completed")
        outcome = STATUSES.get(status, "stop")
        usage = read_usage(reply.get("usage"))
        if not isinstance(outcome, str):
            raise outcome(f"the response ended as {status}", usage=usage)
        items = [item for item in reply.get("output") or () if isinstance(item, Mapping)]
        texts, refusals, thoughts = _texts(items)
        raw_calls: list[RawCall] = [
            (item.get("call_id"), item.get("name"), item.get("arguments"))
            for item in items
            if item.get("type") == "function_call"
        ]
        calls = read_calls(raw_calls, prepared.names, call_ids(prepared.request.messages) if raw_calls else ())
        reason: FinishReason = outcome
        if status == "incomplete":
            reason = INCOMPLETE.get(str((reply.get("incomplete_details") or {}).get("reason")), "length")
        elif calls:
            reason = "tool_calls"
        elif refusals:
            texts, reason = refusals, "refusal"
        keep = any(item.get("type") not in ("message", "function_call") or item.get("phase") for item in items)
        message = Message(
            "assistant",
            "".join(texts),
            calls,
            reasoning="\n\n".join(thoughts) or None,
            provider={self.dialect: items, "model": self.model_id} if keep else None,
        )
        return LLMResult(message, usage, reason, str(reply.get("model") or self.model_id))

    async def stream_reply(
        self, events: AsyncGenerator[dict[str, Any], None], prepared: Prepared
    ) -> AsyncGenerator[StreamChunk, None]:
        """Reads a stream; its last event repeats the whole response."""
        async for event in events:
            kind = event.get("type")
            if kind == "response.output_text.delta":
                yield StreamChunk(str(event.get("delta") or ""))
            elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
                yield StreamChunk(reasoning=str(event.get("delta") or ""))
            elif kind in ("response.completed", "response.incomplete", "response.failed"):
                response = event.get("response") or {}
                self.check(response)
                yield StreamChunk(result=self.parse(response, prepared))
            elif kind == "error":
                raise failures.from_body({"error": event.get("error") or event}, secrets=self._secrets)
            else:
                self.check(event)


def _tool_choice(choice: Any) -> Any:
    return {"type": "function", "name": wire_name(choice["name"])} if isinstance(choice, Mapping) else choice


def _texts(items: list[Mapping[str, Any]]) -> tuple[list[str], list[str], list[str]]:
    """The texts, refusals and thoughts of an output."""
    texts: list[str] = []
    refusals: list[str] = []
    thoughts: list[str] = []
    for item in items:
        if item.get("type") == "reasoning":
            parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
            thoughts.extend(str(part["text"]) for part in parts if part.get("text"))
        elif item.get("type") == "message":
            for part in item.get("content") or ():
                if part.get("type") == "refusal":
                    refusals.append(str(part.get("refusal") or ""))
                elif isinstance(part.get("text"), str):
                    texts.append(part["text"])
    return texts, refusals, thoughts


def call_id(given: str | None) -> str:
    """A call id that OpenAI takes."""
    given = given or ""
    return given if len(given) <= MAX_CALL_ID else f"call_{hashlib.sha256(given.encode()).hexdigest()[:40]}"


def encode_message(message: Message, model_id: str) -> list[Mapping[str, Any]]:
    """A message as input items."""
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": call_id(message.tool_call_id), "output": message.content}]
    if message.role != "assistant":
        empty = message.role == "system" and not message.content.strip()
        return [] if empty else [{"role": message.role, "content": message.content}]
    kept = _kept_items(message, model_id)
    if kept and _unchanged(message, kept):
        return kept
    items: list[Mapping[str, Any]] = []
    if message.content:
        items.append({"role": "assistant", "content": message.content})
    items.extend(
        {
            "type": "function_call",
            "call_id": call_id(call.id),
            "name": wire_name(call.name),
            "arguments": arguments_text(call),
        }
        for call in message.tool_calls
    )
    return [*(item for item in kept if item.get("type") == "reasoning"), *items] if items else []


def _kept_items(message: Message, model_id: str) -> list[Mapping[str, Any]]:
    """What this very model gave; reasoning that is not encrypted can't be sent back."""
    provider = message.provider or {}
    if provider.get("model", model_id) != model_id:
        return []
    items = provider.get(OpenAIResponsesLLM.dialect) or ()
    return [_sendable(item) for item in items if item.get("type") != "reasoning" or item.get("encrypted_content")]


def _sendable(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """A reasoning item has a status when it comes, and must have none when it goes back."""
    if item.get("type") != "reasoning":
        return item
    return {name: value for name, value in item.items() if name != "status"}


def _unchanged(message: Message, items: list[Mapping[str, Any]]) -> bool:
    """Whether the items say what the message says: it may have been cut or repaired since."""
    ids = [item.get("call_id") for item in items if item.get("type") == "function_call"]
    if ids != [call.id for call in message.tool_calls] or not all(call.decoded for call in message.tool_calls):
        return False
    return bool("".join(_texts(items)[0]) == message.content and (ids or message.content))


def read_usage(usage: Any) -> Usage | None:
    """Usage in the words of Responses, where `input_tokens` includes cached ones; None where nothing is said."""
    if not isinstance(usage, Mapping):
        return None
    given, made = usage.get("input_tokens"), usage.get("output_tokens")
    if not isinstance(given, int) or not isinstance(made, int):
        return None
    inputs = usage.get("input_tokens_details") or {}
    outputs = usage.get("output_tokens_details") or {}
    return Usage(
        given,
        made,
        count(inputs.get("cached_tokens")),
        count(inputs.get("cache_write_tokens")),
        count(outputs.get("reasoning_tokens")),
    )
