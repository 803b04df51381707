"""The answer of a job whose budget is used up or nearly: written from what is kept for it, cut so that it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.synthesis import RESULT_CHARS, synthesis_messages
from agent.trust import delimited
from registry.llm import LLM
from registry.llm_types import ChatRequest
from registry.messages import Event, Message
from registry.text import cut_middle

USED_UP = "(The work ended early, because its budget was used up. Say what is missing.)"
LEAST_CHARS = 200
"""A trace or a goal shorter than this is not cut further: nothing could be made of it."""


def synthesis_within(llm: LLM, query: str, trace: str, room: int | None) -> list[Message] | None:
    """What the synthesis is asked, in a request of at most `room` bytes (None: any number): the trace is cut, then the
    query. None where not even a short one fits."""
    whole = synthesis_messages(query, trace)
    if room is None or _size(llm, whole) <= room:
        return whole
    if _size(llm, synthesis_messages(query, cut_middle(trace, LEAST_CHARS))) > room:
        query = _longest(llm, query, lambda text: synthesis_messages(text, cut_middle(trace, LEAST_CHARS)), room)
    trace = _longest(llm, trace, lambda text: synthesis_messages(query, text), room)
    messages = synthesis_messages(query, trace)
    return messages if _size(llm, messages) <= room else None


def trace_of(events: Iterable[Event], marker: str | None = None) -> str:
    """What a single agent did, from the job's events: what it said, and what its tools returned, delimited by the
    marker for a model, plain for a reader."""
    lines = []
    for event in events:
        payload = event.payload
        if event.channel == "turn" and payload["role"] == "agent" and payload["result"] is not None:
            if (text := payload["result"]["message"].get("content") or "").strip():
                lines.append(f"[assistant] {cut_middle(text, RESULT_CHARS)}")
        elif event.channel == "call" and payload.get("status") == "end":
            name, found = payload["tool_name"], str(payload.get("observation") or "")
            mark = ", an error" if payload.get("is_error") else ""
            text = cut_middle(found, RESULT_CHARS) if marker is None else delimited(found, name, marker, RESULT_CHARS)
            lines.append(f"[result of {name}{mark}] {text}")
    return "\n".join(lines)


def _longest(llm: LLM, text: str, asked: Callable[[str], list[Message]], room: int) -> str:
    """As much of a text as fits, by halving the interval; never less than `LEAST_CHARS`."""
    low, high = LEAST_CHARS, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _size(llm, asked(cut_middle(text, middle))) <= room:
            low = middle
        else:
            high = middle - 1
    return cut_middle(text, low)


def _size(llm: LLM, messages: list[Message]) -> int:
    """Bytes of the request; its output limit is counted with as many digits as it may have."""
    limit = llm.max_output_tokens or 99_999
    return len(llm.prepare(ChatRequest(tuple(messages), max_tokens=limit, stream=True)).body)
