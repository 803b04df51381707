"""A forgiving reader of one JSON value inside a text, for what models write instead of JSON.

It takes single and curly quotes, bare keys, Python and JSON literals, comments, trailing and missing commas, full-width
punctuation, raw newlines, unescaped quotes and wrong escapes. It never evaluates anything, and it fails rather than
guess: a string that runs into the end of the text is cut, not closed. The time is linear in the text: every failed try
is charged against a budget.
"""

# ruff: noqa: RUF001 - curly and full-width marks are meant

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from .json_text import BLANK_CHARS, DOUBLE_QUOTES, QUOTES, ZERO_WIDTH, Found, same, strict, strict_at, unescape

MAX_DEPTH = 100
SPARE_WORK = 50_000
"""Characters that failed tries may read on top of the text's own length."""

STRICT_WORK = 20_000_000
"""Characters that failed strict tries may read, at the speed of C. So valid JSON in prose is never touched."""

ENCODED_LAYERS = 3
"""How often a value may be encoded as a string inside a string."""

_OPENING_ONLY = "“„«‘"

BLANK = re.compile(rf"[\s{ZERO_WIDTH}]*")
_NUMBER = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?(?![\w.])")
_WORD = re.compile(r"[^\W\d][\w$.-]{0,200}|\$\w{1,200}")
_KEY = {
    quote: re.compile(rf"{quote}((?:[^{closers}\\]|\\.){{0,500}})[{closers}]", re.DOTALL)
    for quotes, closers in ((DOUBLE_QUOTES, '"”＂»'), ("'‘’", "'’"), ("`", "`"))
    for quote in quotes
}
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None, "TRUE": True}
_LITERALS |= {"FALSE": False, "NULL": None}

_KEY_AHEAD = r"""(?:["“”'‘’`＂«](?:[^"“”\n\\]|\\.){0,200}(?:["“”'‘’`＂»]\s*[:：]|\Z)|[^\W\d][\w$-]{0,100}\s*[:：])"""
_TAIL_AHEAD = r"""\Z|//|\#|/\*|```|<[/|｜]|\[/"""
_AFTER_MEMBER = re.compile(
    rf"""\s*(?:{_TAIL_AHEAD}|[}}｝](?!"\s*[,}}\]])|[\]］]|[,，]\s*(?:{_KEY_AHEAD}|[}}｝]|{_TAIL_AHEAD})
    |(?<=\s){_KEY_AHEAD}|["“]\w[^"“”\n]{{0,200}}["”]\s*[:：])""",
    re.VERBOSE,
)
_AFTER_ITEM = re.compile(
    rf"""\s*(?:{_TAIL_AHEAD}|[}}｝\])）］]
    |[,，]\s*(?:["“'‘`＂{{\[(｛［\]-]|\d|(?:true|false|null|True|False|None)\b|{_TAIL_AHEAD})
    |(?<=\s)["“'‘]|"(?=[^"\s,\]}}]))""",
    re.VERBOSE,
)
AFTER_ARGUMENT = re.compile(
    rf"""\s*(?:{_TAIL_AHEAD}|[)）]|[,，]\s*(?:[^\W\d]\w{{0,100}}\s*=|["“'‘{{\[\d)-]|(?:true|false|null|True|False|None)\b))""",
    re.VERBOSE,
)
"""What follows an argument of a Python-like call."""
_INNER = {quote: re.compile(rf"\\.|[{re.escape(quote)}“”]", re.DOTALL) for quote in '"＂'}
_INNER |= {quote: re.compile(r"\\.|[\"“”»＂]", re.DOTALL) for quote in "“”„«"}
_INNER |= {quote: re.compile(r"\\.|['’]", re.DOTALL) for quote in "'‘’"}
_INNER["`"] = re.compile(r"\\.|`", re.DOTALL)

_BRACKET = re.compile(r"[{}\[\]]")
_ITEM_RUN = re.compile(r"""(?:(?:-?[1-9]\d{0,14}|0|"[^"\\\x00-\x1f“”]*")[ \t\r\n]*,[ \t\r\n]*(?=["\d\-\[{])){2,500}""")
_MEMBER_RUN = re.compile(
    r"""(?:"[^"\\\x00-\x1f“”]*"[ \t\r\n]*:[ \t\r\n]*(?:-?[1-9]\d{0,14}|0|true|false|null|"[^"\\\x00-\x1f“”]*")"""
    r"""[ \t\r\n]*,[ \t\r\n]*(?=")){2,500}"""
)


@dataclass(frozen=True, slots=True)
class Failure:
    """No value: the reason (`syntax`, `cut`, `deep`, `budget`), where the reader stopped, and inside how many brackets.

    `depth` 0: not even the first entry could be read.
    """

    reason: str
    at: int
    depth: int = 0


class _StopError(Exception):
    def __init__(self, reason: str, at: int) -> None:
        self.reason = reason
        self.at = at


