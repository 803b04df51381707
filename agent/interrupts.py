"""Follow-up messages that arrive while an agent works."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from registry.messages import Message


class InterruptQueue:
    """What the user said meanwhile. `put` from anywhere in the same thread; the agent drains it at its own places."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()

    def put(self, text: str) -> None:
        """Adds a message; a blank one is nothing."""
        if text.strip():
            self._texts.append(text)

    def drain(self) -> tuple[str, ...]:
        """Takes out all messages, oldest first."""
        texts = tuple(self._texts)
        self._texts.clear()
        return texts

    def __len__(self) -> int:
        return len(self._texts)


def interrupt_message(texts: Sequence[str]) -> Message:
    """All messages of one drain as one pinned user message."""
    return Message.user("[USER INTERRUPT]\n" + "\n\n".join(texts), pinned=True)
