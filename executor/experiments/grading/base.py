"""What every grader is: it turns a task and what came of it into a score, and says why."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from executor.experiments.types import Grade, Outcome, Task
from registry.toml_file import Table

NO_TARGET = "the task has no target"
ANSWERED = ("completed", "partial")
"""States of a job that has an answer. What ended otherwise has none, whatever text it left, and is worth 0."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A score from 0 to 1, None where the answer could not be judged; `reason` says what was read and why."""

    score: float | None
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class Grader(ABC):
    """Judges the answers of cells. The same cell gets the same grade. `needs_target`: tasks must have one."""

    needs_target: ClassVar[bool] = True

    @abstractmethod
    async def judge(self, task: Task, outcome: Outcome) -> Grade:
        """The grade of a cell that has an answer."""

    async def grade(self, task: Task, outcome: Outcome) -> Grade:
        """The grade of a cell: 0 where its job has no answer, none where the task lacks a target that is needed."""
        if outcome.status not in ANSWERED:
            why = ": ".join(text for text in (outcome.status, outcome.error or "") if text)
            return Grade(outcome.cell, 0.0, f"no answer: the job ended as {why}")
        if self.needs_target and task.target is None:
            return Grade(outcome.cell, None, NO_TARGET)
        return await self.judge(task, outcome)


class RuleGrader(Grader):
    """A grader by a rule on target and answer."""

    @abstractmethod
    def verdict(self, target: Any, answer: str) -> Verdict:
        """What the answer is worth. Must not take long."""

    async def judge(self, task: Task, outcome: Outcome) -> Grade:
        """The rule's verdict as a grade."""
        found = self.verdict(task.target, outcome.answer)
        return Grade(outcome.cell, found.score, found.reason, found.details)


def at_least_0(table: Table, key: str, default: float) -> float:
    """A key that is a number, not negative."""
    value = table.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        table.wrong(key, "must be a number, not negative, without quotes")
    return float(value)


def one_of(table: Table, key: str, known: tuple[str, ...]) -> str:
    """A key that is one of some words; the first one where it is not given."""
    value = table.values.get(key, known[0])
    if value not in known:
        table.wrong(key, f"must be one of {', '.join(known)}")
    return str(value)
