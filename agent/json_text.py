"""JSON values read strictly, the text of a string literal, and equality as JSON knows it."""

# ruff: noqa: RUF001 - curly and full-width marks are meant

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

ZERO_WIDTH = "\ufeff\u200b\u200c\u200d\u2060"
BLANK_CHARS = " \t\r\n\x0b\x0c\xa0\u2028\u2029\u3000" + ZERO_WIDTH
"""What may stand around a value."""

DOUBLE_QUOTES = '"“”„＂«'
SINGLE_QUOTES = "'‘’`"
QUOTES = DOUBLE_QUOTES + SINGLE_QUOTES

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|\Z)", re.DOTALL)
_SIMPLE_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\"}
_SIMPLE_ESCAPES |= {quote: quote for quote in QUOTES}


@dataclass(frozen=True, slots=True)
class Found:
    """A value at text[start:end]. `closed`: all brackets were there; `conflict`: a key that came with two values."""

    value: Any
    start: int
    end: int
    closed: bool = True
    conflict: str | None = None


def unescape(raw: str) -> str:
    """The text of a string literal. Where one escape is wrong (LaTeX, a Windows path), escapes that run into a letter
    stand for themselves as well."""
    if "\\" not in raw:
        return raw
    wild = any(match.group(1) is None and match.group(2) not in _SIMPLE_ESCAPES for match in _ESCAPE.finditer(raw))

    def plain(match: re.Match[str]) -> str:
        digits, char = match.groups()
        if digits is not None:
            return chr(int(digits, 16))
        if char is None or char not in _SIMPLE_ESCAPES:
            return match.group()
        if wild and char.isalpha() and raw[match.end() : match.end() + 1].isalpha():
            return match.group()
        return _SIMPLE_ESCAPES[char]

    text = _ESCAPE.sub(plain, raw)
    if "\\u" in raw:  # halves of surrogate pairs become one character, as in json.loads; lonely halves stay
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


def same(left: Any, right: Any) -> bool:
    """Equality of JSON values; True is not 1, but 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(item, right[key]) for key, item in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def strict(text: str) -> Found | None:
    """The text as one strict JSON value, at C speed; None where it is none. Infinity and NaN are none."""
    conflict: list[str] = []

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(members)
        if len(value) < len(members):
            conflict.extend(key for key, item in members if not same(value[key], item))
        return value

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise ValueError(f"{digits} is out of range")
        return number

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_float=finite, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return Found(value, 0, len(text), conflict=conflict[0] if conflict else None)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} has no JSON value")
