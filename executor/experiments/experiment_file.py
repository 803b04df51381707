"""An experiment out of its TOML file, or out of the same as plain data. What the keys mean stands in
docs/experiments.md."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from registry.budget import Budget
from registry.errors import ConfigError, UsageError
from registry.routing_config import foreign
from registry.toml_file import Table, read_toml

from .arms import arms_in
from .cells import in_order
from .recorded.tables import read_recorded, read_tasks
from .tasks import tasks_from, tasks_in
from .types import Arm, Experiment, GraderSpec, RecordedModel, Task

TABLES = ("experiment", "grader", "recorded", "arms")
KEYS = ("name", "tasks", "data", "repeats", "concurrency", "budget", "seed", "reference", "cache", "limit")
DATA = "{data}"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CONCURRENCY = 4
NO_FILES = "files of the machine can't be named here"
TASKS = 'a file of JSON lines, such as "tasks.jsonl", or a table { file = …, input = … } for CSV'


def read_experiment(path: str | os.PathLike[str], *, data: str | os.PathLike[str] | None = None) -> Experiment:
    """The experiment of a file; `data` is what {data} stands for, instead of what the file says. Raises ConfigError,
    which names file, table and key."""
    file = Path(path)
    return experiment_of(read_toml(file), base=file.resolve().parent, path=str(file), data=data)


def experiment_of(
    values: Mapping[str, Any],
    *,
    base: str | os.PathLike[str] | None,
    path: str = "experiment",
    data: str | os.PathLike[str] | None = None,
    tasks: Iterable[Task] | None = None,
    recorded: Mapping[str, RecordedModel] | None = None,
) -> Experiment:
    """The experiment of plain data with the keys of the file. Relative paths begin at `base`; None: whoever asks may
    name no file and no module of this machine. `path` names the data in messages. `tasks` and `recorded` stand instead
    of those that the data names. Raises ConfigError."""
    values = _plain(values)
    tables = _tables(values, path, TABLES)
    table = tables.get("experiment") or Table(path, "experiment", {})
    table.only(KEYS)
    home = None if base is None else Path(base)
    where = _Places(home, _data(table, home, data))
    seed = _seed(table)
    found = tuple(tasks) if tasks is not None else _tasks(table, where)
    found = in_order(found, seed)[: table.count("limit", "tasks")]
    models = recorded if recorded is not None else _recorded(tables.get("recorded"), where, found)
    named = _inner(tables.get("arms"))
    arms = arms_in(named, path, models)
    if home is None:
        _no_strangers(arms, path)
    return Experiment(
        _name(table),
        found,
        arms,
        _grader(tables.get("grader"), path, home),
        table.count("repeats", "repeats") or 1,
        table.count("concurrency", "cells") or CONCURRENCY,
        _budget(table),
        seed,
        dict(models),
        table.flag("cache", default=True),
        _reference(table, [arm.name for arm in arms]),
        _with_data(values, where.data),
        home,
    )


class _Places:
    """Where files are: relative names begin at `base` (None: no files), {data} stands for `data`."""

    def __init__(self, base: Path | None, data: Path | None) -> None:
        self.base, self.data = base, data

    def path(self, table: Table, key: str, text: str) -> str:
        """A file's name as the table has it, with {data} replaced."""
        if DATA not in text:
            return text
        if self.data is None:
            table.wrong(key, "{data} is not known: set `data` in [experiment], or give --data PATH")
        return text.replace(DATA, str(self.data))

    def filled(self, table: Table) -> Table:
        """The table, its `file` with {data} replaced."""
        file = table.values.get("file")
        if not isinstance(file, str):
            return table
        if self.base is None:
            table.wrong("file", f"{NO_FILES}: give the rows as a list, `rows`")
        return Table(table.path, table.name, {**table.values, "file": self.path(table, "file", file)})


def _tables(values: Mapping[str, Any], path: str, known: tuple[str, ...]) -> dict[str, Table]:
    Table(path, "the file", values).only(known)
    for key, value in values.items():
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: {key} must be a table: [{key}]")
    return {key: Table(path, key, value) for key, value in values.items()}


