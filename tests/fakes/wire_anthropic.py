"""Replies as Anthropic Messages sends them, plain and streamed."""

from __future__ import annotations

import json
from typing import Any

from .common import json_object, seal
from .turn import Turn, pieces

Json = dict[str, Any]


def frame(data: Json) -> bytes:
    """One server-sent event, named by its type."""
    return f"event: {data['type']}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def stop_reason(turn: Turn) -> str:
    if turn.finish:
        return turn.finish
    if turn.refusal:
        return "refusal"
    return "max_tokens" if turn.cut else "tool_use" if turn.calls else "end_turn"


def usage(turn: Turn) -> Json:
    """Here the input leaves the cached tokens out."""
    return {
        "input_tokens": turn.input_tokens - turn.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": turn.cached,
        "output_tokens": turn.output_tokens,
        "service_tier": "standard",
    }


def blocks(turn: Turn) -> list[Json]:
    found: list[Json] = []
    if turn.reasoning:
        found.append({"type": "thinking", "thinking": turn.reasoning, "signature": seal(turn.reasoning, "sig")})
    if turn.text or turn.refusal:
        found.append({"type": "text", "text": turn.text or turn.refusal, "citations": None})
    for call in turn.calls:
        found.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json_object(call.arguments) or {}})
    return found


def plain(turn: Turn, body: Json) -> Json:
    """The whole answer."""
    return {
        "id": f"msg_fake{turn.number}",
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": blocks(turn),
        "stop_reason": stop_reason(turn),
        "stop_sequence": None,
        **({"usage": usage(turn)} if turn.say_usage else {}),
    }


def stream(turn: Turn, body: Json) -> list[bytes]:
    """message_start, a ping, the blocks, message_delta with the stop reason and the output tokens, message_stop."""
    start = plain(turn, body) | {"content": [], "stop_reason": None, "usage": {**usage(turn), "output_tokens": 1}}
    frames = [frame({"type": "message_start", "message": start}), frame({"type": "ping"})]
    calls = iter(turn.calls)
    for index, block in enumerate(blocks(turn)):
        empty, deltas = _deltas(block, next(calls).arguments if block["type"] == "tool_use" else "")
        frames.append(frame({"type": "content_block_start", "index": index, "content_block": empty}))
        frames += [frame({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas]
        frames.append(frame({"type": "content_block_stop", "index": index}))
    delta = {"stop_reason": stop_reason(turn), "stop_sequence": None}
    final: Json = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": turn.output_tokens}}
    return [*frames, frame(final), frame({"type": "message_stop"})]


def _deltas(block: Json, arguments: str) -> tuple[Json, list[Json]]:
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    if block["type"] == "thinking":
        thought = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {"type": "thinking", "thinking": "", "signature": ""}, [*thought, signed]
    parts = ["", *pieces(arguments)]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in parts]


KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}  # fmt: skip


def error_body(message: str, param: str | None, code: str | None, status: int) -> Json:
    """An error as Anthropic words it."""
    error = {"type": KINDS.get(status, "api_error"), "message": message}
    return {"type": "error", "error": error, "request_id": "req_fake"}


def stream_error(message: str) -> bytes:
    """An error in the middle of a stream."""
    return frame({"type": "error", "error": {"type": "overloaded_error", "message": message}})
