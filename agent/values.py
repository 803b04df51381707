"""All JSON values inside a text, in order: fenced ones by fence, bare ones between the prose."""

# ruff: noqa: RUF001 - curly and full-width marks are meant

from __future__ import annotations

import re
from dataclasses import dataclass

from .json_text import Found, strict
from .lenient import BLANK, Reader

MAX_TRIES = 4_000
"""Values and failed tries in one text; a text with more is noise."""


_START = re.compile(
    r"""(`{3,}|~{3,})|[{｛](?=\s*(?:["'“”„‘’`＂«}｝/\#$]|[^\W\d]))|[\[［](?=\s*(?:["'“„‘`＂{｛\[［\]］(/\#-]|\d|[tfnTFN]))"""
)
_LABEL = re.compile(r"[ \t]*([A-Za-z][\w+.-]{0,30})?[^\S\n]*")
_JSON_LABELS = frozenset({"", "json", "jsonc", "json5", "jsonl", "ndjson", "text", "txt", "output", "plaintext"})
_CITATION = re.compile(r"\[\d{1,4}(?:\s?[,–-]\s?\d{1,4}){0,20}\]|\{\}|\[\]")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value. `fence` numbers the fenced block it stands in, None outside of any. `label` is the fence's label."""

    found: Found
    fence: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Values:
    """What a text holds. `complete` is False where the search was given up: then nothing is certain.

    `broken` says that some text began like an object and could not be read.
    """

    candidates: tuple[Candidate, ...]
    complete: bool = True
    broken: bool = False


def find_values(text: str, reader: Reader) -> Values:
    """Objects and arrays of the text, and the values of its fenced blocks whatever they are."""
    return _Finder(text, reader).run()


def is_mark(text: str, found: Found) -> bool:
    """Whether the value is a mark of prose: a citation like [1], an empty {}."""
    return found.end - found.start <= 100 and _CITATION.fullmatch(text, found.start, found.end) is not None


class _Finder:
    def __init__(self, text: str, reader: Reader) -> None:
        self.text = text
        self.reader = reader
        self.found: list[Candidate] = []
        self.fences = 0
        self.broken = False

    def run(self) -> Values:
        at = 0
        for _ in range(MAX_TRIES):
            match = _START.search(self.text, at)
            if match is None:
                return Values(tuple(self.found), broken=self.broken)
            at = self._fence(match) if match.group(1) else self._value(match.start(), None, "")
            if at < 0:
                break
        return Values(tuple(self.found), complete=False, broken=True)

    def _value(self, start: int, fence: int | None, label: str) -> int:
        """Reads a value; the place to go on from, negative where there is no sense in going on."""
        found = self.reader.read(start)
        if isinstance(found, Found):
            self.found.append(Candidate(found, fence, label))
            return max(found.end, start + 1)
        if found.reason in ("deep", "budget", "cut"):
            return -1  # what follows is inside the cut value
        self.broken = self.broken or found.depth > 0
        return max(self.reader.outside(found) if found.depth else found.at, start + 1)

    def _fence(self, match: re.Match[str]) -> int:
        """A fenced block. One that starts with a value, or is labelled as JSON, is searched; other code is skipped."""
        text, mark = self.text, match.group(1)
        label = _LABEL.match(text, match.end())
        name = (label.group(1) or "").lower() if label else ""
        begin = label.end() if label else match.end()
        if name and text[begin : begin + 1] not in ("", "\n", "{", "["):
            name, begin = "", match.end()  # prose on the fence's line
        begin = BLANK.match(text, begin).end()  # type: ignore[union-attr]  # matches the empty string
        self.fences += 1
        number = self.fences
        if text[begin : begin + 1] not in ("{", "[", "｛", "［") and not (name in _JSON_LABELS or "tool" in name):
            return self._behind(mark, begin)
        at = begin
        for _ in range(MAX_TRIES):
            start = _START.search(text, at)
            if start is None:
                break
            if start.group(1):
                if at == begin:
                    self._scalar(text[begin : start.start()], begin, number, name)
                return start.end()
            at = self._value(start.start(), number, name)
            if at < 0:
                return at
        if at == begin:
            self._scalar(text[begin:], begin, number, name)
        return len(text)

    def _scalar(self, body: str, start: int, number: int, name: str) -> None:
        """A block without an object or array may still be one strict value: 42."""
        found = strict(body) if body.strip() else None
        if found:
            self.found.append(Candidate(Found(found.value, start, start + len(body)), number, name))

    def _behind(self, mark: str, at: int) -> int:
        end = self.text.find(mark, at)
        return len(self.text) if end < 0 else end + len(mark)
