"""What requests may hold. All is strict: a field that is not here is refused by its name, `false` is no number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from executor.store.keys import MAX_NAME_CHARS

IDEMPOTENCY_CHARS = 255
MAX_METADATA = 64
"""Entries of a job's metadata."""
MAX_METADATA_CHARS = 1_000
"""Characters of one entry's value."""
MAX_MESSAGES = 10_000
MAX_NAMES = 1_000
MAX_TEXT_CHARS = 200_000
MAX_DEPTH = 64
"""Levels of lists and objects in a plan or a policy; what is nested deeper can't be written out again."""

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Whole = Annotated[int, Field(ge=0, le=1_000_000)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=30 * 86_400, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
V = TypeVar("V")
MetadataValue = Annotated[str, Field(max_length=MAX_METADATA_CHARS)] | bool | int | float | None


class Strict(BaseModel):
    """A request's body."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Options(Strict):
    """Settings of this job alone, by their names; what is left out is as the service has it."""

    max_concurrency: Count | None = Field(None, description="Steps at once")
    step_timeout: Seconds | None = Field(None, description="Seconds a step may run, waits for a human not counted")
    step_retries: Whole | None = Field(None, description="New tries of a failed step")
    max_iterations: Count | None = Field(None, description="Turns of an agent's loop")
    cycle_detection_threshold: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    completion_check_min_tools: Whole | None = None
    self_reflection_interval: Whole | None = None
    max_replan_rounds: Count | None = Field(None, description="Rounds of planning and running, the first included")
    replan_stop_confidence: Share | None = None
    structured_context_multiplier: Count | None = None
    step_verification: bool | None = None
    citation_verification: bool | None = None
    max_steps: Count | None = Field(None, description="Steps of a plan; no more than the service allows")
    router: bool | None = Field(None, description="Mode auto asks a model whether a goal needs a plan")
    routing: Annotated[str, Field(max_length=2_000)] | dict[str, Any] | None = Field(
        None,
        description="Which model does a step: hint, fixed:MODEL, cascade or budget, an object with `use` and the "
        "policy's keys, or a policy that the operator has declared. Nothing that reads files or imports code",
    )
    roles: dict[Name, Name] | None = Field(
        None, max_length=MAX_NAMES, description="Models by the roles that they have in this job, such as smart: large"
    )

    @field_validator("routing")
    @classmethod
    def _routing_is_flat(cls, routing: Any) -> Any:
        return _flat(routing)


class BudgetIn(Strict):
    """What a job may cost at most; one of them at least."""

    usd: float | Annotated[str, Field(max_length=40)] | None = None
    tokens: int | None = None
    seconds: float | None = None


class MessageIn(Strict):
    """One message of the conversation before the goal."""

    role: Literal["user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_TEXT_CHARS * 5)]


class PlanningIn(Strict):
    """What is planned for, and with what."""

    goal: str = Field("", description="What is to be done; may be left out where the plan has it")
    models: list[Name] | None = Field(
        None, min_length=1, max_length=MAX_NAMES, description="Models that may be used; null: all of them"
    )
    tools: list[Name] | None = Field(None, max_length=MAX_NAMES, description="Tools that may be used; null: all")
    budget: BudgetIn | Annotated[str, Field(max_length=200)] | float | None = Field(
        None, description="What it may cost: USD, a text such as `0.50usd, 20k tokens, 10m`, or an object"
    )
    history: list[MessageIn] | None = Field(None, max_length=MAX_MESSAGES, description="What was said before")
    options: Options | None = None
    metadata: dict[Annotated[str, Field(min_length=1, max_length=64)], MetadataValue] | None = Field(
        None, max_length=MAX_METADATA, description="Yours; jobs can be listed by it"
    )


class JobIn(PlanningIn):
    """A job to be done."""

    mode: Literal["auto", "dag", "react"] = Field("auto", description="Plan it, let one agent do it, or decide")
    plan: dict[str, Any] | None = Field(None, description="Executed as it is, after the same checks")
    answer_mode: Literal["synthesis", "direct"] | None = None
    webhook: Annotated[str, Field(max_length=2_000)] | None = Field(
        None, description="Where the job's end is told (Standard Webhooks)"
    )

    @field_validator("plan")
    @classmethod
    def _plan_is_flat(cls, plan: dict[str, Any] | None) -> dict[str, Any] | None:
        return _flat(plan)


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _flat(value: V) -> V:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [part for whole in level for part in _parts(whole)]
    if level:
        raise PydanticCustomError("too_deep", "nested too deeply: {most} levels at most", {"most": MAX_DEPTH})
    return value


class ForkIn(Strict):
    """Which step of an ended job is run again; all else is as that job had it."""

    step: Annotated[str, Field(min_length=1, max_length=1_000, description="Its id in the job's last plan")]
    descendants: bool = Field(True, description="With all that depends on it; else their results stay as they are")
    model: Name | None = Field(None, description="A model's name, or a role, for this step alone; null: as it was")
    budget: BudgetIn | Annotated[str, Field(max_length=200)] | float | None = Field(
        None, description="What the new job may cost; null: the same amount anew"
    )
    metadata: dict[Annotated[str, Field(min_length=1, max_length=64)], MetadataValue] | None = Field(
        None, max_length=MAX_METADATA, description="The new job's; null: that of the job"
    )
    webhook: Annotated[str, Field(max_length=2_000)] | None = Field(
        None, description="Where the new job's end is told (Standard Webhooks)"
    )


class TextIn(Strict):
    """Something said to a job."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]


class DecisionIn(Strict):
    """The word on a call that waits."""

    approve: bool
    reason: Annotated[str, Field(max_length=10_000)] = ""


class Empty(Strict):
    """No field at all; the body may be left out."""


# What comes back: for the description, answers are not made of these


class Out(BaseModel):
    """Part of an answer; more fields may come."""

    model_config = ConfigDict(extra="allow")


class UsageOut(Out):
    """Tokens and money; `cost_usd` is a decimal string, null where it is unknown."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    calls: int
    cost_usd: str | None
    partial: bool


class StepOut(Out):
    """One step of a job."""

    id: str
    status: str
    attempts: int
    model: str | None
    escalated_from: str | None
    output: str
    error: str | None
    root_cause: str | None
    started_at: str | None
    ended_at: str | None
    usage: UsageOut


class PlanOut(Out):
    """A plan."""

    goal: str
    round: int
    steps: list[dict[str, Any]]
    edges: list[list[str]]
    generations: list[list[str]]
    critical_path: list[str]
    warnings: list[str]
    repairs: list[str]
    kept: list[str]


class PlaceOut(Out):
    """Where a step is drawn, in units of one step's room: `x` is its layer, `y` the place along it."""

    id: str
    x: int
    y: float
    layer: int


class DrawingOut(Out):
    """A drawing of a plan; each edge has its `points`, from one step over bends to the other."""

    round: int
    nodes: list[PlaceOut]
    edges: list[dict[str, Any]]
    width: int
    height: float


class JobOut(Out):
    """A job as it stands."""

    id: str
    status: Literal[
        "queued", "running", "needs_decision", "completed", "partial", "failed", "cancelled", "budget_exceeded"
    ]
    goal: str
    mode: str
    created_at: str
    started_at: str | None
    ended_at: str | None
    plan: PlanOut | None
    steps: list[StepOut]
    answer: str | None
    error: str | None
    rounds: int
    parent: str | None
    metadata: dict[str, Any]
    usage: UsageOut


class JobsOut(Out):
    """A page of jobs, newest first; the next one begins `after` its last."""

    data: list[JobOut]
    has_more: bool
    next: str | None


class PlannedOut(PlanOut):
    """A plan that was made, and the job that made it."""

    job: str
    usage: UsageOut


class ToolOut(Out):
    """A tool that jobs may use."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolsOut(Out):
    """The tools there are."""

    data: list[ToolOut]


class ArtifactOut(Out):
    """Something that a tool made for the reader."""

    name: str
    mime: str
    size: int


class ArtifactsOut(Out):
    """A job's artifacts."""

    data: list[ArtifactOut]


class SessionOut(Out):
    """Whose session it is."""

    tenant: str
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None


class SentOut(Out):
    """It will reach the job."""

    job: str
    sent: Literal["message", "stop", "decide"]
