"""A reply made ready for the wire: ids given, cut at the output limit, tokens counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .view import Reply, View, arguments_text

BYTES_PER_TOKEN = 4
PIECE = 12


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a reply; `arguments` is the text as sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What goes over the wire. `input_tokens` includes the cached ones, `output_tokens` the reasoning."""

    number: int
    model: str
    text: str
    reasoning: str
    refusal: str
    calls: tuple[Call, ...]
    cut: bool
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cached: int
    finish: str | None
    say_usage: bool


def tokens(text: str | bytes) -> int:
    """The fake's own count: four bytes a token, rounded up."""
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
    return -(-size // BYTES_PER_TOKEN)


def turn_of(reply: Reply, view: View, body: bytes, numbers: Iterator[int]) -> Turn:
    """Cuts what the request's output limit cuts, reasoning first, then text, then the calls' arguments."""
    prefix = "toolu_fake" if view.dialect == "anthropic" else "call_fake"
    room = (view.max_tokens or 10**9) * BYTES_PER_TOKEN
    reasoning, room = _fit(reply.reasoning, room)
    text, room = _fit(reply.text, room)
    cut = (reasoning, text) != (reply.reasoning, reply.text)
    calls = []
    for index, (name, arguments) in enumerate(() if cut else reply.calls):
        whole = arguments_text(arguments)
        kept, room = _fit(whole, room)
        own = reply.ids[index] if index < len(reply.ids) else f"{prefix}_{next(numbers)}"
        calls.append(Call(own, name, kept))
        if kept != whole:
            cut = True
            break
    thought = tokens(reasoning)
    output = thought + tokens(text) + tokens(reply.refusal) + sum(tokens(call.arguments) + 1 for call in calls)
    if view.max_tokens:
        output = view.max_tokens if cut else min(output, view.max_tokens)
    return Turn(
        view.number, view.model, text, reasoning, reply.refusal, tuple(calls), cut,
        tokens(body), max(1, output), thought, reply.cached, reply.finish, reply.usage,
    )  # fmt: skip


def _fit(text: str, room: int) -> tuple[str, int]:
    data = text.encode("utf-8", "replace")
    if len(data) <= room:
        return text, room - len(data)
    return data[:room].decode("utf-8", "ignore"), 0


def pieces(text: str, size: int = PIECE) -> list[str]:
    """Text as a stream's deltas."""
    return [text[start : start + size] for start in range(0, len(text), size)]
