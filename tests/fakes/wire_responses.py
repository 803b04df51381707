"""Replies as OpenAI Responses sends them, plain and streamed."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from . import wire_chat
from .checks_responses import AFTER
from .common import seal
from .turn import Turn, pieces

Json = dict[str, Any]
error_body = wire_chat.error_body


def usage(turn: Turn) -> Json:
    return {
        "input_tokens": turn.input_tokens,
        "input_tokens_details": {"cached_tokens": turn.cached, "cache_write_tokens": 0},
        "output_tokens": turn.output_tokens,
        "output_tokens_details": {"reasoning_tokens": turn.reasoning_tokens},
        "total_tokens": turn.input_tokens + turn.output_tokens,
    }


def items(turn: Turn, body: Json) -> list[Json]:
    """The output items. Those made with reasoning carry its id in theirs, so that the rules can ask for it."""
    found: list[Json] = []
    status = "incomplete" if turn.cut else "completed"
    tail = ""
    if turn.reasoning:
        own = f"rs_{turn.number}"
        tail = f"_{AFTER}_{own}"
        summary = [{"type": "summary_text", "text": turn.reasoning}]
        reasoning: Json = {"id": own, "type": "reasoning", "summary": summary, "status": None}
        if "reasoning.encrypted_content" in (body.get("include") or ()):
            reasoning["encrypted_content"] = seal(own, "enc")
        found.append(reasoning)
    if turn.text or turn.refusal:
        part: Json = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        if turn.refusal:
            part = {"type": "refusal", "refusal": turn.refusal}
        own = f"msg_{turn.number}{tail}"
        found.append({"id": own, "type": "message", "role": "assistant", "status": status, "content": [part]})
    for index, call in enumerate(turn.calls):
        own = f"fc_{turn.number}x{index}{tail}"
        head = {"id": own, "type": "function_call", "status": status, "call_id": call.id}
        found.append({**head, "name": call.name, "arguments": call.arguments})
    return found


def whole(turn: Turn, body: Json, output: list[Json], status: str, *, final: bool) -> Json:
    """The response object, at its start or at its end."""
    details = {"reason": turn.finish or "max_output_tokens"} if status == "incomplete" else None
    form = (body.get("text") or {}).get("format") or {"type": "text"}
    return {
        "id": f"resp_fake{turn.number}",
        "object": "response",
        "created_at": wire_chat.CREATED,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": details,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": {},
        "model": turn.model,
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "store": body.get("store", True),
        "temperature": body.get("temperature", 1.0),
        "text": {"format": form},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage(turn) if final and turn.say_usage else None,
    }


def end_status(turn: Turn) -> str:
    return "incomplete" if turn.cut or turn.finish else "completed"


def plain(turn: Turn, body: Json) -> Json:
    """The whole answer."""
    return whole(turn, body, items(turn, body), end_status(turn), final=True)


def stream(turn: Turn, body: Json) -> list[bytes]:
    """response.created, in_progress, each item from added to done, then response.completed or incomplete."""
    numbers, frames = count(), []

    def emit(kind: str, **data: Any) -> None:
        event = {"type": kind, "sequence_number": next(numbers), **data}
        frames.append(f"event: {kind}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode())

    emit("response.created", response=whole(turn, body, [], "in_progress", final=False))
    emit("response.in_progress", response=whole(turn, body, [], "in_progress", final=False))
    output = items(turn, body)
    for index, item in enumerate(output):
        _item_events(emit, index, item)
    status = end_status(turn)
    emit(f"response.{status}", response=whole(turn, body, output, status, final=True))
    return frames


def _item_events(emit: Any, index: int, item: Json) -> None:
    at = {"item_id": item["id"], "output_index": index}
    empty: dict[str, Json] = {
        "reasoning": {"summary": []},
        "message": {"content": []},
        "function_call": {"arguments": ""},
    }
    opening = {**item, **empty[item["type"]], **({} if item["type"] == "reasoning" else {"status": "in_progress"})}
    emit("response.output_item.added", output_index=index, item=opening)
    if item["type"] == "reasoning":
        part = item["summary"][0]
        blank = {**part, "text": ""}
        emit("response.reasoning_summary_part.added", **at, summary_index=0, part=blank)
        for piece in pieces(part["text"]):
            emit("response.reasoning_summary_text.delta", **at, summary_index=0, delta=piece)
        emit("response.reasoning_summary_text.done", **at, summary_index=0, text=part["text"])
        emit("response.reasoning_summary_part.done", **at, summary_index=0, part=part)
    elif item["type"] == "message":
        _content_events(emit, at, item["content"][0])
    else:
        for piece in pieces(item["arguments"]):
            emit("response.function_call_arguments.delta", **at, delta=piece)
        done = {"name": item["name"], "arguments": item["arguments"]}
        emit("response.function_call_arguments.done", **at, **done)
    emit("response.output_item.done", output_index=index, item=item)


def _content_events(emit: Any, at: Json, part: Json) -> None:
    said = part["type"] == "output_text"
    key = "text" if said else "refusal"
    kind = "response.output_text" if said else "response.refusal"
    extra: Json = {"logprobs": []} if said else {}
    emit("response.content_part.added", **at, content_index=0, part={**part, key: ""})
    for piece in pieces(part[key]):
        emit(f"{kind}.delta", **at, content_index=0, delta=piece, **extra)
    emit(f"{kind}.done", **at, content_index=0, **{key: part[key]}, **extra)
    emit("response.content_part.done", **at, content_index=0, part=part)


def stream_error(message: str) -> bytes:
    """An error in the middle of a stream."""
    event = {"type": "error", "sequence_number": 99, "code": "server_error", "message": message, "param": None}
    return f"event: error\ndata: {json.dumps(event)}\n\n".encode()
