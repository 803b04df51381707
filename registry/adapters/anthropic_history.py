"""A conversation in Anthropic's form: blocks, strict turns that begin and end with the user, system text apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from registry.messages import Message, ToolCall

from .history import joined, paired
from .wire import arguments_text, dumps, loads_object, wire_name

DIALECT = "anthropic"
CONTINUE = "Continue."
"""Stands where a user's turn is demanded and there is none."""
NO_OUTPUT = "(no output)"
"""Stands for a blank tool result, which is refused."""
_ID = re.compile(r"[^a-zA-Z0-9_-]")


def system_text(messages: Iterable[Message]) -> str:
    """All system texts, wherever they stand: there is one place for them."""
    return joined(message.content for message in messages if message.role == "system")


def tools_used(messages: Iterable[Message]) -> list[Mapping[str, Any]]:
    """Bare descriptions of the tools that a history called, for servers that demand them."""
    names = dict.fromkeys(wire_name(call.name) for message in messages for call in message.tool_calls)
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


def conversation(messages: Sequence[Message], model_id: str) -> bytes:
    """The JSON array of the turns. Neighbours of one role become one turn, in their order."""
    key = f"{DIALECT}:{model_id}"
    turns: list[tuple[str, list[bytes]]] = []
    for message in paired(messages):
        if message.role == "system":
            continue
        blocks = message.wire.get(key)
        if blocks is None:
            blocks = message.wire[key] = b",".join(map(dumps, encode_message(message, model_id)))
        if not blocks:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1][0] == role:
            turns[-1][1].append(blocks)
        else:
            turns.append((role, [blocks]))
    filler = dumps({"type": "text", "text": CONTINUE})
    if not turns or turns[0][0] == "assistant":
        turns.insert(0, ("user", [filler]))
    if turns[-1][0] == "assistant":  # models without prefill refuse to go on with their own turn
        turns.append(("user", [filler]))
    return b"[" + b",".join(b'{"role":"%b","content":[%b]}' % (r.encode(), b",".join(b)) for r, b in turns) + b"]"


def encode_message(message: Message, model_id: str) -> list[Mapping[str, Any]]:
    """A message's content blocks; none for a blank text."""
    if message.role == "tool":
        text = message.content if message.content.strip() else NO_OUTPUT
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": tool_use_id(message.tool_call_id)}
        block["content"] = [{"type": "text", "text": text}]
        if message.is_error:
            block["is_error"] = True
        return [block]
    if message.role != "assistant":
        return _text_block(message.content)
    kept = _kept_blocks(message, model_id)
    if kept and _unchanged(message, kept):
        return [block for block in kept if block.get("type") != "text" or str(block.get("text") or "").strip()]
    thoughts = [block for block in kept if block.get("type") in ("thinking", "redacted_thinking")]
    blocks = [*_text_block(message.content), *map(_tool_use, message.tool_calls)]
    return [*thoughts, *blocks] if blocks else []


def tool_use_id(given: str | None) -> str:
    """A call id with the characters that Anthropic takes."""
    return _ID.sub("_", given or "")


def _text_block(text: str) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _tool_use(call: ToolCall) -> Mapping[str, Any]:
    arguments = loads_object(arguments_text(call)) or {}
    return {"type": "tool_use", "id": tool_use_id(call.id), "name": wire_name(call.name), "input": arguments}


def _kept_blocks(message: Message, model_id: str) -> list[Mapping[str, Any]]:
    """What this very model gave: another one's signatures mean nothing to it."""
    provider = message.provider or {}
    if provider.get("model", model_id) != model_id:
        return []
    return list(provider.get(DIALECT) or ())


def _unchanged(message: Message, blocks: list[Mapping[str, Any]]) -> bool:
    """Whether the blocks say what the message says: it may have been cut or repaired since."""
    ids = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    if ids != [call.id for call in message.tool_calls] or not all(call.decoded for call in message.tool_calls):
        return False
    text = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    return text == message.content and bool(ids or text.strip())
