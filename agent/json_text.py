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
    conflicts: list[str] = []
    try:
        value = _decoder(conflicts, True).decode(text)
    except (ValueError, RecursionError):
        return None
    return Found(value, 0, len(text), conflict=conflicts[0] if conflicts else None)


def strict_at(text: str, start: int) -> Found | int:
    """The JSON value that begins at `start`, raw line breaks in strings allowed; else the place where it goes wrong."""
    conflicts: list[str] = []
    try:
        value, end = _decoder(conflicts, False).raw_decode(text, start)
    except json.JSONDecodeError as error:
        return error.pos
    except (ValueError, RecursionError):
        return start
    return Found(value, start, end, conflict=conflicts[0] if conflicts else None)


def _decoder(conflicts: list[str], strict_strings: bool) -> json.JSONDecoder:
    """A decoder that notes keys with two different values."""

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(members)
        if len(value) < len(members):
            conflicts.extend(key for key, item in members if not same(value[key], item))
        return value

    return json.JSONDecoder(
        object_pairs_hook=pairs, parse_float=_finite, parse_constant=_no_constant, strict=strict_strings
    )


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is out of range")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} has no JSON value")
