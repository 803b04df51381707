"""Text from tools is data: delimited so that it can't pass for anything else, and with its origin, which taints.

A tool's text stands between two lines that carry the run's random code. Whoever wrote the text can't know the code, so
nothing in it can end the data early or pass for a message, an observation or an event of ours.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from registry.text import cut_end, cut_middle
from registry.tools import Tool

ORIGIN_CHARS = 200
_WORD = re.compile(r"[+-]?[\w.,:%/-]{1,40}", re.ASCII)
"""A number or a word: too little to pass for anything."""


def new_marker() -> str:
    """A code nobody can guess: 48 random bits, as hexadecimal digits."""
    return secrets.token_hex(6)


def delimited(text: str, origin: str, marker: str, limit: int) -> str:
    """The text between its two lines, at most `limit` characters in all. A lone number or word is left as it is."""
    if _WORD.fullmatch(text):
        return text
    inner = re.sub(re.escape(marker), "…", text, flags=re.IGNORECASE) if marker.lower() in text.lower() else text
    head, end = f"[data {marker} from {_line(origin)}]\n", f"\n[end of data {marker}]"
    return f"{head}{cut_middle(inner, limit - len(head) - len(end))}{end}"


def balanced(text: str, marker: str) -> str:
    """A text that was cut or retold, with data delimited again: an end whose beginning is gone gets one that reaches as
    far up as it may, a beginning without an end gets one where the next data begins or the text ends."""
    if not marker or marker not in text:
        return text
    begin, end = f"[data {marker} from text that was cut]\n", f"\n[end of data {marker}]"
    parts: list[str] = []
    done, is_open = 0, False
    for found in re.finditer(rf"\[(end of )?data {re.escape(marker)}(?: from [^\]\n]*)?\]\n?", text):
        before, ends = text[done : found.start()], bool(found[1])
        if ends:
            parts += [before if is_open else begin + before, found[0]]
        else:
            parts += [before + end + "\n" if is_open else before, found[0]]
        done, is_open = found.end(), not ends
    return "".join([*parts, text[done:], end if is_open else ""])


def origin_of(tool: Tool) -> str:
    """Where the tool's text comes from, in words."""
    return tool.origin or tool.name


def joined_taint(*taints: Iterable[str]) -> tuple[str, ...]:
    """All origins, each once, in the order in which they came."""
    return tuple(dict.fromkeys(origin for taint in taints for origin in taint))


def _line(text: str) -> str:
    return cut_end(" ".join(text.replace("[", "(").replace("]", ")").split()), ORIGIN_CHARS) or "a tool"
