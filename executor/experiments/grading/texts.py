"""Graders of texts: the same text, a text that holds another, and patterns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from registry.text import clean, cut_end
from registry.toml_file import Table, shown

from .base import RuleGrader, Verdict, one_of

IGNORABLE = ("case", "space", "punctuation", "articles")
IGNORED = ("case", "space")
"""What is ignored where nothing is said."""
MAX_PATTERN = 10_000
SHOWN = 80
_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_INVISIBLE = {ord(sign): None for sign in "\u200b\u200c\u200d\u2060\ufeff"}


class Normal:
    """How texts are made alike before they are compared.

    Always: Unicode's canonical composition (NFC), no invisible signs, no space around. `ignore` may name: `case`;
    `space` (any run of white space is one space); `punctuation` (it counts as space); `articles` (a, an, the). By
    default case and space.
    """

    def __init__(self, ignore: Iterable[str] = IGNORED) -> None:
        self.ignore = frozenset(ignore)

    @classmethod
    def of(cls, table: Table) -> Normal:
        """By the key `ignore` of a grader's table. Raises ConfigError."""
        if "ignore" not in table.values:
            return cls()
        names = table.texts("ignore")
        for name in names:
            if name not in IGNORABLE:
                table.wrong("ignore", f"{name!r} can't be ignored: there are {', '.join(IGNORABLE)}")
        return cls(names)

    def __call__(self, text: str) -> str:
        text = unicodedata.normalize("NFC", clean(text)).translate(_INVISIBLE)
        if "case" in self.ignore:
            text = text.casefold()
        if "punctuation" in self.ignore:
            text = "".join(" " if unicodedata.category(sign)[0] == "P" else sign for sign in text)
        if "articles" in self.ignore:
            text = _ARTICLES.sub(" ", text)
        if self.ignore & {"space", "punctuation", "articles"}:
            text = _SPACE.sub(" ", text)
        return text.strip()


def texts_of(target: Any) -> list[str] | None:
    """The texts of a target: one, or a list; numbers are written out. None where it is something else."""
    values = target if isinstance(target, list | tuple) else [target]
    if not values or not all(isinstance(value, str | int | float) for value in values):
        return None
    return [("true" if value else "false") if isinstance(value, bool) else str(value) for value in values]


def not_a_text(target: Any) -> Verdict:
    """What is told where a target is no text."""
    return Verdict(None, f"the target is no text and no list of texts: {shown(target)}")


class Exact(RuleGrader):
    """1 where the answer is the target, both made alike (see `Normal`), else 0. A target that is a list has several
    right answers."""

    def __init__(self, table: Table) -> None:
        table.only(("ignore",))
        self.normal = Normal.of(table)

    def verdict(self, target: Any, answer: str) -> Verdict:
        """What the answer is worth."""
        wanted = texts_of(target)
        if wanted is None:
            return not_a_text(target)
        if self.normal(answer) in map(self.normal, wanted):
            return Verdict(1.0)
        return Verdict(0.0, f"{_short(answer)} is not {' or '.join(map(_short, wanted))}")


class Contains(RuleGrader):
    """1 where the target stands in the answer, both made alike (see `Normal`), else 0.

    A target that is a list: all of it must be there (`need = "all"`), one is enough (`"any"`), or the score is the part
    that is there (`"share"`). With `words` (true by default) a target stands there only as whole words: 5 is not in 15.
    """

    def __init__(self, table: Table) -> None:
        table.only(("ignore", "need", "words"))
        self.normal, self.words = Normal.of(table), table.flag("words", default=True)
        self.need = one_of(table, "need", ("all", "any", "share"))

    def verdict(self, target: Any, answer: str) -> Verdict:
        """What the answer is worth."""
        wanted = texts_of(target)
        if wanted is None:
            return not_a_text(target)
        text = self.normal(answer)
        missing = [part for part in wanted if not self._holds(text, self.normal(part))]
        share = 1 - len(missing) / len(wanted)
        score = {"all": float(not missing), "any": float(share > 0), "share": share}[self.need]
        return Verdict(score, f"not in it: {', '.join(map(_short, missing))}" if missing else "")

    def _holds(self, text: str, part: str) -> bool:
        if not part or not self.words:
            return bool(part) and part in text
        start = text.find(part)
        while start >= 0:
            before, after = text[start - 1 : start] if start else "", text[start + len(part) : start + len(part) + 1]
            if not (_joined(before, part[0]) or _joined(part[-1], after)):
                return True
            start = text.find(part, start + 1)
        return False


def _joined(one: str, two: str) -> bool:
    """Whether two signs are inside the same word or number."""
    return bool(one and two) and (one.isalnum() or one == "_") and (two.isalnum() or two == "_")


class Regex(RuleGrader):
    """1 where the pattern is found in the answer, else 0. The pattern is `pattern`, else the task's target.

    `whole`: it must match the whole answer, white space around it aside. `ignore_case`, `multiline` (^ and $ at lines),
    `dotall` (a dot matches a line's end): false by default. Patterns are those of Rust's regex crate, which takes time
    in proportion to the text whatever the pattern: there are no look-around and no back-references in it.
    """

    needs_target: ClassVar[bool] = False

    def __init__(self, table: Table) -> None:
        table.only(("pattern", "whole", "ignore_case", "multiline", "dotall"))
        on = {"i": "ignore_case", "m": "multiline", "s": "dotall"}
        self.flags = "".join(sign for sign, key in on.items() if table.flag(key))
        self.whole = table.flag("whole")
        self._known: dict[str, Callable[[str], bool] | str] = {}
        self.pattern = table.text("pattern")
        if self.pattern is not None and isinstance(problem := self._matcher(self.pattern), str):
            table.wrong("pattern", problem)

    def verdict(self, target: Any, answer: str) -> Verdict:
        """What the answer is worth."""
        pattern = self.pattern if self.pattern is not None else target
        if not isinstance(pattern, str) or not pattern:
            return Verdict(None, "there is no pattern: the grader has none, and the target is none")
        matches = self._matcher(pattern)
        if isinstance(matches, str):
            return Verdict(None, f"the target is no pattern: {matches}")
        text = clean(answer)
        found = matches(text.strip() if self.whole else text)
        return Verdict(float(found), "" if found else f"the pattern {_short(pattern)} is not found")

    def _matcher(self, pattern: str) -> Callable[[str], bool] | str:
        """What finds the pattern, or what is wrong with it. A few are remembered: a pattern is often for all tasks."""
        if pattern not in self._known:
            if len(self._known) > 100:
                self._known.clear()
            self._known[pattern] = self._compiled(pattern)
        return self._known[pattern]

    def _compiled(self, pattern: str) -> Callable[[str], bool] | str:
        from pydantic_core import SchemaError, SchemaValidator, core_schema

        if len(pattern) > MAX_PATTERN:
            return f"a pattern has at most {MAX_PATTERN:,} characters"
        flags = f"(?{self.flags})" if self.flags else ""
        # the pattern by itself comes first: one that leaves its group is none, also where another one is around it
        texts = [f"{flags}{pattern}", *([rf"{flags}\A(?:{pattern})\z"] if self.whole else [])]
        try:
            found = [SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex", strict=True))
                     for text in texts]  # fmt: skip
            return found[-1].isinstance_python
        except SchemaError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return next((line for line in reversed(lines) if line.startswith("error:")), lines[-1])


def _short(text: str) -> str:
    return repr(cut_end(" ".join(text.split()), SHOWN))
