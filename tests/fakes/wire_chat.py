"""Replies as OpenAI chat completions sends them, plain and streamed."""

from __future__ import annotations

import json
from typing import Any

from .turn import Turn, pieces

CREATED = 1_796_000_000
Json = dict[str, Any]


def frame(data: Any) -> bytes:
    """One server-sent event without a name."""
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def finish_reason(turn: Turn) -> str:
    if turn.finish:
        return turn.finish
    return "length" if turn.cut else "tool_calls" if turn.calls else "stop"


def usage(turn: Turn) -> Json:
    return {
        "prompt_tokens": turn.input_tokens,
        "completion_tokens": turn.output_tokens,
        "total_tokens": turn.input_tokens + turn.output_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": turn.reasoning_tokens, "audio_tokens": 0},
    }


def plain(turn: Turn, body: Json) -> Json:
    """The whole answer."""
    message: Json = {"role": "assistant", "content": turn.text or None, "refusal": turn.refusal or None}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    return {
        "id": f"chatcmpl-fake{turn.number}",
        "object": "chat.completion",
        "created": CREATED,
        "model": turn.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(turn)}],
        **({"usage": usage(turn)} if turn.say_usage else {}),
        "service_tier": "default",
    }


def stream(turn: Turn, body: Json) -> list[bytes]:
    """The first chunk has the role, the last the finish reason; usage follows where asked for, without choices."""
    with_usage = bool((body.get("stream_options") or {}).get("include_usage")) and turn.say_usage
    head = {"id": f"chatcmpl-fake{turn.number}", "object": "chat.completion.chunk", "created": CREATED}
    head["model"] = turn.model

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return frame({**head, "choices": [choice], **({"usage": None} if with_usage else {})})

    frames = [chunk({"role": "assistant", "content": None if turn.calls else "", "refusal": None})]
    frames += [chunk({"reasoning_content": piece}) for piece in pieces(turn.reasoning)]
    frames += [chunk({"content": piece}) for piece in pieces(turn.text)]
    frames += [chunk({"refusal": piece}) for piece in pieces(turn.refusal)]
    for index, call in enumerate(turn.calls):
        function = {"name": call.name, "arguments": ""}
        frames.append(
            chunk({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]})
        )
        frames += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in pieces(call.arguments)
        ]
    frames.append(chunk({}, finish_reason(turn)))
    if with_usage:
        frames.append(frame({**head, "choices": [], "usage": usage(turn)}))
    return [*frames, b"data: [DONE]\n\n"]


def error_body(message: str, param: str | None, code: str | None, status: int) -> Json:
    """An error as OpenAI words it."""
    kinds = {401: "invalid_request_error", 429: "rate_limit_error"}
    kind = kinds.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def stream_error(message: str) -> bytes:
    """An error in the middle of a stream."""
    return frame(error_body(message, None, "server_error", 500))
