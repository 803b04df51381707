"""calculate: exact, plain, and refusing at once what it can't or shouldn't do."""

import ast
import operator
import time
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.tool_run import run_tool
from registry.toolbox.calculate import CalculationError, calculate, calculate_tool

CONTEXT = Context(prec=34, rounding=ROUND_HALF_EVEN)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3480000 * 1.1", "3828000"),
        ("10/3", "3.333333333333333333333333333333333"),
        ("2/3", "0.6666666666666666666666666666666667"),
        ("0.1 + 0.2", "0.3"),
        ("1.50", "1.5"),
        ("100", "100"),
        ("1e5", "100000"),
        ("(1 + 2) * -3", "-9"),
        ("2 + 3 * 4 - 10 / 4", "11.5"),
        ("-2**2", "-4"),
        ("2**-1", "0.5"),
        ("2**3**2", "512"),
        ("(2**3)**2", "64"),
        ("2**0.5", "1.414213562373095048801688724209698"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 // -2", "-4"),
        ("7 % 3", "1"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("5.5 % 2", "1.5"),
        ("--1", "1"),
        ("-0", "0"),
        ("0 * -5", "0"),
        ("0 ** 0", "1"),
        (".5 + 1.", "1.5"),
        ("3 × 4 − 1 ÷ 2", "11.5"),
        ("12345678901234567890123456789012345", "12345678901234567890123456789012340"),
        ("1000000000000000000000000000000000.5 + 1", "1000000000000000000000000000000002"),
    ],
)
def test_values(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9**9", "too large"),
        ("10**1000", "too large"),
        ("10**-1000", "close to zero"),
        ("1/0", "division by zero"),
        ("0/0", "division by zero"),
        ("1//0", "division by zero"),
        ("1%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("(-8)**0.5", "real numbers"),
        ("abs(1)", "'abs' is a name"),
        ("__import__('os')", "'_' is not allowed"),
        ("x.y", "'x' is a name"),
        ("1 .real", "an operator is missing|is not allowed|is a name"),
        ("1,000", "thousands separators"),
        ("1_000", "thousands separators"),
        ("2 ^ 3", r"powers are written \*\*"),
        ("$3", "currency"),
        ("1 + 1 =", "equals sign"),
        ("10 %", "ends where a number is expected"),
        ("", "empty"),
        ("   ", "empty"),
        ("(1", "is missing"),
        ("1)", "has no"),
        ("()", "a number is expected"),
        ("* 2", "a number is expected"),
        ("1 2", "an operator is missing"),
        ("1.2.3", "an operator is missing"),
        ("５ + 1", "is not allowed"),
        ("1\x00", "is not allowed"),
        ("(" * 1_500 + "1", "nested"),
        ("2**" * 600 + "1", "nested"),
        ("1+" * 5_000 + "1", "characters"),
        ("1 if 1 else 2", "an operator is missing|is a name"),
        ("inf", "is a name"),
        ("1e99999", "."),
    ],
)
def test_refusals_come_at_once_and_end_with_a_valid_form(expression, says):
    started = time.monotonic()
    with pytest.raises(CalculationError, match=says) as caught:
        calculate(expression)
    assert time.monotonic() - started < 1
    assert str(caught.value).endswith("numbers, + - * / // % ** and brackets, nothing else.")


def test_many_signs_and_deep_brackets_within_the_bound():
    assert calculate("-" * 1_999 + "1") == "-1"
    assert calculate("(" * 99 + "1" + ")" * 99) == "1"


numbers = st.decimals(-10_000, 10_000, places=3, allow_nan=False).map(abs)


@st.composite
def expressions(draw, depth: int = 3) -> tuple[str, Decimal]:
    """A fully bracketed expression and its value by `decimal` directly."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        number = draw(numbers)
        return format(number, "f"), CONTEXT.plus(number)
    left, a = draw(expressions(depth - 1))
    right, b = draw(expressions(depth - 1))
    sign = draw(st.sampled_from("+-*/"))
    if sign == "/" and b == 0:
        sign = "+"
    operation = {"+": CONTEXT.add, "-": CONTEXT.subtract, "*": CONTEXT.multiply, "/": CONTEXT.divide}[sign]
    return f"({left}{draw(st.sampled_from(['', ' ']))}{sign} {right})", operation(a, b)


@settings(deadline=None, max_examples=200)
@given(expressions())
def test_agrees_with_decimal(case):
    expression, value = case
    got = calculate(expression)
    assert Decimal(got) == value
    assert "E" not in got.upper()
    assert not ("." in got and got.endswith("0"))


@settings(deadline=None, max_examples=200)
@given(st.integers(-(10**9), 10**9), st.integers(-(10**6), 10**6).filter(bool))
def test_integer_division_and_remainder_are_pythons(a, b):
    assert calculate(f"{a} // {b}") == str(a // b)
    assert calculate(f"{a} % {b}") == str(a % b)


def by_grammar(node: ast.AST) -> Fraction:
    """The value of Python's own parse of an expression, in fractions."""
    match node:
        case ast.Expression(body):
            return by_grammar(body)
        case ast.Constant(int() | float() as value):
            return Fraction(str(value))
        case ast.UnaryOp(ast.USub(), operand):
            return -by_grammar(operand)
        case ast.UnaryOp(ast.UAdd(), operand):
            return by_grammar(operand)
        case ast.BinOp(left, sign, right):
            a, b = by_grammar(left), by_grammar(right)
            if isinstance(sign, ast.Pow) and (b.denominator != 1 or abs(b) > 20):
                raise OverflowError
            return Fraction(OPERATIONS[type(sign)](a, b))
    raise SyntaxError


OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
OPERATORS = ("+", "-", "*", "/", "//", "%", "**")
SIGNS = st.sampled_from(["", "-", "+", "--"])
NUMBERS = st.sampled_from(["1", "2", "3", "7", "2.5", "0.25", "10"])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(SIGNS, NUMBERS), min_size=6), st.lists(st.sampled_from(OPERATORS), max_size=5))
def test_binds_as_python_does(numbers, signs):
    expression = "".join(f"{a}{n}{sign}" for (a, n), sign in zip(numbers, [*signs, ""], strict=False))
    try:
        value = by_grammar(ast.parse(expression, mode="eval"))
    except (OverflowError, ZeroDivisionError, SyntaxError):
        return
    exact = all(part in (2, 5) for part in factors(value.denominator)) and len(str(value.numerator)) < 25
    if "/" in expression.replace("//", "") and not exact:  # a rounded quotient may fall on the other side of a step
        return
    if abs(value) > 10**30 or "**" in expression:
        assert float(calculate(expression)) == pytest.approx(float(value), rel=1e-12)
    else:
        assert Fraction(calculate(expression)) == value


def factors(number: int) -> set[int]:
    found, divisor = set(), 2
    while number > 1 and divisor < 100:
        while number % divisor == 0:
            found.add(divisor)
            number //= divisor
        divisor += 1
    return found | ({number} if number > 1 else set())


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60))
def test_any_text_gives_a_value_or_a_refusal(text):
    try:
        shown = calculate(text)
    except CalculationError as error:
        shown = str(error)
    assert "A valid expression looks like" in shown or Decimal(shown).is_finite()


async def test_the_tool():
    tool = calculate_tool()
    assert (tool.read_only, tool.pure, tool.idempotent) == (True, True, True)
    assert (await run_tool(tool, tool.check({"expression": "3480000 * 1.1"}))).text == "3828000"
    refused = await run_tool(tool, {"expression": "9**9**9"})
    assert refused.is_error
    assert "valid expression" in refused.text
