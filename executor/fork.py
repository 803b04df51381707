"""Fork: one step of an ended job is run again, in a new job that shares what the others brought.

The new job's row holds all that it needs: the parent may be deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.plan import Plan, PlanStep
from registry.errors import UsageError
from registry.models import GENERAL
from registry.text import cut_end

from .job_state import FOLLOW_UP
from .results import StepResult
from .schedule_types import ENDED
from .store.fold import Fields
from .store.jobs import NewJob

NEVER_RUN = "Skipped — the parent job ended before it began"
OF_THE_PARENT = ("models", "tools", "budget", "answer_mode", "history", "options")
"""Fields of the parent's request that its forks have, too."""
SHOWN = 20
"""Names that an error lists of what there is."""


class ForkError(UsageError):
    """The job can't be forked like this. `code` and `title` say which way, `field` names what was asked for wrongly."""

    def __init__(self, code: str, title: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.code, self.title, self.field = code, title, field  # type: ignore[misc]  # one class, several codes


@dataclass(frozen=True, slots=True)
class Fork:
    """Which step is run again. `descendants`: with all that depends on it; without, their results stay as they are.
    `model`: the model's name or role for this step alone, whatever the job's routing says; None: as it was. `budget`
    and `metadata` None: the parent's."""

    step: str
    descendants: bool = True
    model: str | None = None
    budget: str | None = None
    metadata: Mapping[str, Any] | None = None
    webhook: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What the parent's log says beside its summary: the follow-ups that were heard, in order, the domain that its
    router found, and which step made which artifact."""

    follow_ups: tuple[str, ...] = ()
    domain: str | None = None
    artifacts: Mapping[str, str | None] | None = None

    @classmethod
    def of(cls, events: Iterable[Fields]) -> Told:
        """Reads the rows of the statement `fork.told`."""
        said, domain, artifacts = [], None, {}
        for event in events:
            payload = event["payload"]
            match event["channel"]:
                case "inject":
                    said.append(str(payload["content"]))
                case "route" if "mode" in payload:
                    domain = payload.get("domain_hint")
                case "step":
                    artifacts[str(payload["artifact"]["name"])] = event["step_id"]
        return cls(tuple(said), domain, artifacts)


def forked(parent: Fields, told: Told, fork: Fork, hints: Collection[str] | None) -> NewJob:
    """The new job of a row of `dw_jobs`. `hints`: the models' names and roles that the parent's steps may use; None:
    they are not known here. Raises ForkError."""
    import networkx

    plan, results = _outcome(parent)
    if fork.step not in plan.by_id:
        known = ", ".join(list(plan.by_id)[:SHOWN])
        raise _wrong("unknown_step", "There is no such step", f"there is no step {_cut(fork.step)}: {known}", "step")
    again = {fork.step, *(networkx.descendants(plan.graph, fork.step) if fork.descendants else ())}
    ended = parent["ended_at"].timestamp()
    kept = {name: _kept(name, results.get(name), ended) for name in plan.by_id if name not in again}
    _can_run(plan.by_id[fork.step], plan, kept)
    steps = tuple(_step(step, fork, kept) for step in plan.steps)
    goal = str(parent["goal"]) + "".join(f"\n\n{FOLLOW_UP}{text}" for text in told.follow_ups)
    artifacts = _artifacts(parent, told, kept)
    request = {name: value for name in OF_THE_PARENT if (value := parent["request"].get(name)) is not None}
    request |= {
        "plan": Plan(goal, steps, kept=tuple(kept)).to_json(),
        "kept": [result.to_json() for result in kept.values()],
        **({"artifacts": artifacts} if artifacts else {}),
        **({} if fork.budget is None else {"budget": fork.budget}),
        **({"pins": pins} if (pins := _pins(parent, fork, steps)) else {}),
        **({} if (domain := told.domain or parent["request"].get("domain")) is None else {"domain": domain}),
    }
    _known_model(fork, hints)
    metadata = parent["metadata"] if fork.metadata is None else fork.metadata
    return NewJob(goal, "dag", "run", request, metadata, parent["id"], webhook=fork.webhook, artifacts=tuple(artifacts))


def _outcome(parent: Fields) -> tuple[Plan, dict[str, StepResult]]:
    """The parent's last plan, and what became of its steps."""
    if parent["ended_at"] is None or parent["summary"] is None:
        detail = f"the job {parent['id']} is {parent['status']}: only a job that has ended can be forked"
        raise _wrong("job_running", "The job has not ended", detail)
    summary = parent["summary"]
    if summary["plan"] is None:
        detail = f"the job {parent['id']} has no plan: only a step of a plan can be run again"
        raise _wrong("no_plan", "The job has no plan", detail)
    if parent["kind"] == "plan":
        detail = f"the job {parent['id']} only made a plan, nothing was run: start a job with that plan"
        raise _wrong("nothing_run", "The job has run nothing", detail)
    results = (StepResult.from_json(step) for step in summary["steps"])
    return Plan.from_json(summary["plan"]), {result.id: result for result in results}


def _kept(name: str, result: StepResult | None, ended: float) -> StepResult:
    """A step's result as the new job keeps it; one that never began has none."""
    if result is None or result.status not in ENDED:
        return StepResult("skipped", error=NEVER_RUN, ended_at=ended, id=name)
    return result


def _can_run(step: PlanStep, plan: Plan, kept: Mapping[str, StepResult]) -> None:
    """Raises ForkError where a dependency of the step has no result, so that it would only be skipped."""
    for other in step.dependencies:
        result = kept.get(other)
        if result is None or result.status == "completed":
            continue
        if result.status == "failed" and plan.by_id[other].on_failure == "continue":
            continue
        detail = (
            f"the step {_cut(step.id)} depends on {_cut(other)}, which was {result.status} and is not run again: "
            f"fork the job at {_cut(_cause(other, plan, kept))}"
        )
        raise _wrong("kept_without_result", "A step that is kept has no result", detail, "step")


def _cause(step: str, plan: Plan, kept: Mapping[str, StepResult]) -> str:
    """The step because of which this one has no result."""
    seen = {step}
    while (before := kept[step].root_cause) in kept and before not in seen:
        assert before is not None
        step = before
        seen.add(step)
    return step


def _step(step: PlanStep, fork: Fork, kept: Mapping[str, StepResult]) -> PlanStep:
    """A step of the new plan. One that failed before and is kept stops nothing any more."""
    if step.id == fork.step:
        return step if fork.model is None else replace(step, model_hint=fork.model)
    if step.id in kept and kept[step.id].status == "failed" and step.on_failure == "fail_fast":
        return replace(step, on_failure="skip_dependents")
    return step


def _pins(parent: Fields, fork: Fork, steps: Iterable[PlanStep]) -> dict[str, str]:
    """The models that steps have whatever the routing says: this one's, and those of the parent where it still has
    these steps."""
    hints = {step.id: step.model_hint for step in steps}
    before = parent["request"].get("pins") or {}
    kept = {name: model for name, model in before.items() if hints.get(name) == model}
    return kept if fork.model is None else {**kept, fork.step: fork.model}


def _artifacts(parent: Fields, told: Told, kept: Mapping[str, StepResult]) -> dict[str, str | None]:
    """The artifacts that kept steps made, in this job or in one that it was forked from, each with its step."""
    made = {**(parent["request"].get("artifacts") or {}), **(told.artifacts or {})}
    return {name: step for name, step in made.items() if step in kept}


def _known_model(fork: Fork, hints: Collection[str] | None) -> None:
    if fork.model is None or hints is None or fork.model == GENERAL or fork.model in hints:
        return
    known = ", ".join(list(hints)[:SHOWN]) or "none"
    detail = f"there is no model or role {_cut(fork.model)} that the job may use; there are: {known}"
    raise _wrong("unknown_model", "There is no such model", detail, "model")


def _wrong(code: str, title: str, detail: str, field: str | None = None) -> ForkError:
    return ForkError(code, title, detail, field)


def _cut(name: str) -> str:
    return repr(cut_end(name, 100))
