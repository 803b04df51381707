"""The seed's order: of the tasks, and of the cells. It comes from hashes of names, so that what is added later changes
nothing about what was there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

from .types import Cell, Experiment, Task


def in_order(tasks: Iterable[Task], seed: int) -> tuple[Task, ...]:
    """The tasks as the seed mixes them: the first ones are a random sample of all."""
    return tuple(sorted(tasks, key=lambda task: _place(seed, task.id)))


def cells_of(experiment: Experiment) -> Iterator[Cell]:
    """All cells in the order in which they begin: repeat by repeat, task by task, and for each task all arms, in an
    order of its own. So whatever drifts meanwhile, a provider's speed say, hits all arms alike."""
    for repeat in range(1, experiment.repeats + 1):
        for task in experiment.tasks:
            cells = [Cell(arm.name, task.id, repeat) for arm in experiment.arms]
            yield from sorted(cells, key=lambda cell: _place(experiment.seed, *map(str, cell)))


def _place(seed: int, *names: str) -> bytes:
    return sha256("\0".join((str(seed), *names)).encode("utf-8", "surrogatepass")).digest()
