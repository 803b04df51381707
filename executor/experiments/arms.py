"""Arms out of an experiment's file: jobs or recorded answers, and sweeps, which make several arms of one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, get_args

from executor.job_types import Mode
from executor.settings import OF_A_JOB
from registry.budget import Budget
from registry.errors import ConfigError, UsageError
from registry.routing_config import table_of
from registry.toml_file import Table, nearest, shown

from .types import Arm

OF_JOBS = ("mode", "routing", "roles", "options", "budget", "sweep")
OF_RECORDED = ("among", "routing", "checker", "sweep")
AT_LEAST = 'the file needs at least one arm, such as [arms.fast] with routing = "fixed:fast"'


def arms_in(tables: Mapping[str, Table], path: Any, recorded: Collection[str]) -> tuple[Arm, ...]:
    """The arms, sweeps spread out. `recorded`: the models whose answers are on file. Raises ConfigError."""
    arms = tuple(arm for name, table in tables.items() for arm in _swept(_arm(name, table, recorded), table))
    if not arms:
        raise ConfigError(f"{path}: {AT_LEAST}")
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: two arms are named {name!r}")
    return arms


def _arm(name: str, table: Table, recorded: Collection[str]) -> Arm:
    if "among" in table.values:
        return _recorded_arm(name, table, recorded)
    table.only((*OF_JOBS, "among", "checker"))
    if "checker" in table.values:
        table.wrong("checker", "is for arms of recorded answers, which name their models in `among`")
    mode = table.text("mode") or "auto"
    if mode not in get_args(Mode):
        table.wrong("mode", f"must be one of {', '.join(get_args(Mode))}")
    options = dict(_table(table, "options"))
    for key in options:
        if key not in OF_A_JOB:
            raise ConfigError(f"{table.path}: [{table.name}.options] unknown key {key!r}: {nearest(key, OF_A_JOB)}")
    for key in ("routing", "roles", "budget"):
        if key in table.values:
            if key in options:
                table.wrong(key, "stands in `options`, too: give it once")
            options[key] = table.values[key]
    _check_budget(table, options.get("budget"))
    return Arm(name, "job", mode, options, options.get("routing"))


def _recorded_arm(name: str, table: Table, recorded: Collection[str]) -> Arm:
    for key in table.values:
        if key not in OF_RECORDED and key in OF_JOBS:
            table.wrong(key, "is for arms that run jobs; this one has recorded answers (`among`)")
    table.only(OF_RECORDED)
    among = table.texts("among")
    if not among:
        table.wrong("among", 'must be a list of recorded models, such as ["weak", "strong"]')
    for model in among:
        if model not in recorded:
            known = nearest(model, recorded) if recorded else "there is no [recorded.NAME] in the file"
            table.wrong("among", f"no answers of {model!r} are recorded: {known}")
    routing = table.values.get("routing")
    if routing is None and len(among) > 1:
        table.wrong("routing", "must say which of the models in `among` answers, since there are several")
    checker = table.values.get("checker")
    return Arm(name, "recorded", routing=routing, among=among, checker=None if checker is None else _share(table))


def _share(table: Table) -> float:
    value = table.values["checker"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        table.wrong("checker", "must be a number from 0 to 1: how often the checker is right")
    return float(value)


def _check_budget(table: Table, value: Any) -> None:
    try:
        if value is not None:
            Budget.of(value)
    except UsageError as error:
        raise ConfigError(f"{table.path}: [{table.name}] {error}") from None


def _table(table: Table, key: str) -> Mapping[str, Any]:
    value = table.values.get(key, {})
    if not isinstance(value, Mapping):
        table.wrong(key, "must be a table, such as { NAME = VALUE }")
    return value


# Sweeps


def _swept(arm: Arm, table: Table) -> Iterator[Arm]:
    """The arm, or those that its sweep makes of it: one for each combination of values."""
    sweep = _table(table, "sweep")
    if "sweep" in table.values and not sweep:
        table.wrong("sweep", "must name a key and its values, such as { threshold = [0.3, 0.7] }")
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{table.path}: [{table.name}.sweep] {key} = {shown(values)}: must be a list of values")
    if not sweep:
        yield arm
        return
    for combination in product(*sweep.values()):
        values = dict(zip(sweep, combination, strict=True))
        told = ",".join(f"{key}={_told(value)}" for key, value in values.items())
        swept = replace(arm, name=f"{arm.name}[{told}]")
        for key, value in values.items():
            swept = _with(swept, key, value, table)
        yield swept


def _told(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _with(arm: Arm, key: str, value: Any, table: Table) -> Arm:
    """The arm with one value of its sweep: `checker`, an option of jobs, or else a key of `routing`."""
    if arm.kind == "recorded" and key == "checker":
        return replace(arm, checker=_share(Table(table.path, f"{table.name}.sweep", {"checker": value})))
    if arm.kind == "job" and key in OF_A_JOB:
        _check_budget(table, value if key == "budget" else None)
        changed = replace(arm, options={**arm.options, key: value})
        return replace(changed, routing=value) if key == "routing" else changed
    if key == "routing":
        return replace(arm, routing=value)
    routing = _routing_table(arm.routing, table) | {key: value}
    if arm.kind == "job":
        return replace(arm, options={**arm.options, "routing": routing}, routing=routing)
    return replace(arm, routing=routing)


def _routing_table(routing: Any, table: Table) -> dict[str, Any]:
    """The routing as a table, which has the swept key, too."""
    if isinstance(routing, Mapping):
        return dict(routing)
    try:
        return table_of(routing)
    except UsageError as error:
        raise ConfigError(f"{table.path}: [{table.name}] {error}") from None
