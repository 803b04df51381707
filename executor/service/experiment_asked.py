"""An experiment as it is asked for over HTTP: everything stands in the request, nothing names a file or code of the
server's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from registry.errors import ConfigError

if TYPE_CHECKING:
    from executor.experiments.types import Experiment

GRADERS = ("exact", "numeric", "contains", "regex", "json", "recorded")
"""What judges here: nothing of it calls a model or code of the user's."""
MAX_ARMS = 100
"""Arms of an experiment, those that sweeps make among them."""
MAX_REPEATS = 1_000
MAX_CONCURRENCY = 10_000
TABLES = ("experiment", "grader", "recorded", "arms")

HERE = "over the API everything stands in the request"
AS_COMMAND = "`dagwright experiment run` can do it"


def experiment_asked(values: Mapping[str, Any]) -> Experiment:
    """The experiment of a request's tables, which have the keys of an experiment's file. Raises ConfigError and
    UsageError, which say what is wrong; nothing is opened or imported because of what stands in it."""
    tables = {name: values[name] for name in TABLES if values.get(name) is not None}
    _nothing_elsewhere(tables)
    _not_too_many(tables)
    from executor.experiments.experiment_file import experiment_of

    experiment = experiment_of(tables, base=None, path="the request")
    if experiment.repeats > MAX_REPEATS:
        raise ConfigError(f"experiment.repeats: {experiment.repeats} is more than {MAX_REPEATS:,}")
    if experiment.concurrency > MAX_CONCURRENCY:
        raise ConfigError(f"experiment.concurrency: {experiment.concurrency} is more than {MAX_CONCURRENCY:,}")
    return experiment


def _nothing_elsewhere(tables: Mapping[str, Any]) -> None:
    """Raises ConfigError for what would be read from somewhere else."""
    own = _table(tables, "experiment")
    if "data" in own:
        raise ConfigError(f"experiment.data: names a folder of the server's; {HERE}")
    if isinstance(own.get("tasks"), str):
        raise ConfigError(f"experiment.tasks: names a file; {HERE}: give a list of objects with id and input")
    for place, key in _keys(tables, ""):
        if key == "file":
            raise ConfigError(f"{place}: names a file of the server's; {HERE} (`rows`, a list of objects)")
    use = _table(tables, "grader").get("use")
    if use == "judge":
        raise ConfigError(f"grader.use: a judge calls models, which the API has none for; {AS_COMMAND}")
    if isinstance(use, str) and use not in GRADERS:
        raise ConfigError(f"grader.use: there is no grader {use[:100]!r} over the API: there are {', '.join(GRADERS)}")


def _keys(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every key of the tables, with its place; tasks and rows are told as one each."""
    level = [(place, value)]
    while level:
        where, found = level.pop()
        if isinstance(found, Mapping):
            for key, inner in found.items():
                name = f"{where}.{key}".lstrip(".")
                yield name, key
                if key not in ("rows", "metadata", "target", "plan"):
                    level.append((name, inner))
        elif isinstance(found, list) and where != "experiment.tasks":
            level += [(f"{where}.[{at}]", inner) for at, inner in enumerate(found)]


def _not_too_many(tables: Mapping[str, Any]) -> None:
    """Raises ConfigError where sweeps make more arms than there may be: before they are made."""
    arms = _table(tables, "arms")
    many = 0
    for arm in arms.values():
        sweep = arm.get("sweep") if isinstance(arm, Mapping) else None
        lists = [value for value in sweep.values() if isinstance(value, list)] if isinstance(sweep, Mapping) else []
        many += math.prod(map(len, lists))
    if many > MAX_ARMS:
        raise ConfigError(f"arms: {many:,} arms, sweeps spread out, are more than {MAX_ARMS}")


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tables.get(name)
    return found if isinstance(found, Mapping) else {}
