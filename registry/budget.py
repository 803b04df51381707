"""What a job may cost, and the accounts that keep it to that: reserve before a call, settle after it. Pure values.

A call may cost at most its input bound and its output bound. The input bound is the number of bytes of the request's
body (no tokenizer makes more tokens than bytes; messages hold no images) and a constant for what providers add unseen;
the output bound is the limit that is sent with the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal, InvalidOperation
from typing import Any, ClassVar

from .errors import UsageError
from .llm_types import Prepared
from .messages import Usage, money
from .prices import Price

HIDDEN_TOKENS = 1_024
"""Input tokens that a provider may add unseen where tools or a response format are described to the model: Anthropic's
page "Tool use pricing and tokens" lists up to 530; the rest is for models to come."""
ANSWER_INPUT_TOKENS, ANSWER_OUTPUT_TOKENS = 8_192, 1_024
"""The final answer that a budget keeps a reserve for: input bound and output bound."""
ANSWER_SHARE = 4
"""The reserve is at most one in this many parts of the budget."""
SMALLEST, LARGEST = Decimal("1e-12"), Decimal(10**15)
"""USD, tokens or seconds of a budget: beyond is no budget but a slip, and could not be reckoned with exactly."""
MIN_OUTPUT_TOKENS = 256
"""Below this an output limit is not lowered: the answer would only be cut."""

RIGHT = "an amount such as 0.50usd, $0.50, 20000tokens, 20k tokens, 600s or 10m, or several of them joined by commas"
"""What a budget as text must be."""

_NUMBER = r"(\d+(?:_\d+)*(?:\.\d+)?|\.\d+)"
_USD = re.compile(rf"\$\s*{_NUMBER}|{_NUMBER}\s*(?:usd|\$)?", re.IGNORECASE)
_TOKENS = re.compile(rf"{_NUMBER}\s*([km])?\s*tok(?:en)?s?", re.IGNORECASE)
_TIME = re.compile(rf"{_NUMBER}\s*(s|sec|seconds?|m|min|minutes?|h|hours?)", re.IGNORECASE)
_THOUSANDS = {"": 1, "k": 1_000, "m": 1_000_000}
_SECONDS = {"s": 1, "m": 60, "h": 3_600}


class BudgetUnpricedError(UsageError):
    """A budget in money was given, but a model has no price: the limit could never be kept."""

    code: ClassVar[str] = "budget_unpriced"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job may cost at most: USD, tokens (input and output together), seconds of its own work (waits for a human
    not counted). None: no such limit; at least one is needed. Raises UsageError."""

    usd: Decimal | None = None
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("usd", self.usd), ("tokens", self.tokens), ("seconds", self.seconds)):
            if value is not None:
                object.__setattr__(self, name, _limit(name, value))
        if self.usd is None and self.tokens is None and self.seconds is None:
            raise UsageError("the budget is empty: give usd, tokens or seconds")

    @classmethod
    def of(cls, value: Any) -> Budget:
        """A budget from what a caller may give: a Budget, a mapping with usd, tokens and seconds, a bare number (USD),
        or a text as the command takes it. Raises UsageError, which says what is right."""
        if isinstance(value, Budget):
            return value
        if isinstance(value, Mapping):
            if unknown := sorted(str(key) for key in value if key not in ("usd", "tokens", "seconds")):
                raise UsageError(f"a budget has no {unknown[0]!r}: there are usd, tokens and seconds")
            return cls(**value)
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return cls(usd=value)  # type: ignore[arg-type]  # made a Decimal by the check
        raise UsageError(
            f"budget {value!r}: must be a Budget, a number of USD, a mapping with usd, tokens and seconds, or {RIGHT}"
        )

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget as the command takes it: `0.50usd`, `20k tokens`, `10m`, several joined by commas. A number alone is
        USD. Raises UsageError."""
        found: dict[str, Any] = {}
        for part in text.split(","):
            name, amount = _part(part.strip(), text)
            if name in found:
                raise UsageError(f"budget {text!r} gives {name} twice: must be {RIGHT}")
            found[name] = amount
        return cls(**found)

    def __str__(self) -> str:
        parts = [
            None if self.usd is None else f"{money(self.usd)}usd",
            None if self.tokens is None else f"{self.tokens}tokens",
            None if self.seconds is None else f"{money(Decimal(repr(self.seconds)))}s",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def counts(self) -> bool:
        """Whether calls count against it: it limits money or tokens."""
        return self.usd is not None or self.tokens is not None


def _part(part: str, whole: str) -> tuple[str, Any]:
    if (match := _USD.fullmatch(part)) and not (match[0].isdecimal() and "," in whole):  # "20,000" is no two amounts
        return "usd", Decimal((match[1] or match[2]).replace("_", ""))
    if match := _TOKENS.fullmatch(part):
        return "tokens", Decimal(match[1].replace("_", "")) * _THOUSANDS[(match[2] or "").lower()]
    if match := _TIME.fullmatch(part):
        return "seconds", float(match[1].replace("_", "")) * _SECONDS[match[2][0].lower()]
    raise UsageError(f"budget {whole!r}: must be {RIGHT}")


def _limit(name: str, value: Any) -> Any:
    try:
        number = None if isinstance(value, bool) else Decimal(str(value).strip())
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or number <= 0:
        raise UsageError(f"budget {name} = {value!r}: must be a number, more than 0")
    if not SMALLEST <= number <= LARGEST:
        raise UsageError(f"budget {name} = {value!r}: must be from {SMALLEST:f} to {LARGEST:,}")
    if name == "usd":
        return number
    if name == "seconds":
        return float(number)
    if number != int(number):
        raise UsageError(f"budget tokens = {value!r}: must be a whole number, more than 0")
    return int(number)


@dataclass(frozen=True, slots=True)
class Amount:
    """Money and tokens."""

    usd: Decimal = Decimal(0)
    tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.usd + other.usd, self.tokens + other.tokens)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.usd - other.usd, self.tokens - other.tokens)

    def within(self, other: Amount) -> bool:
        """Whether no part of it is more than the other's."""
        return self.usd <= other.usd and self.tokens <= other.tokens


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class CallBound:
    """What one call may cost at most, by the output limit that is sent. `price` None: only tokens are counted."""

    input_tokens: int
    price: Price | None

    @classmethod
    def of(cls, prepared: Prepared, price: Price | None) -> CallBound:
        """The bound of a prepared call."""
        request = prepared.request
        described = request.tools or request.response_format is not None
        hidden = described or any(message.tool_calls or message.role == "tool" for message in request.messages)
        return cls(len(prepared.body) + (HIDDEN_TOKENS if hidden else 0), price)

    def amount(self, output_tokens: int) -> Amount:
        """The most that the call costs with this output limit."""
        usd = Decimal(0) if self.price is None else self.price.bound(self.input_tokens, output_tokens)
        return Amount(usd, self.input_tokens + output_tokens)

    def output_within(self, room: Room) -> int | None:
        """The highest output limit with which the call stays within the room, below 1 where there is none; None: the
        room sets no limit."""
        limits = []
        if room.tokens is not None:
            limits.append(room.tokens - self.input_tokens)
        if room.usd is not None and self.price is not None:
            rest, each = room.usd - self.price.bound(self.input_tokens, 0), self.price.bound(0, 1)
            if rest < 0:
                limits.append(0)
            elif each > 0:
                limits.append(int((rest / each).to_integral_value(ROUND_FLOOR)))
        return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class Room:
    """What may still be spent; None: without limit."""

    usd: Decimal | None = None
    tokens: int | None = None

    def holds(self, amount: Amount) -> bool:
        """Whether the amount fits."""
        return (self.usd is None or amount.usd <= self.usd) and (self.tokens is None or amount.tokens <= self.tokens)

    def part(self, share: int) -> Room:
        """One of so many equal parts."""
        return Room(
            None if self.usd is None else self.usd / share, None if self.tokens is None else self.tokens // share
        )


