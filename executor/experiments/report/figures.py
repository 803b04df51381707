"""Figures as people read them, in every form of a report alike."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from executor.experiments.stats import Estimate

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufffe\uffff]")
"""What XML does not allow, no page shows, or turns the direction of reading."""
LISTED = 3
"""So many names stand in a sentence; of the others only how many they are."""


def printable(text: str) -> str:
    """The text with such characters as escapes."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def percent(value: float, digits: int = 1) -> str:
    """A share: 0.857 is 85.7 %."""
    return f"{100 * value:.{digits}f} %"


def span(estimate: Estimate) -> str:
    """The interval of a share, in percent: [83.7, 87.5]."""
    return f"[{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def signed(value: float) -> str:
    """A difference of shares in points (hundredths): +1.2. Never -0.0."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"


def points_span(difference: Estimate) -> str:
    """The interval of a difference, in points: [-0.4, +2.1]."""
    return f"[{signed(difference.low)}, {signed(difference.high)}]"


def lower(difference: float) -> str:
    """A difference below 0, without its sign: 1.2 points lower."""
    return f"{abs(100 * difference):.1f} points lower"


def usd(value: float) -> str:
    """Money with three digits that count: $0.00124, $12.30."""
    if value == 0:
        return "$0"
    size = abs(value)
    digits = 2 if size >= 1 else min(12, 2 - math.floor(math.log10(size)))
    text = f"{size:,.{digits}f}"
    if digits > 2:
        whole, _, rest = text.partition(".")
        text = f"{whole}.{rest.rstrip('0').ljust(2, '0')}"
    return f"{'-' if value < 0 else ''}${text}"


def p_text(p: float) -> str:
    """p < 0.001, p = 0.012, p = 0.34."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def p_value(p: float) -> str:
    """The same under a head that says p: < 0.001, 0.012, 0.34."""
    return p_text(p).removeprefix("p ").removeprefix("= ")


def times(ratio: Estimate) -> str:
    """A ratio: x 0.42."""
    return f"x {ratio.mean:.2f}"


def times_span(ratio: Estimate) -> str:
    """Its interval: [0.39, 0.45]; nothing where it is not known."""
    return f"[{ratio.low:.2f}, {ratio.high:.2f}]" if math.isfinite(ratio.low) else ""


def compared(ratio: Estimate, other: str) -> str:
    """What a cost is beside another: 58 % less than strong [55, 61]."""
    known = not math.isnan(ratio.low)
    if ratio.mean < 1:
        ends = f" [{100 * (1 - ratio.high):.0f}, {100 * (1 - ratio.low):.0f}]" if known else ""
        return f"{whole_percent(1 - ratio.mean)} less than {other}{ends}"
    if ratio.mean == 1:
        return f"as much as {other}"
    ends = f" [{100 * (ratio.low - 1):.0f}, {100 * (ratio.high - 1):.0f}]" if known else ""
    return f"{whole_percent(ratio.mean - 1)} more than {other}{ends}"


def whole_percent(share: float) -> str:
    """A share without decimals, unless it would be told as all: 58 %, 99.7 %."""
    return percent(share, 0 if abs(share) < 0.995 or share >= 1 else 1)


def listed(names: Sequence[str], between: str = ", ") -> str:
    """The first three of some names, and how many more there are."""
    more = len(names) - LISTED
    return between.join(names[:LISTED]) + (f" and {more:,} more" if more > 0 else "")


def seconds(value: float) -> str:
    """A time: 0.84 s, 12.3 s, 250 s."""
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def rounded_up(count: int) -> str:
    """A number of tasks that is only about right: two digits that count, rounded up."""
    if count > 1_000_000:
        return "more than a million"
    step: int = 10 ** max(0, len(str(count)) - 2)
    return f"{-(-count // step) * step:,}"
