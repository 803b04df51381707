"""What makes a plan invalid. All that is wrong with a plan is said at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from registry.errors import DagwrightError
from registry.text import cut_end

from .graph import Deps, cycles

SHOWN_PROBLEMS = 20
"""Problems that the text of a PlanError spells out; `problems` has them all."""
SHOWN_CHARS = 200
"""Characters of one name in a message: enough to recognise it, whatever the model wrote."""


class Problem(NamedTuple):
    """One thing that is wrong: a stable code, the ids concerned, and the sentence for reader and model."""

    code: str
    names: tuple[str, ...]
    message: str


class PlanError(DagwrightError):
    """The plan is not valid.

    `problems` holds (code, names, message) for all that is wrong. Codes: not_a_plan empty_plan too_many_steps
    missing_id duplicate_id empty_task too_long unknown_dependency self_dependency cycle.
    """

    code: ClassVar[str] = "plan_invalid"

    def __init__(self, problems: Iterable[tuple[str, Sequence[str], str]]) -> None:
        self.problems = tuple(Problem(code, tuple(names), message) for code, names, message in problems)
        lines = [problem.message for problem in self.problems[:SHOWN_PROBLEMS]]
        if more := len(self.problems) - len(lines):
            lines.append(f"and {more} more")
        super().__init__("The plan is not valid: " + "; ".join(lines) if lines else "")

    @property
    def title(self) -> str:
        """The first problem as a headline."""
        return TITLES.get(self.problems[0].code, "The plan is not valid") if self.problems else "The plan is not valid"

    def to_json(self) -> list[list[Any]]:
        """The problems as plain JSON data."""
        return [[problem.code, list(problem.names), problem.message] for problem in self.problems]


TITLES = {
    "not_a_plan": "This is not a plan",
    "empty_plan": "The plan has no steps",
    "too_many_steps": "The plan has too many steps",
    "missing_id": "A step has no id",
    "duplicate_id": "Two steps have the same id",
    "empty_task": "A step has no task",
    "too_long": "A step is too long",
    "unknown_dependency": "A step depends on a step that does not exist",
    "self_dependency": "A step depends on itself",
    "cycle": "The plan has a cycle",
}


def quoted(name: str) -> str:
    """A name as it stands in messages: in quotes, cut."""
    return f'"{cut_end(name, SHOWN_CHARS)}"'


def dependency_problems(deps: Deps, kept: Iterable[str] = ()) -> list[Problem]:
    """Unknown dependencies, dependencies on oneself, and cycles, of which only the members are named."""
    known = {*deps, *kept}
    problems = []
    for node, others in deps.items():
        for other in others:
            if other == node:
                problems.append(Problem("self_dependency", (node,), f"step {quoted(node)} depends on itself"))
            elif other not in known:
                problems.append(unknown_dependency(node, other))
    for group in cycles({node: [other for other in others if other != node] for node, others in deps.items()}):
        names = ", ".join(quoted(node) for node in group)
        problems.append(Problem("cycle", group, f"the steps {names} wait for each other in a cycle"))
    return problems


def unknown_dependency(node: str, other: str) -> Problem:
    """The problem that a step names a step that there isn't."""
    message = f"step {quoted(node)} depends on {quoted(other)}, which is no step of the plan"
    return Problem("unknown_dependency", (node, cut_end(other, SHOWN_CHARS)), message)
