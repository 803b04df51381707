"""Tasks and recorded answers out of tables: which column is what, and which answer belongs to which task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from executor.experiments.types import RecordedAnswer, RecordedModel, Task
from registry.errors import ConfigError, UsageError
from registry.messages import Usage
from registry.prices import Price
from registry.tokens import estimate_text
from registry.toml_file import Table

from .rows import Row, rows_of

OF_TASKS = ("file", "rows", "input", "id", "target", "kind", "metadata")
OF_RECORDED = (
    "file", "rows", "input", "id", "answer", "score", "cost", "cost_column", "price", "latency_column", "confidence",
    "roles", "model",
)  # fmt: skip
STEM = "{file}"
"""What stands for the name of a row's file, without its ending, where a column is named."""
MOST = 1e12
"""USD or seconds of an answer; more is a mistake, and sums of it are no numbers any more."""


def read_tasks(table: Table, *, base: Path | None) -> tuple[Task, ...]:
    """The tasks of a table `{file, input, id?, target?, kind?, metadata?}`, in the order of the files.

    `metadata` lists columns to keep. Without `id` a task's id is its file's stem and its row's number: the same
    questions asked again in a file of that name are the same tasks. Raises ConfigError, which names file, row, column.
    """
    table.only(OF_TASKS)
    column = table.text("input", needed="the column with the tasks' texts")
    named = table.text("id")
    target, kind, kept = table.text("target"), table.text("kind"), table.texts("metadata")
    assert column is not None
    tasks: dict[str, Task] = {}
    places: dict[str, str] = {}
    for row in rows_of(table, base):
        text = row.text(column)
        if not text.strip():
            row.wrong(column, "a task needs a text")
        task_id = _id(row, named)
        if task_id in tasks:
            raise ConfigError(
                f"{row.place}: the task {task_id!r} is that of {places[task_id]}, too: {_give_ids(named)}"
            )
        metadata = {name: row.get(name) for name in kept}
        if kind is not None:
            metadata["kind"] = row.stem if kind == STEM else row.text(kind)
        tasks[task_id] = Task(task_id, text, None if target is None else row.get(target), metadata)
        places[task_id] = row.place
    return tuple(tasks.values())


def read_recorded(name: str, table: Table, *, base: Path | None, tasks: Sequence[Task]) -> RecordedModel:
    """A model's answers to these tasks, out of the table [recorded.NAME].

    A row belongs to the task with its `id`; without that column, to the task with its `input`. Where several tasks have
    the same input, to the one that was read from the same row of a file of this name. Rows of other tasks are passed
    over. Raises ConfigError, which names file, row and column, and the first task without an answer.
    """
    table.only(OF_RECORDED)
    columns = _Columns(table)
    find = _Finder(table, tasks)
    found = _Answers()
    for row in rows_of(table, base):
        task = find(row)
        if task is not None:
            found.put(task, columns.answer(row, task), row)
    _complete(name, table, tasks, found.answers)
    return RecordedModel(name, found.answers, table.texts("roles"), table.text("model"))


class _Answers:
    """One answer for each task. That of the very row which asks the task counts before one to the same text."""

    def __init__(self) -> None:
        self.answers: dict[str, RecordedAnswer] = {}
        self._from: dict[str, tuple[bool, str]] = {}

    def put(self, task: Task, answer: RecordedAnswer, row: Row) -> None:
        """Takes an answer. Raises ConfigError where another one counts as much."""
        own = task.id == _id(row, None)
        was_own, place = self._from.get(task.id, (False, ""))
        if not place or (own and not was_own):
            self.answers[task.id], self._from[task.id] = answer, (own, row.place)
        elif own == was_own and answer != self.answers[task.id]:
            raise ConfigError(f"{row.place}: another answer to the task {task.id!r} stands in {place}")


def _complete(name: str, table: Table, tasks: Iterable[Task], answers: Mapping[str, Any]) -> None:
    missing = [task.id for task in tasks if task.id not in answers]
    if missing:
        more = f" (and to {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        none = "" if answers else ": no row belongs to any task"
        raise ConfigError(
            f"{table.path}: [{table.name}] there is no answer of {name!r} to the task {missing[0]!r}{more}{none}"
        )


