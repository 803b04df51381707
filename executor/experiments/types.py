"""What an experiment consists of: tasks, arms, cells and their outcomes. Frozen values, plain data inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from planner.plan import Plan
    from registry.budget import Budget
    from registry.messages import Usage


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `target` is what a right answer is, for the grader to read; `plan` is executed as it is where there is
    one. `metadata["kind"]` names the kind of work for policies and for the report's parts."""

    id: str
    input: str
    target: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None

    @property
    def kind(self) -> str | None:
        """The kind of work, where it is named."""
        kind = self.metadata.get("kind")
        return None if kind is None else str(kind)


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A model's answer to a task, as it is on file. `score`: the file's own verdict, 0 to 1; `cost` in USD,
    `latency` in seconds and `confidence`, the model's own report from 0 to 1, are None where they are not known."""

    text: str = ""
    score: float | None = None
    cost: Decimal | None = None
    latency: float | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """A model whose answers are on file: one for each task, by the task's id. `model`: its provider's name for it,
    where the experiment says it."""

    name: str
    answers: Mapping[str, RecordedAnswer]
    roles: tuple[str, ...] = ()
    model: str | None = None


ArmKind = Literal["job", "recorded"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to do the tasks.

    `kind` job: each task is a job, mode `dag`, `auto`, or `react` (a single agent, as a control), with `options` as a
    job takes them (`routing`, `roles`, `budget`, … of `executor.settings.OF_A_JOB`). `kind` recorded: no model is
    called; `routing` chooses for each task among the recorded models named in `among`, and the answer on file counts.
    A single name in `among` needs no routing. `checker`: how often the checker that a cascade asks is right, 0 to 1.
    """

    name: str
    kind: ArmKind = "job"
    mode: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    routing: Any = None
    among: tuple[str, ...] = ()
    checker: float | None = None

    @property
    def alone(self) -> str | None:
        """The one model, by name or role, that does everything; None where the arm has several to choose from."""
        routing = self.options.get("routing") if self.routing is None else self.routing
        if self.kind == "recorded" and routing is None:
            return self.among[0] if len(self.among) == 1 else None
        if isinstance(routing, str) and routing.startswith("fixed:"):
            return routing.removeprefix("fixed:").strip() or None
        if isinstance(routing, Mapping) and routing.get("use") == "fixed":
            return str(routing.get("model", "general"))
        return None


@dataclass(frozen=True, slots=True)
class GraderSpec:
    """How answers are judged: `use` names the grader, `options` are its own keys."""

    use: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Tasks by arms by repeats, in the order that `seed` says. `source` is the file as data, for the run's folder;
    `base` is where relative paths begin. `reference`: the arm that the others are compared with, None: the best single
    one."""

    name: str
    tasks: tuple[Task, ...]
    arms: tuple[Arm, ...]
    grader: GraderSpec
    repeats: int = 1
    concurrency: int = 4
    budget: Budget | None = None
    seed: int = 0
    recorded: Mapping[str, RecordedModel] = field(default_factory=dict)
    cache: bool = True
    reference: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    base: Path | None = None

    @property
    def size(self) -> int:
        """How many cells there are."""
        return len(self.tasks) * len(self.arms) * self.repeats


class Cell(NamedTuple):
    """One task by one arm, once. Its place in the results."""

    arm: str
    task: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a cell.

    `status` is the job's, or `completed` for an answer on file. `cost` in USD, None: unknown; `usage.partial`: a part
    is unknown. `latency` in seconds; None where calls came from the cache or the file does not say. `models`: how many
    steps (or answers) each model did in the end; `escalated`: how many of them a policy took to a stronger model.
    `job_id` None: no job. `spent_usd` and `spent_tokens` count against the run's budget: calls from the cache don't,
    and those of unknown cost count as their bound.
    """

    cell: Cell
    status: str
    answer: str = ""
    error: str | None = None
    error_code: str | None = None
    cost: Decimal | None = None
    usage: Usage | None = None
    by_role: Mapping[str, Usage] = field(default_factory=dict)
    by_model: Mapping[str, Usage] = field(default_factory=dict)
    latency: float | None = None
    rounds: int = 0
    steps: int = 0
    failed_steps: int = 0
    models: Mapping[str, int] = field(default_factory=dict)
    escalated: int = 0
    cached_calls: int = 0
    recorded_score: float | None = None
    job_id: str | None = None
    spent_usd: Decimal | None = None
    spent_tokens: int = 0

    @property
    def known_cost(self) -> Decimal | None:
        """What the cell cost where all of it is known."""
        partial = self.usage is not None and self.usage.partial
        return None if partial or self.cost is None or not self.cost.is_finite() else self.cost


@dataclass(frozen=True, slots=True)
class Grade:
    """A cell's score, 0 to 1; None where it could not be judged: `reason` says why. `details`: a judge's two verdicts,
    say. `cost` of the judging itself, None where no model judged."""

    cell: Cell
    score: float | None
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    cost: Decimal | None = None