@dataclass(frozen=True, slots=True)
class Account:
    """A budget in money and tokens: what is spent, what is held for calls under way, what is kept for the answer.

    Calls other than the final answer's may use what is left beyond `kept`.
    """

    budget: Budget
    kept: Amount = NOTHING
    spent: Amount = NOTHING
    held: Amount = NOTHING

    def room(self, *, final: bool, held: Amount | None = None) -> Room:
        """What a new call may cost. `held`: as if only this were held."""
        taken = self.spent + (self.held if held is None else held) + (NOTHING if final else self.kept)
        usd, tokens = self.budget.usd, self.budget.tokens
        return Room(None if usd is None else usd - taken.usd, None if tokens is None else tokens - taken.tokens)

    def reserve(self, amount: Amount) -> Account:
        """Sets an amount aside."""
        return replace(self, held=self.held + amount)

    def settle(self, held: Amount, spent: Amount) -> Account:
        """What was set aside for a call is free again; what it cost is spent."""
        return replace(self, held=self.held - held, spent=self.spent + spent)

    def release(self, held: Amount) -> Account:
        """What was set aside for a call that was not made is free again."""
        return self.settle(held, NOTHING)


def answer_reserve(budget: Budget, price: Price | None) -> Amount:
    """What is kept for the final answer: what a call with 8,192 input and 1,024 output tokens may cost on the model
    that writes it, at most a quarter of the budget."""
    bound = CallBound(ANSWER_INPUT_TOKENS, price).amount(ANSWER_OUTPUT_TOKENS)
    quarter = Room(budget.usd, budget.tokens).part(ANSWER_SHARE)
    return Amount(
        Decimal(0) if quarter.usd is None else min(bound.usd, quarter.usd),
        0 if quarter.tokens is None else min(bound.tokens, quarter.tokens),
    )


def cost_of(usage: Usage, price: Price | None) -> Amount:
    """What a call of known usage cost, at the price where the provider named no money."""
    usd = usage.cost
    if usd is None:
        usd = Decimal(0) if price is None else price.cost(usage)
    return Amount(usd, max(0, usage.input_tokens) + max(0, usage.output_tokens))


def input_within(room: Room, price: Price | None, output_tokens: int) -> int | None:
    """The highest input bound, in bytes, with which a call of this output limit stays within the room; None: the room
    sets no limit."""
    limits = []
    if room.tokens is not None:
        limits.append(room.tokens - output_tokens)
    if room.usd is not None and price is not None:
        rest, each = room.usd - price.bound(0, output_tokens), price.bound(1, 0)
        if each > 0:
            limits.append(int((rest / each).to_integral_value(ROUND_FLOOR)))
        elif rest < 0:
            limits.append(0)
    return None if not limits else max(0, min(limits))