class Reader:
    """Reads values of one text; the budget for failed tries is shared by all of them.

    `close_at_end`: brackets missing at the end of the text are added (a normal stop). `partial`: a cut value is
    returned as far as it goes. A closing tag or fence ends a value like the end of the text, and proves that the
    value was not cut.
    """

    def __init__(self, text: str, *, close_at_end: bool = True, partial: bool = False) -> None:
        self.text = text
        self.close_at_end = close_at_end or partial
        self.partial = partial
        self._size = len(text)
        self._work = len(text) + SPARE_WORK
        self._strict_work = STRICT_WORK
        self._reach = 0
        self._closed = True
        self._conflict: str | None = None
        self._depth = 0
        self._no_comment_end = self._size + 1

    def read(self, start: int, after: re.Pattern[str] = _AFTER_MEMBER) -> Found | Failure:
        """The value that begins at `start`, or why there is none. `after`: what follows a string, where it is one."""
        if self._work < 0:
            return Failure("budget", start)
        if self._strict_work > 0 and self.text.startswith(("{", "["), start):
            found = strict_at(self.text, start)
            if isinstance(found, Found):
                return found
            self._strict_work -= 2 * found  # the decoder counts the lines up to the place of its error
        self._reach, self._closed, self._conflict, self._depth = start, True, None, 0
        try:
            value, end = self._value(start, 0, after)
        except _StopError as stop:
            self._work -= max(self._reach, stop.at) - start
            return Failure(stop.reason, stop.at, self._depth)
        return Found(value, start, end, self._closed, self._conflict)

    def outside(self, failure: Failure) -> int:
        """Past the brackets that a failed try was in, so that no part of a broken value passes for a value; the place
        of the failure where they never close."""
        depth = failure.depth
        end = failure.at
        for match in _BRACKET.finditer(self.text, failure.at):
            depth += 1 if match.group() in "{[" else -1
            end = match.end()
            if depth <= 0:
                return end
        self._work -= self._size - failure.at
        return failure.at

    def skip_blank(self, at: int) -> int:
        """Past blanks."""
        return BLANK.match(self.text, at).end()  # type: ignore[union-attr]  # matches the empty string

    def skip(self, at: int) -> int:
        """Past blanks and comments."""
        text = self.text
        at = self.skip_blank(at)
        while at < self._size and text[at] in "/#":
            if text.startswith("/*", at):
                end = -1 if at >= self._no_comment_end else text.find("*/", at + 2)
                if end < 0:
                    self._no_comment_end = min(self._no_comment_end, at)
                    self._stop("syntax", at)
                end += 2
            elif text[at] == "#" or text.startswith("//", at):
                end = text.find("\n", at)
                end = self._size if end < 0 else end
            else:
                return at
            self._reach = max(self._reach, end)
            at = self.skip_blank(end)
        return at

    def _stop(self, reason: str, at: int) -> NoReturn:
        raise _StopError(reason, at)

    def _ended(self, at: int) -> bool:
        """Whether the text, or the tag or fence around the value, ends here; then notes the missing bracket."""
        text = self.text
        if at >= self._size:
            if not self.close_at_end:
                self._stop("cut", at)
        elif not (text.startswith("```", at) or text.startswith(("</", "<|", "<｜", "[/"), at)):
            return False
        self._closed = False
        return True

    def _value(self, at: int, depth: int, after: re.Pattern[str]) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            self._stop("deep", at)
        char = self.text[at : at + 1]
        if not char:
            self._stop("cut", at)
        if char in "{｛":
            return self._object(at, depth)
        if char in "[［" or (char == "(" and depth):
            return self._array(at, depth)
        if char in QUOTES:
            return self._string(at, after)
        if number := _NUMBER.match(self.text, at):
            return self._number(number)
        word = _WORD.match(self.text, at)
        if word and word.group() in _LITERALS:
            return _LITERALS[word.group()], word.end()
        cut = self.partial and word is not None and word.end() >= self._size
        return self._stop("cut" if cut else "syntax", at)

    def _number(self, match: re.Match[str]) -> tuple[Any, int]:
        digits = match.group()
        unsigned = digits.lstrip("+-")
        if unsigned[0] == "0" and unsigned[1:2].isdigit():
            self._stop("syntax", match.start())  # 02134 is a code, not a number
        if match.end() >= self._size and self.partial:
            self._stop("cut", match.start())
        if unsigned.isdigit():
            return int(digits), match.end()
        number = float(digits)
        if not math.isfinite(number):
            self._stop("syntax", match.start())
        return number, match.end()

    def _object(self, at: int, depth: int) -> tuple[Any, int]:
        text = self.text
        members: dict[str, Any] = {}
        doubled = text.startswith("{{", at)  # braces of a template that was never filled in
        at = self.skip(at + 1 + doubled)
        while True:
            if run := _MEMBER_RUN.match(text, at):
                for key, value in json.loads("{" + run.group().rstrip()[:-1] + "}", object_pairs_hook=list):
                    self._put(members, key, value)
                at = run.end()
            if self._ended(at):
                return members, at
            if text[at] in "}｝":
                return members, at + 1 + (doubled and text.startswith("}}", at))
            if text[at] in "]］" and depth:
                self._closed = False  # the brace is missing: the bracket belongs to the array around
                return members, at
            try:
                key, at = self._key(at)
                self._depth = depth + 1
                value, at = self._value(self.skip(at), depth + 1, _AFTER_MEMBER)
            except _StopError as stop:
                if self.partial and stop.reason == "cut":
                    self._closed = False
                    return members, self._size
                raise
            self._put(members, key, value)
            self._depth = depth + 1
            at = self._separator(at)

    def _put(self, members: dict[str, Any], key: str, value: Any) -> None:
        if key in members and not same(members[key], value):
            self._conflict = self._conflict or key
        members[key] = value

    def _separator(self, at: int) -> int:
        """Past the comma between two entries; a missing one is no error, a comma at the end of the text is a cut."""
        at = self.skip(at)
        if at < self._size and self.text[at] in ",，":
            at = self.skip(at + 1)
            if at >= self._size and not self.partial:
                self._stop("cut", at)
        return at

    def _key(self, at: int) -> tuple[str, int]:
        """A key and the place after its colon."""
        quoted = _KEY[self.text[at]].match(self.text, at) if self.text[at] in _KEY else None
        bare = None if quoted else _WORD.match(self.text, at)
        if quoted:
            key, end = unescape(quoted.group(1)), quoted.end()
        elif bare:
            key, end = bare.group(), bare.end()
        else:
            self._stop("cut" if self.partial and self._size - at < MAX_DEPTH else "syntax", at)
        end = self.skip(end)
        if end >= self._size:
            self._stop("cut", at)
        if self.text[end] not in ":：":
            self._stop("syntax", at)
        return key, end + 1

    def _array(self, at: int, depth: int) -> tuple[Any, int]:
        text = self.text
        closers = ")" if text[at] == "(" else "]］"
        items: list[Any] = []
        at = self.skip(at + 1)
        while True:
            if run := _ITEM_RUN.match(text, at):
                items += json.loads(f"[{run.group().rstrip()[:-1]}]")
                at = run.end()
            if self._ended(at):
                return items, at
            if text[at] in closers:
                return items, at + 1
            if text[at] in "}｝" and depth:
                self._closed = False
                return items, at
            try:
                value, at = self._value(at, depth + 1, _AFTER_ITEM)
            except _StopError as stop:
                if self.partial and stop.reason == "cut":
                    self._closed = False
                    return items, self._size
                raise
            items.append(value)
            self._depth = depth + 1
            at = self._separator(at)

    def _string(self, at: int, after: re.Pattern[str]) -> tuple[str, int]:
        """A string; a quote ends it only where what follows continues the value around it."""
        text = self.text
        opener = text[at]
        if text.startswith(('"""', "'''"), at) and (end := text.find(text[at : at + 3], at + 3)) >= 0:
            return text[at + 3 : end], end + 3
        curly = inner = False
        for match in _INNER[opener].finditer(text, at + 1):
            char = match.group()
            if char[0] == "\\":
                continue
            if char in _OPENING_ONLY:
                curly = True
            elif char == "”" and curly and opener not in "“„":
                curly = False
            elif text[match.end() : match.end() + 1].isalnum() or not after.match(text, match.end()):
                inner = not inner if inner or self._opens(match.start(), at) else inner
            elif inner:
                inner = False  # it closes a quotation inside the string
            else:
                return unescape(text[at + 1 : match.start()]), match.end()
        self._reach = self._size
        if self.partial:
            self._closed = False
            return unescape(_whole_escapes(text[at + 1 :])), self._size
        return self._stop("cut", at)

    def _opens(self, quote: int, start: int) -> bool:
        """Whether a quote inside a string looks like the start of a quotation, not like an inch mark or apostrophe."""
        before, behind = self.text[quote - 1], self.text[quote + 1 : quote + 2]
        return (quote == start + 1 or before.isspace() or before in "([{") and behind.isalnum()


def _whole_escapes(raw: str) -> str:
    """The string without an escape that is only half there."""
    place = raw.rfind("\\u", max(0, len(raw) - 5))
    head = raw[: place + 1] if place >= 0 else raw
    return head[:-1] if (len(head) - len(head.rstrip("\\"))) % 2 else raw


def parse_value(text: str) -> Any:
    """A text that is one JSON value, forgivingly read. Raises ValueError."""
    body = text.strip(BLANK_CHARS)
    found = strict(body)
    if found is None:
        read = Reader(body, close_at_end=False).read(0)
        if not isinstance(read, Found) or read.end < len(body):
            raise ValueError("not a JSON value")
        found = read
    if found.conflict is not None:
        raise ValueError(f"the key {found.conflict!r} comes twice with different values")
    return found.value


def decoded(value: Any) -> Any:
    """A value that was encoded twice (or three times), decoded; other strings stay."""
    for _ in range(ENCODED_LAYERS):
        if not isinstance(value, str) or value.strip()[:1] not in ("{", "[", '"'):
            break
        try:
            inner = parse_value(value)
        except ValueError:
            break
        if not isinstance(inner, dict | list | str):
            break
        value = inner
    return value