def _inner(table: Table | None) -> dict[str, Table]:
    """The tables in a table, by their names."""
    found = {}
    for name, value in () if table is None else table.values.items():
        assert table is not None
        if not isinstance(value, Mapping):
            table.wrong(name, f"must be a table: [{table.name}.{name}]")
        if not name.strip() or not name.isprintable():
            raise ConfigError(f"{table.path}: [{table.name}.{name!r}] must have a printable name")
        found[name] = Table(table.path, f"{table.name}.{name}", value)
    return found


def _name(table: Table) -> str:
    name = table.text("name", needed="a name for the experiment, such as gsm8k")
    assert name is not None
    if not NAME.fullmatch(name):
        table.wrong("name", "must be letters, digits, dots, dashes: the run's folder has this name")
    return name


def _data(table: Table, base: Path | None, given: str | os.PathLike[str] | None) -> Path | None:
    if given is not None:
        return Path(given).expanduser().resolve()
    text = table.text("data")
    if text is None:
        return None
    if base is None:
        table.wrong("data", NO_FILES)
    return (base / Path(text).expanduser()).resolve()


def _tasks(table: Table, where: _Places) -> tuple[Task, ...]:
    value = table.values.get("tasks")
    if isinstance(value, Mapping):
        return read_tasks(where.filled(Table(table.path, f"{table.name}.tasks", value)), base=where.base)
    if isinstance(value, list):
        return tasks_from(
            ((f"{table.path}: task {number}", item) for number, item in enumerate(value, 1)), str(table.path)
        )
    if value is not None and not isinstance(value, str):
        table.wrong("tasks", f"must be {TASKS}")
    text = table.text("tasks", needed=TASKS)
    assert text is not None
    if where.base is None:
        table.wrong("tasks", f"{NO_FILES}: give the tasks as a list")
    return tasks_in(where.base / Path(where.path(table, "tasks", text)).expanduser())


def _recorded(table: Table | None, where: _Places, tasks: tuple[Task, ...]) -> dict[str, RecordedModel]:
    found = {}
    for name, inner in _inner(table).items():
        found[name] = read_recorded(name, where.filled(inner), base=where.base, tasks=tasks)
    return found


def _grader(table: Table | None, path: str, base: Path | None) -> GraderSpec:
    if table is None:
        raise ConfigError(f'{path}: [grader] is missing: it says how answers are judged, such as use = "exact"')
    use = table.text("use", needed='how answers are judged, such as "exact"')
    assert use is not None
    if base is None and ":" in use:
        table.wrong("use", "modules of the machine can't be named here")
    return GraderSpec(use, {key: value for key, value in table.values.items() if key != "use"})


def _no_strangers(arms: Iterable[Arm], path: str) -> None:
    """Refuses arms whose routing names a file or a module of the machine."""
    for arm in arms:
        if arm.routing is None or (arm.kind == "recorded" and _use(arm.routing) == "longest"):
            continue
        try:
            named = foreign(arm.routing)
        except UsageError as error:
            named = str(error)
        if named:
            raise ConfigError(f"{path}: [arms.{arm.name}] routing: {named}")


def _use(routing: Any) -> Any:
    return routing.get("use") if isinstance(routing, Mapping) else routing


def _budget(table: Table) -> Budget | None:
    value = table.values.get("budget")
    try:
        budget = None if value is None else Budget.of(value)
    except UsageError as error:
        raise ConfigError(f"{table.path}: [{table.name}] {error}") from None
    if budget is not None and budget.seconds is not None:
        table.wrong("budget", "the run's budget limits money or tokens; give arms a `budget` for a job's time")
    return budget


def _seed(table: Table) -> int:
    value = table.values.get("seed", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        table.wrong("seed", "must be a whole number")
    return value


def _reference(table: Table, arms: list[str]) -> str | None:
    name = table.text("reference")
    if name is not None and name not in arms:
        table.wrong("reference", f"no arm has this name: there are {', '.join(arms)}")
    return name


def _with_data(values: Mapping[str, Any], data: Path | None) -> dict[str, Any]:
    """The data as it holds from anywhere: {data} is told as an absolute path."""
    if data is None:
        return dict(values)
    return {**values, "experiment": {**values.get("experiment", {}), "data": str(data)}}


def _plain(value: Any) -> Any:
    """The data with its decimals as JSON has numbers."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
