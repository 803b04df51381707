"""The grader of numbers: which number an answer ends in, and whether it is near enough to the target."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from registry.toml_file import Table, shown

from .base import RuleGrader, Verdict, at_least_0

MAX_CHARS = 100_000
"""Only so many of an answer's last characters are looked through: a final number stands at the end."""
RELATIVE = 1e-6
"""Relative difference that still counts as equal where nothing is said: a number written with six or more digits."""
NEAR = 200
"""Characters after a word such as "answer:" in which its number is looked for."""

_DIGITS = r"(?:\d{1,3}(?:,\d{2,3}){0,12},\d{3}(?!\d)|\d{1,40})(?P<part>\.\d{1,40})?|(?P<bare>\.\d{1,40})"
_POWER = (
    r"(?:[eE][+-]?\d{1,3}(?![\w.])|[ ]?(?:[\u00d7x*\u00b7]|\\times|\\cdot)[ ]?10[ ]?(?:\^|\*\*)[ ]?\{?[+-]?\d{1,3}\}?)"
)
_NUMBER = re.compile(
    rf"(?P<latex>(?P<latex_sign>-)?\\[dt]?frac\{{(?P<over>-?\d{{1,20}})\}}\{{(?P<under>\d{{1,20}})\}})"
    rf"|(?:(?<![\w)\].%])(?P<sign>[-+]))?(?:[$€£¥₹][ ]?(?P<inner>-)?)?(?<![\d/.])"
    rf"(?P<digits>{_DIGITS})(?(part)|(?(bare)|(?P<comma>,\d{{1,2}}(?![\d,]))?))(?P<power>{_POWER})?"
    rf"(?:(?:[ ](?P<whole_over>\d{{1,9}}))?[ ]?/[ ]?(?P<bottom>\d{{1,20}})(?![\d/.]))?"
    rf"(?:[ ]?(?P<glyph>[¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]))?"
    rf"(?P<after>[ ]?(?:%|\\%|percent\b|per[ ]cent\b)|[ ](?:thousand|million|billion|trillion)\b)?"
    rf"|(?P<lone>[¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])",
    re.IGNORECASE,
)
_MARKS = (
    re.compile(r"####"),  # how GSM8K's answers end
    re.compile(r"\\boxed\{"),
    re.compile(r"\banswer\b[\s*_]{0,4}(?:is|=|:)", re.IGNORECASE),
)
"""What announces a final number, the surest first; the last number of the text where there is none of these."""
_THOUSANDS = re.compile(r"(?<=\d)(?:[\u00a0\u2009\u202f]|\\,)(?=\d{3}(?!\d))")
_POWER_PARTS = re.compile(r"([+-]?\d+)\}?$")
_TIMES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}


@dataclass(frozen=True, slots=True)
class Read:
    """A number as it was read: its words in the text, its value, and whether it is a percentage."""

    text: str
    value: float
    percent: bool = False

    @property
    def values(self) -> tuple[float, ...]:
        """What it may mean: 45 % is 45 or 0.45."""
        return (self.value, self.value / 100) if self.percent else (self.value,)


def numbers_in(text: str) -> Iterator[Read]:
    """The numbers of a text in its order: signs, thousands (1,234.50), currencies, percentages, fractions (3/4, 1 1/2,
    ½, LaTeX), powers of ten, and thousand to trillion. A comma before one or two last digits is a decimal comma."""
    for found in _NUMBER.finditer(text):
        read = _value(found)
        if read is not None and math.isfinite(read.value):
            yield read


def final_number(text: str) -> Read | None:
    """The number that an answer ends in: after the last ####, in the last \\boxed{}, after the last "answer is" (or
    "answer:"), else the last number of all; None where there is none. Where a sum follows what announces it, the number
    behind its last "=" counts, else the first one."""
    text = _plain(text[-MAX_CHARS:])
    for mark in _MARKS:
        *_, last = (-1, *(found.end() for found in mark.finditer(text)))
        if last >= 0:
            line = text[last : last + NEAR].lstrip().partition("\n")[0]
            read = next(numbers_in(line.rpartition("=")[2]), None) or next(numbers_in(line), None)
            if read is not None:
                return read
    return _last(text)


