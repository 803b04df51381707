"""What both arms share: the fixed set, the two tools, the record of every reply, and the scoring."""

from __future__ import annotations

import ast
import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PLAN_TOKENS, TURN_TOKENS, MAX_TURNS = 400, 160, 8
"""The same output limits, in tokens and turns, for both arms."""

PEOPLE_AND_CITIES = (
    "one person (Ada, Bo, Cy, Dina, Egon, Fay: team, age, city, salary) "
    "or one city (Lyon, Porto, Turin, Ghent, Graz: country, population)"
)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; none where there is no file. A last line cut by an interruption is left out."""
    if not path.exists():
        return []
    lines = path.read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


GOALS, QUESTIONS = read_lines(HERE / "goals.jsonl"), read_lines(HERE / "questions.jsonl")
FACTS: dict[str, dict[str, Any]] = {
    name: facts
    for kind in json.loads((HERE / "facts.json").read_text("utf-8")).values()
    for name, facts in kind.items()
}

# The tools

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def _value(node: ast.AST) -> float:
    match node:
        case ast.Expression(body=body):
            return _value(body)
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return float(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return float(_OPERATORS[type(op)](_value(operand)))
    raise ValueError("only numbers and + - * / // % ( ) are understood")


def calculator(expression: str) -> str:
    """Evaluates one arithmetic expression made of numbers; raises ValueError and ZeroDivisionError."""
    try:
        number = _value(ast.parse(expression.strip(), mode="eval"))
    except SyntaxError:
        raise ValueError("this is no arithmetic expression") from None
    return f"{round(number, 6):.6f}".rstrip("0").rstrip(".")


def lookup(name: str) -> str:
    """Facts about one person or city; raises ValueError."""
    for known, facts in FACTS.items():
        if known.lower() == name.strip().lower():
            return f"{known}: " + ", ".join(f"{key} {value}" for key, value in facts.items())
    raise ValueError(f"nothing is known about {name!r}")


# Replies are kept


def digest(value: Any) -> str:
    """A short name for a request."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


@dataclass
class Record:
    """One arm's file of replies and outcomes: written line by line, so that a run can go on where it stopped."""

    arm: str
    item: str = ""
    turn: int = 0
    replies: dict[tuple[str, int, str], dict[str, Any]] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the lines go."""
        return HERE / "results" / f"{self.arm}.jsonl"

    @classmethod
    def load(cls, arm: str) -> Record:
        """What is known already."""
        record = cls(arm)
        for line in read_lines(record.path):
            if line["kind"] == "reply":
                record.replies[line["item"], line["turn"], line["request"]] = line
            else:
                record.outcomes[line["item"]] = line
        return record

    def begin(self, item: str) -> None:
        """The replies that follow belong to this item."""
        self.item, self.turn = item, 0

    def known(self, request: Any) -> dict[str, Any] | None:
        """The kept reply to this very request at this turn; counts the turn."""
        self.turn += 1
        return self.replies.get((self.item, self.turn, digest(request)))

    def keep(self, request: Any, **data: Any) -> dict[str, Any]:
        """Keeps the reply to the request just asked about."""
        line = {"kind": "reply", "item": self.item, "turn": self.turn, "request": digest(request), **data}
        self.replies[self.item, self.turn, line["request"]] = line
        self._write(line)
        return line

    def finish(self, **data: Any) -> None:
        """Keeps what became of the item."""
        line = {"kind": "outcome", "item": self.item, "turns": self.turn, **data}
        if self.outcomes.get(self.item) != line:
            self.outcomes[self.item] = line
            self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        self.path.parent.mkdir(exist_ok=True)
        text = self.path.read_text("utf-8") if self.path.exists() else ""
        if text and not text.endswith("\n"):  # the rest of an interrupted line
            self.path.write_text(text[: text.rfind("\n") + 1], "utf-8")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


# Scoring


def strict_plan(value: Any) -> str | None:
    """What is wrong with a plan that must be right as it is; None: nothing."""
    steps = value.get("steps") if isinstance(value, dict) else None
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        return "no list of steps"
    for step in steps:
        texts = all(isinstance(step.get(key), str) and step[key].strip() for key in ("id", "task"))
        if not texts or not isinstance(step.get("dependencies"), list):
            return "a step without id, task or list of dependencies"
    return _graph_fault({step["id"]: step["dependencies"] for step in steps}, len(steps))


def _graph_fault(needs: dict[str, list[Any]], steps: int) -> str | None:
    if len(needs) < steps:
        return "an id twice"
    if any(not isinstance(need, str) or need not in needs for rest in needs.values() for need in rest):
        return "an unknown dependency"
    while ready := [step for step, rest in needs.items() if not set(rest) & set(needs)]:
        for step in ready:
            del needs[step]
    return "a cycle" if needs else None


_GROUPED = re.compile(r"(?<=\d)[,\u00a0\u202f ](?=\d{3}(?!\d))")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def right(answer: str | None, question: dict[str, Any]) -> bool:
    """Whether all that must be in the answer is there, as a whole number or word, and nothing that must not."""
    text = _GROUPED.sub("", answer or "")
    numbers, words = [float(number) for number in _NUMBER.findall(text)], set(re.findall(r"\w+", text.lower()))

    def has(wanted: Any) -> bool:
        if isinstance(wanted, list):
            return any(has(one) for one in wanted)
        if isinstance(wanted, str):
            return wanted.lower() in words
        return any(abs(number) == wanted for number in numbers)

    return all(has(one) for one in question["must"]) and not any(has(one) for one in question["must_not"])


def items(kind: str | None = None, limit: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fixed set: ("plan", goal) and ("question", question)."""
    for name, rows in (("plan", GOALS), ("question", QUESTIONS)):
        if kind in (None, name):
            yield from ((name, row) for row in rows[:limit])
