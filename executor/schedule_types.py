"""The words of the schedule: a plan's shape and state, what can happen (events), what is to be done (commands).

All are frozen values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from registry.errors import UsageError

from .persistent import Heap, Vector

StepStatus = Literal["pending", "running", "waiting", "completed", "failed", "skipped", "cancelled"]
PlanStatus = Literal["completed", "partial", "failed", "cancelled", "budget_exceeded"]

UNCERTAIN = "uncertain_effect"
"""The code of a step with a call that may have taken effect, of which nobody said that it did."""

ENDED: frozenset[str] = frozenset({"completed", "failed", "skipped", "cancelled"})
"""The statuses a step keeps."""


class Node(Protocol):
    """What the schedule needs to know of a step."""

    @property
    def id(self) -> str:
        """Its name in the plan."""

    @property
    def dependencies(self) -> Sequence[str]:
        """The steps it needs."""

    @property
    def on_failure(self) -> str:
        """skip_dependents, continue or fail_fast."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a plan never changes while it runs. Steps are numbered in plan order.

    `rank` is a step's priority: 0 has the longest remaining path, counted in steps; ties by plan order. `order` is its
    inverse. `missing` counts each step's dependencies, `dependents` lists the other direction.
    """

    ids: tuple[str, ...]
    index: Mapping[str, int]
    dependents: tuple[tuple[int, ...], ...]
    missing: tuple[int, ...]
    rank: tuple[int, ...]
    order: tuple[int, ...]
    on_failure: tuple[str, ...]

    @classmethod
    def of(cls, steps: Sequence[Node], given: Collection[str] = ()) -> Shape:
        """The shape of a plan; `given` are ids outside of it whose results exist already.

        Raises UsageError for a doubled id, an unknown dependency or a cycle. O(steps + dependencies).
        """
        index = {step.id: place for place, step in enumerate(steps)}
        if len(index) < len(steps):
            raise UsageError("the plan has two steps with one id")
        dependents: list[list[int]] = [[] for _ in steps]
        missing = [0] * len(steps)
        for place, step in enumerate(steps):
            for name in dict.fromkeys(step.dependencies):
                if name in index:
                    dependents[index[name]].append(place)
                    missing[place] += 1
                elif name not in given:
                    raise UsageError(f"step {step.id!r} depends on {name!r}, which is neither in the plan nor kept")
        path = _remaining(dependents, missing)
        order = sorted(range(len(steps)), key=lambda place: (-path[place], place))
        rank = [0] * len(steps)
        for number, place in enumerate(order):
            rank[place] = number
        return cls(
            tuple(index),
            index,
            tuple(map(tuple, dependents)),
            tuple(missing),
            tuple(rank),
            tuple(order),
            tuple(step.on_failure for step in steps),
        )


def _remaining(dependents: Sequence[Sequence[int]], missing: Iterable[int]) -> list[int]:
    """For each step the number of steps on the longest path that begins with it."""
    missing = list(missing)
    sorted_places = [place for place, count in enumerate(missing) if not count]
    for place in sorted_places:  # grows while we go: Kahn's topological order
        for dependent in dependents[place]:
            missing[dependent] -= 1
            if not missing[dependent]:
                sorted_places.append(dependent)
    if len(sorted_places) < len(missing):
        raise UsageError("the plan has a cycle")
    path = [1] * len(missing)
    for place in reversed(sorted_places):
        path[place] += max((path[dependent] for dependent in dependents[place]), default=0)
    return path


@dataclass(frozen=True, slots=True)
class State:
    """Where a plan stands. Steps are known by their place in the plan; `unfinished` counts those without an end.

    `missing`: what each step still waits for: dependencies, or the human's decision while it is `waiting`. `ready`: the
    queue, which may hold steps that were skipped or cancelled since. `condemned`: begun steps that are being cancelled.
    `verdict`: how the plan will end whatever else happens; `outcome`: how it has ended.
    """

    shape: Shape
    max_concurrency: int
    status: Vector[StepStatus]
    missing: Vector[int]
    ready: Heap | None = None
    running: int = 0
    unfinished: int = 0
    condemned: frozenset[int] = frozenset()
    stopping: bool = False
    verdict: PlanStatus | None = None
    outcome: PlanStatus | None = None

    @classmethod
    def initial(cls, shape: Shape, max_concurrency: int) -> State:
        """The state before `PlanStarted`: everything pending."""
        size = len(shape.ids)
        return cls(shape, max_concurrency, Vector.of(["pending"] * size), Vector.of(shape.missing), unfinished=size)

    def status_of(self, step: str) -> StepStatus:
        """The status of the step with this id."""
        return self.status[self.shape.index[step]]

    def waits_for_slot(self, step: str) -> bool:
        """Whether the step waited for a human, may go on, and has no slot yet."""
        place = self.shape.index[step]
        return self.status[place] == "waiting" and not self.missing[place] and place not in self.condemned


# Events


@dataclass(frozen=True, slots=True)
class PlanStarted:
    """Execution begins, or goes on. `kept`: the final statuses of steps whose results came with the plan; they are not
    run. An execution that goes on has `begun` steps, which are started again whatever the number of slots: most of
    them had one; `codes`, by which steps failed in it; and `stop`, where it had been stopped."""

    kept: Mapping[str, StepStatus] = field(default_factory=dict)
    begun: Collection[str] = ()
    codes: Mapping[str, str] = field(default_factory=dict)
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """A step has its result."""

    step: str


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step ended without one; `code` is the error's."""

    step: str
    code: str = "error"


@dataclass(frozen=True, slots=True)
class StepCancelled:
    """A step's work was cancelled and is over."""

    step: str


@dataclass(frozen=True, slots=True)
class StepWaiting:
    """A running step waits for a human and gives up its slot."""

    step: str


@dataclass(frozen=True, slots=True)
class StepReady:
    """The human has decided; the step wants a slot again."""

    step: str


@dataclass(frozen=True, slots=True)
class StopStep:
    """Somebody wants this step cancelled."""

    step: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop with grace: what runs finishes, nothing else begins. `root_cause`: the step to blame, where one is."""

    reason: str
    root_cause: str | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop now: what runs is cancelled."""

    reason: str = "Skipped — the run was cancelled"


Event: TypeAlias = (
    PlanStarted | StepCompleted | StepFailed | StepCancelled | StepWaiting | StepReady | StopStep | Stop | Abort
)


# Commands


@dataclass(frozen=True, slots=True)
class StartStep:
    """Begin this step; it has a slot."""

    step: str


@dataclass(frozen=True, slots=True)
class ResumeStep:
    """Let this step go on after its wait; it has a slot again."""

    step: str


@dataclass(frozen=True, slots=True)
class CancelStep:
    """Cancel this step's work if it has begun (it then reports its end); else it just will not run."""

    step: str


@dataclass(frozen=True, slots=True)
class SkipStep:
    """This step will not run, for this reason; `root_cause` is the step that failed or was cancelled, if one did."""

    step: str
    reason: str
    root_cause: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """All steps have ended, and the plan like this."""

    status: PlanStatus


Command: TypeAlias = StartStep | ResumeStep | CancelStep | SkipStep | Finish
