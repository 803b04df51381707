"""What every provider demands of a conversation: each tool call has exactly one result, directly after its turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from registry.messages import Message, ToolCall

NO_RESULT = "No result: this call was not carried out."
JSON_WORD = "Answer in JSON."
"""Added where JSON mode is on and no message says "json": OpenAI then refuses the request."""


def paired(messages: Sequence[Message]) -> list[Message]:
    """The conversation with every call answered, in call order, directly after the turn that made it.

    A missing result becomes an error result, a result without a call is dropped, what stood between a turn and its
    results comes after them, and ids that are empty or used before are replaced. Messages that need no change are
    handed on as they are, with their memoised bytes.
    """
    out: list[Message] = []
    used: set[str] = set()
    at, end = 0, len(messages)
    while at < end:
        message = messages[at]
        at += 1
        if message.role == "tool":
            continue
        if message.role != "assistant" or not message.tool_calls:
            out.append(message)
            continue
        upto = at
        while upto < end and messages[upto].role != "assistant":
            upto += 1
        _turn(message, messages[at:upto], used, out)
        at = upto
    return out


def _turn(message: Message, after: Sequence[Message], used: set[str], out: list[Message]) -> None:
    results: dict[str | None, list[Message]] = {}
    others = []
    for follower in after:
        if follower.role == "tool":
            results.setdefault(follower.tool_call_id, []).append(follower)
        else:
            others.append(follower)
    ids = [_fresh(call, used) for call in message.tool_calls]
    if any(new != call.id for new, call in zip(ids, message.tool_calls, strict=True)):
        calls = (replace(call, id=new) for new, call in zip(ids, message.tool_calls, strict=True))
        out.append(replace(message, tool_calls=tuple(calls)))
    else:
        out.append(message)
    for new, call in zip(ids, message.tool_calls, strict=True):
        waiting = results.get(call.id)
        if not waiting:
            out.append(Message.tool(new, NO_RESULT, is_error=True))
        elif new == call.id:
            out.append(waiting.pop(0))
        else:
            out.append(replace(waiting.pop(0), tool_call_id=new))
    out.extend(others)


def _fresh(call: ToolCall, used: set[str]) -> str:
    new, number = call.id, 1
    while not new or new in used:
        number += 1
        new = f"{call.id or 'call'}_{number}"
    used.add(new)
    return new


def call_ids(messages: Iterable[Message]) -> set[str]:
    """The ids of all calls of a conversation."""
    return {call.id for message in messages for call in message.tool_calls}


def joined(texts: Iterable[str]) -> str:
    """Texts that become one message, blank ones left out."""
    return "\n\n".join(text for text in texts if text.strip())


def alternating(messages: Sequence[Message], filler: str = "OK.") -> list[Message]:
    """For servers whose template takes one system message, at the start, and strict turns of user and assistant.

    Later system texts become user texts, neighbours of one role become one message, and where a user text follows
    tool results, a word of the assistant's (`filler`) stands between.
    """
    at = 0
    while at < len(messages) and messages[at].role == "system":
        at += 1
    out: list[Message] = []
    system = joined(message.content for message in messages[:at])
    if system:
        out.append(messages[0] if at == 1 else Message.system(system))
    for original in messages[at:]:
        message = Message.user(original.content) if original.role == "system" else original
        last = out[-1] if out else None
        plain = not message.tool_calls and message.role in ("user", "assistant")
        if last is not None and plain and last.role == message.role and not last.tool_calls:
            out[-1] = replace(last, content=joined((last.content, message.content)))
            continue
        if last is not None and last.role == "tool" and message.role == "user":
            out.append(Message.assistant(filler))
        out.append(message)
    return out


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
