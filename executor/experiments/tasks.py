"""Tasks out of JSON lines, or out of plain data; each mistake is told with its place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.checks import PlanError
from planner.parse import parse_plan
from planner.plan import Plan
from registry.errors import ConfigError
from registry.toml_file import nearest, shown

from .types import Task

KEYS = ("id", "input", "target", "metadata", "plan")
MOST_STEPS = 10_000
"""Steps of a given plan; how many a job takes is for its settings to say."""


def tasks_in(path: Path) -> tuple[Task, ...]:
    """The tasks of a file, a JSON object a line. Raises ConfigError, which names the line."""
    return tasks_from(_lines(path), str(path))


def tasks_from(items: Iterable[tuple[str, Any]], where: str) -> tuple[Task, ...]:
    """Tasks out of plain data, each with its place for messages. Raises ConfigError."""
    found: dict[str, tuple[str, Task]] = {}
    for place, value in items:
        task = _task(value, place)
        if task.id in found:
            raise ConfigError(f"{place}: the id {task.id!r} is that of {found[task.id][0]}, too")
        found[task.id] = (place, task)
    if not found:
        raise ConfigError(f"{where}: there are no tasks in it")
    return tuple(task for _, task in found.values())


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    place = f"{path}:{number}"
                    yield place, json_of(line, place)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def json_of(line: str, place: str) -> Any:
    """What a line of JSON holds. Raises ConfigError, which names the place."""
    try:
        return json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not JSON: {error}") from None


def _no_number(name: str) -> None:
    """NaN and infinities, which JSON has not: NaN is not even what it was when it is read again."""
    raise ValueError(f"{name} is no number")


def _task(value: Any, place: str) -> Task:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: must be an object with id and input, not {shown(value)}")
    for key in value:
        if key not in KEYS:
            raise ConfigError(f"{place}: unknown key {key!r}: {nearest(key, KEYS)}")
    metadata = value.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ConfigError(f"{place}: metadata = {shown(metadata)}: must be an object")
    text = value.get("input")
    plan = _plan(value.get("plan"), text if isinstance(text, str) else "", place)
    if text is None and plan is not None:
        text = plan.goal
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{place}: input = {shown(text)}: must be the task's text")
    return Task(_id(value.get("id"), place), text, value.get("target"), metadata or {}, plan)


def _id(value: Any, place: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{place}: id = {shown(value)}: must be a text that no other task has")
    return value


def _plan(value: Any, goal: str, place: str) -> Plan | None:
    if value is None:
        return None
    try:
        return parse_plan(value, max_steps=MOST_STEPS, goal=goal)
    except PlanError as error:
        told = "\n".join(f"  {text}" for _, _, text in error.problems)
        raise ConfigError(f"{place}: the plan is not valid:\n{told}") from None
