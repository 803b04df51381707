"""Exact decimal arithmetic for models: a small parser of its own over `decimal`, no `eval`."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal

from registry.errors import DagwrightError
from registry.tools import Tool, tool

DIGITS = 34
"""Significant digits, as in IEEE 754's decimal128."""

MAX_EXPONENT = 999
"""Powers of ten beyond which a result is refused: it is written out in full."""

MAX_CHARS = 2_000
MAX_DEPTH = 100

VALID = "A valid expression looks like (12.5 + 3) * 4: numbers, + - * / // % ** and brackets, nothing else."

_CONTEXT = Context(
    prec=DIGITS,
    rounding=ROUND_HALF_EVEN,
    Emin=-MAX_EXPONENT,
    Emax=MAX_EXPONENT,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow, decimal.Subnormal],
)
_TOKEN = re.compile(r"\s*(?:((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)|(\*\*|//|[-+*/%()]))")
_SIGNS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-"})  # multiplication, division, minus signs
_HINTS = {
    "^": "powers are written **",
    ",": "numbers go without thousands separators, and a decimal point is a dot",
    "_": "numbers go without thousands separators",
    "=": "only the expression is wanted, without an equals sign",
    "$": "numbers go without currency signs",
    "€": "numbers go without currency signs",
}


class CalculationError(DagwrightError, ValueError):
    """The expression can't be calculated."""

    code = "calculation"

    def __init__(self, message: str = "") -> None:
        super().__init__(f"{message or 'the expression cannot be calculated'}. {VALID}")


def calculate(expression: str) -> str:
    """The value of an expression of + - * / // % ** and brackets, to 34 digits, half-even, in plain notation.

    Signs bind as in Python: `**` before a sign on its left, from right to left; `//` rounds down and `%` has the sign
    of the divisor. Raises CalculationError, which says what is wrong and what a valid expression looks like.
    """
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"the expression has {len(expression)} characters, at most {MAX_CHARS} are taken")
    try:
        return _plain(_CONTEXT.plus(_Parser(_tokens(expression)).whole()))
    except decimal.DivisionByZero:
        raise CalculationError("division by zero") from None
    except decimal.Overflow:
        raise CalculationError("the result is too large") from None
    except decimal.Subnormal:
        raise CalculationError("the result is too close to zero") from None
    except decimal.InvalidOperation:
        raise CalculationError("this has no result among the real numbers, or one of too many digits") from None


def _plain(value: Decimal) -> str:
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _tokens(expression: str) -> list[str]:
    text = expression.translate(_SIGNS).rstrip()
    if not text:
        raise CalculationError("the expression is empty")
    tokens, position = [], 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _unexpected(text[position:].lstrip())
        tokens.append(found[1] or found[2])
        position = found.end()
    return tokens


def _unexpected(rest: str) -> CalculationError:
    if word := re.match(r"[^\W\d_]\w*", rest):
        return CalculationError(f"{word[0][:40]!r} is a name: names and functions are not known here")
    hint = _HINTS.get(rest[0])
    return CalculationError(f"{rest[0]!r} is not allowed" + (f": {hint}" if hint else ""))


def _floor_div(left: Decimal, right: Decimal) -> Decimal:
    whole, rest = _CONTEXT.divide_int(left, right), _CONTEXT.remainder(left, right)
    return _CONTEXT.subtract(whole, Decimal(1)) if rest and (rest < 0) != (right < 0) else whole


def _modulo(left: Decimal, right: Decimal) -> Decimal:
    if not right:
        raise decimal.DivisionByZero
    rest = _CONTEXT.remainder(left, right)
    return _CONTEXT.add(rest, right) if rest and (rest < 0) != (right < 0) else rest


def _quotient(divide: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Decimal, Decimal], Decimal]:
    def divided(left: Decimal, right: Decimal) -> Decimal:
        if not right:  # decimal calls 0/0 an invalid operation
            raise decimal.DivisionByZero
        return divide(left, right)

    return divided


_SUM = {"+": _CONTEXT.add, "-": _CONTEXT.subtract}
_PRODUCT = {"*": _CONTEXT.multiply, "/": _quotient(_CONTEXT.divide), "//": _quotient(_floor_div), "%": _modulo}


class _Parser:
    """Recursive descent over the tokens; depth is bounded, so no input reaches the interpreter's recursion limit."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> Decimal:
        value = self._sum()
        if (rest := self._peek()) is not None:
            raise CalculationError(f"an operator is missing before {rest!r}" if rest != ")" else "a ')' has no '('")
        return value

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> str:
        token = self._peek()
        if token is None:
            raise CalculationError("the expression ends where a number is expected")
        self._next += 1
        return token

    def _sum(self) -> Decimal:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(f"brackets or powers are nested more than {MAX_DEPTH} deep")
        value = self._product()
        while self._peek() in ("+", "-"):
            value = _SUM[self._take()](value, self._product())
        self._depth -= 1
        return value

    def _product(self) -> Decimal:
        value = self._signed()
        while self._peek() in _PRODUCT:
            value = _PRODUCT[self._take()](value, self._signed())
        return value

    def _signed(self) -> Decimal:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._take() == "-"
        value = self._power()
        return value.copy_negate() if negative else value

    def _power(self) -> Decimal:
        base = self._atom()
        if self._peek() != "**":
            return base
        self._take()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(f"brackets or powers are nested more than {MAX_DEPTH} deep")
        exponent = self._signed()
        self._depth -= 1
        if not base and exponent < 0:
            raise decimal.DivisionByZero
        return Decimal(1) if not base and not exponent else _CONTEXT.power(base, exponent)

    def _atom(self) -> Decimal:
        token = self._take()
        if token == "(":
            value = self._sum()
            if self._peek() != ")":
                raise CalculationError("a ')' is missing")
            self._take()
            return value
        if token[0].isdigit() or token[0] == ".":
            return Decimal(token)  # exact, however many digits: only results are rounded
        raise CalculationError(f"a number is expected, not {token!r}")


def calculate_tool() -> Tool:
    """The tool `calculate`."""

    def run(expression: str) -> str:
        """Calculates an arithmetic expression exactly and returns its value in plain decimal notation.

        Takes numbers, brackets and the operators + - * / // % ** only. No names, functions, units, currency signs
        or thousands separators. Use it for every calculation instead of calculating yourself.

        Args:
            expression: The arithmetic expression.
        """
        return calculate(expression)

    return tool(name="calculate", read_only=True, idempotent=True, pure=True, timeout=10.0)(run)
