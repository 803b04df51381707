"""A replan is a difference: what is kept, what takes the place of what failed, what is new."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from registry.messages import canonical_json

from .checks import PlanError, Problem, quoted
from .graph import order
from .material import output_of, results_of, status_of
from .parse import MAX_STEPS, parse_plan
from .plan import Plan, PlanStep
from .repairs import NotAPlan, References, fields_of, find_steps, is_nothing, read_text, scalar_text, squeeze


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """How a plan follows from the one before: the ids of steps kept, replaced under their old id, added, dropped."""

    kept: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        """The difference as plain JSON data."""
        return {name: list(ids) for name, ids in asdict(self).items()}


def diff_plans(old: Plan, new: Plan) -> PlanDiff:
    """What a plan keeps, replaces, adds and drops of the one before."""
    kept = set(new.kept)
    return PlanDiff(
        new.kept,
        tuple(step.id for step in new.steps if step.id in old.by_id and step.id not in kept),
        tuple(step.id for step in new.steps if step.id not in old.by_id and step.id not in kept),
        tuple(step.id for step in old.steps if step.id not in new.by_id and step.id not in kept),
    )


def step_key(step: PlanStep, results: Any) -> str:
    """A hash of all that a step's result rests on: task, hints, and the results of its dependencies. Not of its id."""
    found = results_of(results)
    outputs = sorted(output_of(found.get(other)) for other in step.dependencies)
    parts = [" ".join(step.task.split()), step.tool_hint, step.model_hint, outputs]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def finished_steps(plan: Plan, results: Any) -> dict[str, PlanStep]:
    """The plan's completed steps by id."""
    found = results_of(results)
    return {step.id: step for step in plan.steps if status_of(found.get(step.id)) == "completed"}


def parse_replan(
    value: Any,
    plan: Plan,
    results: Any,
    *,
    tools: Iterable[str] | None = None,
    models: Iterable[str] | None = None,
    max_steps: int = MAX_STEPS,
    goal: str | None = None,
    may_rest: bool = False,
) -> Plan:
    """The plan of the next round from `{"keep": [ids], "steps": [...]}`.

    Finished steps are kept where they are listed, where a new step depends on them, or where a step repeats one
    unchanged (`step_key`); without a list, all that are not replaced. The kept ones come first among the plan's
    steps, the edges to dropped ones are gone. With `may_rest` a plan that keeps all finished steps and adds nothing is
    legal too: what the user said may only ask for another answer. Raises PlanError with all problems at once.
    """
    finished = finished_steps(plan, results)
    value, listed, warnings = _kept_list(value, finished)
    written = _written_ids(value)
    if may_rest and finished and _adds_nothing(value):
        draft = Plan("", ())
    else:
        draft = parse_plan(
            value,
            tools=tools,
            models=models,
            max_steps=max_steps + len(finished),
            kept=[step_id for step_id in finished if step_id not in written],
        )
    same = _repeated(draft, finished, results)
    new = tuple(
        replace(step, dependencies=tuple(dict.fromkeys(same.get(other, other) for other in step.dependencies)))
        for step in draft.steps
        if step.id not in same
    )
    new_ids = {step.id for step in new}
    used = {other for step in new for other in step.dependencies if other not in new_ids}
    wanted = {*same.values(), *used, *(finished if listed is None else listed)} - new_ids
    _check(new, listed or (), max_steps, may_be_empty=may_rest and bool(finished) and wanted == set(finished))
    kept = tuple(step_id for step_id in finished if step_id in wanted)
    old = tuple(
        replace(step, dependencies=tuple(other for other in step.dependencies if other in wanted))
        for step in finished.values()
        if step.id in wanted
    )
    repairs = (*draft.repairs, *(f"kept:{step_id}" for step_id in dict.fromkeys(same.values())))
    goal = plan.goal if goal is None else goal
    return Plan(goal, (*old, *new), (*draft.warnings, *warnings), repairs, plan.round + 1, kept)


def _check(new: tuple[PlanStep, ...], listed: Iterable[str], max_steps: int, *, may_be_empty: bool) -> None:
    taken = set(listed)
    problems = [
        Problem(
            "duplicate_id",
            (step.id,),
            f"the id {quoted(step.id)} belongs to a finished step that is kept: a new step needs a new id",
        )
        for step in new
        if step.id in taken
    ]
    if len(new) > max_steps:
        problems.append(
            Problem("too_many_steps", (), f"the plan has {len(new)} new steps, at most {max_steps} are allowed")
        )
    if not new and not may_be_empty:
        problems.append(Problem("empty_plan", (), "the plan has nothing new to run"))
    if problems:
        raise PlanError(problems)


def _kept_list(value: Any, finished: Mapping[str, PlanStep]) -> tuple[Any, tuple[str, ...] | None, tuple[str, ...]]:
    """The decoded value, the finished steps it says to keep (None: it doesn't say), and a warning for each it can't."""
    if isinstance(value, str):
        try:
            value = read_text(value)
        except NotAPlan as error:
            raise PlanError([("not_a_plan", (), f"this is not a plan: {error}")]) from None
    holder = value
    if isinstance(holder, Mapping) and len(holder) == 1:
        holder = next(iter(holder.values()))
    for mapping in (value, holder):
        if not isinstance(mapping, Mapping):
            continue
        for key, given in mapping.items():
            if isinstance(key, str) and squeeze(key) in ("keep", "kept"):
                return value, *_known(given, finished)
    return value, None, ()


def _known(given: Any, finished: Mapping[str, PlanStep]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    references, kept, warnings = References(finished), [], []
    for item in given if isinstance(given, list | tuple) else [given]:
        inner = item.get("id") if isinstance(item, Mapping) else item
        name = scalar_text(inner)
        known = references.find(name, "") if name else None
        if known is not None:
            kept.append(known)
        elif not is_nothing(inner):
            warnings.append(f"not_kept:{(name or repr(inner))[:200]}")
    return tuple(dict.fromkeys(kept)), tuple(warnings)


def _adds_nothing(value: Any) -> bool:
    """Whether the change lists no steps at all, or says only what is kept."""
    try:
        return not find_steps(value, [])
    except (NotAPlan, RecursionError):
        return isinstance(value, Mapping) and {squeeze(str(key)) for key in value} <= {"keep", "kept"}


def _written_ids(value: Any) -> set[str]:
    try:
        steps = find_steps(value, [])
    except (NotAPlan, RecursionError):
        return set()  # parse_plan says what is wrong
    ids = (scalar_text(fields_of(step)[0].get("id")) for step in steps if isinstance(step, Mapping))
    return {step_id for step_id in ids if step_id}


def _repeated(draft: Plan, finished: Mapping[str, PlanStep], results: Any) -> dict[str, str]:
    """The draft's steps that a finished step has done already, with that step's id."""
    done = {step_key(step, results): step_id for step_id, step in reversed(list(finished.items()))}
    same: dict[str, str] = {}
    for step_id in order(draft.deps):
        step = draft.by_id[step_id]
        others = [same.get(other, other) for other in step.dependencies]
        if any(other not in same and other in draft.by_id for other in step.dependencies):
            continue  # it rests on something that is still to be done
        key = step_key(replace(step, dependencies=tuple(others)), results)
        twin = finished.get(step_id)
        known = step_id if twin is not None and step_key(twin, results) == key else done.get(key)
        if known is not None and (known == step_id or known not in draft.by_id):
            same[step_id] = known
    return same
