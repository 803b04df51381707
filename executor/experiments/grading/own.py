"""Graders that do not read the answer themselves: the file's own verdict, and a function of one's own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from executor.experiments.types import Grade, Outcome, Task
from registry.errors import ConfigError, UsageError
from registry.own_code import own_object
from registry.toml_file import Table

from .base import Grader


class Recorded(Grader):
    """The verdict that is on file with a recorded answer; none for other answers."""

    needs_target: ClassVar[bool] = False

    def __init__(self, table: Table) -> None:
        table.only(())

    async def judge(self, task: Task, outcome: Outcome) -> Grade:
        """The file's verdict."""
        score = outcome.recorded_score
        return Grade(outcome.cell, score, "" if score is not None else "there is no verdict on file for this answer")


class Function(Grader):
    """A function of one's own, `package.module:function`, sync or async.

    `function(task, outcome)` is given the Task and the Outcome (`outcome.answer` is the text), and the grader's own
    keys as keyword arguments. It returns a number from 0 to 1, a bool, or a Grade; whatever else it returns, or raises,
    is the reason why there is no score. A sync function runs in a thread, several at once: it must allow that.
    """

    needs_target: ClassVar[bool] = False

    def __init__(self, name: str, table: Table, base: Path | None) -> None:
        self.name, self.keys = name, dict(table.values)
        self.function = imported(name, base)

    async def judge(self, task: Task, outcome: Outcome) -> Grade:
        """What the function says."""
        try:
            if inspect.iscoroutinefunction(self.function):
                value = await self.function(task, outcome, **self.keys)
            else:
                value = await asyncio.to_thread(self.function, task, outcome, **self.keys)
                value = await value if inspect.isawaitable(value) else value
            return self._grade(value, outcome)
        except Exception as error:  # noqa: BLE001 - the user's own code: what goes wrong in it is told with the cell
            return Grade(outcome.cell, None, f"{self.name} failed: {type(error).__name__}: {error}")

    def _grade(self, value: Any, outcome: Outcome) -> Grade:
        grade = Grade(outcome.cell, value)
        if isinstance(value, Grade):
            grade = replace(value, cell=outcome.cell, reason=str(value.reason))
        score: Any = grade.score
        if score is None and isinstance(value, Grade):
            return grade
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            return Grade(
                outcome.cell, None, f"{self.name} returned {value!r}: neither a number from 0 to 1 nor a Grade"
            )
        return replace(grade, score=float(score))


def imported(name: str, base: Path | None) -> Callable[..., Any]:
    """A function by its place, `package.module:function`. A module that is not installed is looked for in the
    experiment's folder. Raises ConfigError."""
    try:
        found: Any = own_object(name, base)
    except UsageError as error:
        raise ConfigError(f"grader {name!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"grader {name!r}: {name.partition(':')[2]} is no function")
    function: Callable[..., Any] = found
    return function
