"""Numbers that options are given as texts."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation

from registry.errors import UsageError


def count_of(value: str | None, option: str) -> int | None:
    """A whole number above 0 given to an option. Raises UsageError."""
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and 0 < int(value) < 1 << 31):
        raise UsageError(f"{option} {value}: must be a whole number, at least 1")
    return int(value)


def usd_of(value: str | None, option: str) -> Decimal | None:
    """An amount of USD above 0 given to an option. Raises UsageError."""
    if value is None:
        return None
    try:
        amount = Decimal(value)
    except InvalidOperation:
        amount = Decimal(0)
    if not amount.is_finite() or amount <= 0:
        raise UsageError(f"{option} {value}: must be a number of USD, more than 0")
    return amount


def number_of(value: str | None, option: str, right: str = "a number") -> float | None:
    """A finite number given to an option; `right` says what it must be. Raises UsageError."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{option} {value}: must be {right}")
    return number