class Numeric(RuleGrader):
    """1 where the final number of the answer is the target, else 0.

    The target is a number, a text that ends in one, or a list of several right ones. They are equal where they differ
    by no more than `tolerance` (absolute, 0 by default) or by `relative` times the target (0.000001 by default). A
    percentage equals its number and its hundredth.
    """

    def __init__(self, table: Table) -> None:
        table.only(("tolerance", "relative"))
        self.tolerance, self.relative = at_least_0(table, "tolerance", 0), at_least_0(table, "relative", RELATIVE)

    def verdict(self, target: Any, answer: str) -> Verdict:
        """What the answer is worth."""
        wanted = [number_of(one) for one in (target if isinstance(target, list | tuple) else [target])]
        numbers = [one for one in wanted if one is not None]
        if not numbers or len(numbers) < len(wanted):
            return Verdict(None, f"the target is no number: {shown(target)}")
        read = final_number(answer)
        if read is None:
            return Verdict(0.0, "there is no number in the answer")
        right = any(self._equal(read, one) for one in numbers)
        told = f"read {read.text!r} as {read.value:.12g}{' %' if read.percent else ''}"
        details = {"read": read.text, "value": read.value}
        missed = " or ".join(f"{one.value:.12g}" for one in numbers)
        return Verdict(float(right), told if right else f"{told}, not {missed}", details)

    def _equal(self, read: Read, wanted: Read) -> bool:
        if read.percent == wanted.percent:
            return self._near(read.value, wanted.value)
        return any(self._near(one, two) for one in read.values for two in wanted.values)

    def _near(self, one: float, two: float) -> bool:
        return abs(one - two) <= max(self.tolerance, self.relative * abs(two))


def number_of(target: Any) -> Read | None:
    """A target as a number; None where it is none."""
    if isinstance(target, bool) or not isinstance(target, int | float | str):
        return None
    if isinstance(target, str):
        return final_number(target)
    try:
        return Read(str(target), float(target)) if math.isfinite(target) else None
    except OverflowError:
        return None


def _plain(text: str) -> str:
    """Other signs for minus, spaces and digits as ASCII has them; thousands that LaTeX or a narrow space keeps apart
    joined."""
    text = _THOUSANDS.sub(",", text)
    text = text.replace("\u2212", "-").replace("\u2044", "/").replace("\u00a0", " ").replace("\u202f", " ")
    text = text.replace("{,}", ",").replace("\\,", "").replace("\\$", "$")
    if not text.isascii():
        text = "".join(str(unicodedata.digit(sign)) if sign.isdecimal() else sign for sign in text)
    return text


def _last(text: str) -> Read | None:
    last = None
    for last in numbers_in(text):  # noqa: B007 - the last one is wanted
        pass
    return last


def _value(found: re.Match[str]) -> Read | None:
    told = found[0].strip()
    if found["latex"]:
        under = int(found["under"])
        sign = -1 if found["latex_sign"] else 1
        return Read(told, sign * int(found["over"]) / under) if under else None
    if found["lone"]:
        return Read(told, unicodedata.numeric(found["lone"]))
    value = float(found["digits"].replace(",", "") + (found["comma"] or "").replace(",", "."))
    if found["power"]:
        exponent = _POWER_PARTS.search(found["power"])
        value = float(f"{value!r}e{int(exponent[1]) if exponent else 0}") if "e" not in repr(value) else math.inf
    if found["bottom"]:
        bottom = int(found["bottom"])
        if not bottom:
            return None
        value = value + int(found["whole_over"]) / bottom if found["whole_over"] else value / bottom
    if found["glyph"]:
        value += unicodedata.numeric(found["glyph"])
    after = (found["after"] or "").strip().lower()
    value *= _TIMES.get(after, 1.0)
    if found["sign"] == "-" or found["inner"]:
        value = -value
    return Read(told, value, bool(after) and after not in _TIMES)
