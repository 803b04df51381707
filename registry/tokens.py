"""Token estimates without a tokenizer download."""

from __future__ import annotations

import json
from collections.abc import Iterable

from .messages import Message

ASCII_CHARS_PER_TOKEN = 4.0
"""About 4 characters of English text per token: the rule of thumb in OpenAI's tokenizer documentation."""
OTHER_CHARS_PER_TOKEN = 1.5
"""CJK and other non-ASCII scripts need about a token for every one to two characters."""
TOKENS_PER_MESSAGE = 4
"""Role and separators of one chat message."""


def estimate_text(text: str) -> int:
    """Estimated tokens of a text; at least 1 where there is any."""
    if not text:
        return 0
    ascii_chars = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    tokens = ascii_chars / ASCII_CHARS_PER_TOKEN + (len(text) - ascii_chars) / OTHER_CHARS_PER_TOKEN
    return max(1, round(tokens))


def estimate_message(message: Message) -> int:
    """Estimated tokens of one message; memoised on the message."""
    known = message.wire.get("tokens")
    if known is None:
        known = TOKENS_PER_MESSAGE + estimate_text(message.content) + estimate_text(message.reasoning or "")
        for call in message.tool_calls:
            known += TOKENS_PER_MESSAGE + estimate_text(call.name)
            known += estimate_text(call.raw or json.dumps(call.arguments, ensure_ascii=False, default=str))
        message.wire["tokens"] = known
    return int(known)


def estimate_messages(messages: Iterable[Message]) -> int:
    """Estimated tokens of a conversation."""
    return sum(estimate_message(message) for message in messages)