class _Finder:
    """Which task a row's answer belongs to."""

    def __init__(self, table: Table, tasks: Iterable[Task]) -> None:
        self.id, self.input = table.text("id"), table.text("input")
        if self.id is None and self.input is None:
            raise ConfigError(
                f"{table.path}: [{table.name}] needs `id` or `input`: the column that says whose answer it is"
            )
        self.by_id: dict[str, Task] = {}
        self.by_input: dict[str, list[Task]] = {}
        for task in tasks:
            self.by_id[task.id] = task
            self.by_input.setdefault(task.input, []).append(task)

    def __call__(self, row: Row) -> Task | None:
        if self.id is not None:
            return self.by_id.get(row.text(self.id))
        assert self.input is not None
        found = self.by_input.get(row.text(self.input), [])
        own = _id(row, None)
        return next((task for task in found if task.id == own), found[0] if len(found) == 1 else None)


class _Columns:
    """What the columns of a table say of an answer."""

    def __init__(self, table: Table) -> None:
        self.answer_column, self.score = table.text("answer"), table.text("score")
        self.latency, self.confidence = table.text("latency_column"), table.text("confidence")
        self.cost_column, self.price = table.text("cost_column"), _price(table)
        self.cost = _cost(table)
        given = [key for key in ("cost", "cost_column", "price") if key in table.values]
        if len(given) > 1:
            table.wrong(given[1], f"stands beside `{given[0]}`: give one of them")
        if self.answer_column is None and self.score is None:
            raise ConfigError(
                f"{table.path}: [{table.name}] needs `answer` or `score`: the column with the answers, or "
                "with what they are worth"
            )
        if self.price is not None and self.answer_column is None:
            table.wrong("price", "needs `answer`: the tokens are estimated from the texts")

    def answer(self, row: Row, task: Task) -> RecordedAnswer:
        """The answer in a row."""
        text = "" if self.answer_column is None else row.text(self.answer_column)
        return RecordedAnswer(
            text,
            _share(row, self.score, "a verdict is true, false, or a number from 0 to 1"),
            self._cost(row, task, text),
            self._at_least_0(row, self.latency, "a latency is a number of seconds"),
            _share(row, self.confidence, "a confidence is a number from 0 to 1"),
        )

    def _cost(self, row: Row, task: Task, text: str) -> Decimal | None:
        if self.price is not None:
            return self.price.cost(Usage(estimate_text(task.input), estimate_text(text)))
        if self.cost_column is None:
            return self.cost
        cost = self._at_least_0(row, self.cost_column, "a cost is a number of USD")
        return None if cost is None else Decimal(str(row.get(self.cost_column)).strip())  # exactly as it is written

    @staticmethod
    def _at_least_0(row: Row, column: str | None, right: str) -> float | None:
        return None if column is None else row.number_in(column, 0, MOST, f"{right}, not negative")


def _share(row: Row, column: str | None, right: str) -> float | None:
    return None if column is None else row.number_in(column, 0, 1, right, truth=True)


def _cost(table: Table) -> Decimal | None:
    value = table.values.get("cost")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not 0 <= value <= MOST:
        table.wrong("cost", "must be a number of USD for each answer, such as 0.0004")
    return Decimal(str(value))


def _price(table: Table) -> Price | None:
    value = table.values.get("price")
    if value is None:
        return None
    if not isinstance(value, Mapping):
        table.wrong("price", "must be a table in USD per million tokens, such as { input = 0.5, output = 1.5 }")
    try:
        return Price.from_toml(value)
    except UsageError as error:
        table.wrong("price", str(error))


def _id(row: Row, column: str | None) -> str:
    if column is None:
        return f"{row.stem}-{row.number}" if row.stem else str(row.number)
    text = row.text(column)
    if not text.strip():
        row.wrong(column, "a task needs an id")
    return text


def _give_ids(named: str | None) -> str:
    return "ids must differ" if named else "files of the same name need a column with ids (`id`)"
