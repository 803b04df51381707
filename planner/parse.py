"""`parse_plan`: what a planner wrote, as a valid Plan, or all that is wrong with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from registry.text import clean

from .checks import PlanError, Problem, dependency_problems, quoted, unknown_dependency
from .plan import ON_FAILURE, OnFailure, Plan, PlanStep
from .repairs import (
    MAX_DEPTH,
    MAX_ID_CHARS,
    NotAPlan,
    References,
    describe,
    fields_of,
    find_steps,
    is_nothing,
    is_step,
    read_text,
    scalar_text,
    squeeze,
)

MAX_STEPS = 64
MAX_TASK_CHARS = 100_000
READ_BEYOND_LIMIT = 1_000
"""Of a plan with more steps than this, and than it may have, only the number is looked at."""

_NUMBERING = re.compile(r"[\s\-*•>(\[]*(?:step\s*)?\d*(?:\.\d+)*[\s.):\]、。·-]*", re.IGNORECASE)
NUMBERING_CHARS = 100
"""A longer text is no mere numbering; the pattern is not tried on it."""
_ID_KEYS = ("id", "step", "step_id", "task_id")
_GENERAL = frozenset({"general", "default"})
"""Model hints that say what no hint says too."""


def parse_plan(
    value: Any,
    *,
    tools: Iterable[str] | None = None,
    models: Iterable[str] | None = None,
    max_steps: int = MAX_STEPS,
    goal: str = "",
    kept: Iterable[str] = (),
) -> Plan:
    """A plan from decoded JSON, or from text that holds it.

    `tools` and `models` are the known names: None, hints are not checked; empty, none exist. `kept` are the ids of
    steps that an earlier round finished: steps may depend on them but not take their ids.

    Shape is repaired and noted in `repairs`; unknown hints are dropped with a warning; meaning is never guessed.
    Raises PlanError with all problems at once.
    """
    return _Reader(tools, models, max_steps, kept).read(value, goal)


def _goal_in(value: Any) -> str:
    goal = value.get("goal") if isinstance(value, Mapping) else None
    return clean(goal).strip() if isinstance(goal, str) else ""


class _Reader:
    """The state of reading one plan: what is known, and what has been noted so far."""

    def __init__(
        self,
        tools: Iterable[str] | None,
        models: Iterable[str] | None,
        max_steps: int,
        kept: Iterable[str],
    ) -> None:
        self.tools = None if tools is None else tuple(tools)
        self.models = None if models is None else tuple(models)
        self.max_steps = max_steps
        self.kept = tuple(dict.fromkeys(kept))
        self.problems: list[Problem] = []
        self.repairs: list[str] = []
        self.warnings: list[str] = []

    def read(self, value: Any, goal: str) -> Plan:
        raw_steps = self._raw_steps(value)
        read = (self._fields(step, at) for at, step in enumerate(raw_steps, 1))
        drafts = [draft for draft in read if draft is not None]
        references = References([*(draft["id"] for draft in drafts if draft["id"]), *self.kept])
        steps = [self._step(draft, references) for draft in drafts]
        self._check_ids(steps)
        deps = {step.id: [other for other in step.dependencies if other in references.ids] for step in steps}
        self.problems += dependency_problems(deps, self.kept)
        if not steps and not self.problems:
            self._problem("empty_plan", (), "the plan has no steps to run")
        if self.problems:
            raise PlanError(self.problems)
        return Plan(
            goal or _goal_in(value),
            tuple(steps),
            tuple(dict.fromkeys(self.warnings)),
            tuple(dict.fromkeys(self.repairs)),
            kept=self.kept,
        )

    def _problem(self, code: str, names: tuple[str, ...], message: str) -> None:
        self.problems.append(Problem(code, names, message))

    def _raw_steps(self, value: Any) -> list[Any]:
        try:
            steps = find_steps(value, self.repairs)
        except NotAPlan as error:
            raise PlanError([("not_a_plan", (), f"this is not a plan: {error}")]) from None
        except RecursionError:
            raise PlanError([("not_a_plan", (), "this is not a plan: it is nested too deeply")]) from None
        if not steps:
            raise PlanError([("empty_plan", (), "the plan has no steps")])
        if len(steps) > max(self.max_steps, READ_BEYOND_LIMIT):
            raise PlanError([self._too_many(len(steps))])
        if not any(is_step(step) or isinstance(step, Mapping) for step in map(self._unwrapped, steps)):
            raise PlanError([("not_a_plan", (), "this is not a plan: its steps are no objects with id and task")])
        return steps

    def _too_many(self, count: int) -> Problem:
        message = f"the plan has {count} steps, at most {self.max_steps} are allowed"
        return Problem("too_many_steps", (), message)

    # One step

    def _unwrapped(self, raw: Any) -> Any:
        """A step that is a JSON text, or that stands alone under its id."""
        if isinstance(raw, str) and "{" in raw:
            try:
                raw = read_text(raw)
            except NotAPlan:
                return raw
        if isinstance(raw, Mapping) and len(raw) == 1 and not is_step(raw):
            key, inner = next(iter(raw.items()))
            if is_step(inner):
                return inner if squeeze(str(key)) in ("step", "task", "node") else {"id": key, **inner}
        return raw

    def _fields(self, raw: Any, at: int) -> dict[str, Any] | None:
        step = self._unwrapped(raw)
        if not isinstance(step, Mapping):
            self._problem("not_a_plan", (), f"entry {at} of the steps is {describe(step)}, not an object")
            return None
        if step is not raw:
            self.repairs.append(f"wrapper:step {at}")
        fields, renamed = fields_of(step)
        step_id = scalar_text(fields.get("id"))
        if step_id and not isinstance(fields["id"], str):
            self.repairs.append(f"numeric_id:{step_id}")
        self.repairs += [f"field_name:{key}" for key in renamed]
        if not step_id:
            self._problem("missing_id", (), f"step number {at} has no id")
        elif len(step_id) > MAX_ID_CHARS:
            message = f"the id of step number {at} has {len(step_id)} characters, at most {MAX_ID_CHARS} are allowed"
            self._problem("too_long", (step_id[:MAX_ID_CHARS],), message)
        name = step_id or f"number {at}"
        return {**fields, "id": step_id, "name": name, "task": self._task(fields.get("task"), name)}

    def _task(self, value: Any, name: str) -> str:
        if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
            value = "\n".join(value)
            self.repairs.append(f"task:{name}")
        task = clean(value).strip() if isinstance(value, str) else ""
        if value is not None and not isinstance(value, str):
            self._problem("empty_task", (name,), f"the task of step {quoted(name)} is {describe(value)}, not a text")
        elif len(task) > MAX_TASK_CHARS:
            message = f"the task of step {quoted(name)} has {len(task)} characters, more than {MAX_TASK_CHARS}"
            self._problem("too_long", (name,), message)
        elif (len(task) < NUMBERING_CHARS and _NUMBERING.fullmatch(task)) or not any(char.isalnum() for char in task):
            self._problem("empty_task", (name,), f"step {quoted(name)} has no task")
        return task

    def _check_ids(self, steps: list[PlanStep]) -> None:
        if len(steps) > self.max_steps:
            self.problems.append(self._too_many(len(steps)))
        for step_id, times in Counter(step.id for step in steps).items():
            if step_id in self.kept:
                message = f"the id {quoted(step_id)} belongs to a finished step that is kept: a new step needs a new id"
                self._problem("duplicate_id", (step_id,), message)
            elif times > 1:
                self._problem("duplicate_id", (step_id,), f"the id {quoted(step_id)} is used by {times} steps")

    def _step(self, draft: Mapping[str, Any], references: References) -> PlanStep:
        name = draft["name"]
        return PlanStep(
            draft["id"] or name,
            draft["task"],
            self._dependencies(draft.get("dependencies"), name, references),
            self._hint(draft.get("tool_hint"), self.tools, "tool", name),
            self._hint(draft.get("model_hint"), self.models, "model", name),
            self._on_failure(draft.get("on_failure")),
        )

    def _on_failure(self, value: Any) -> OnFailure:
        if is_nothing(value):
            return "skip_dependents"
        written = scalar_text(value) or describe(value)
        for known in ON_FAILURE:
            if squeeze(known) == squeeze(written):
                return known
        self.warnings.append(f"unknown_on_failure:{written[:MAX_ID_CHARS]}")
        return "skip_dependents"

    # Dependencies

    def _dependencies(self, value: Any, name: str, references: References) -> tuple[str, ...]:
        written = list(self._written(value, name, references, 0))
        found: list[str] = []
        for reference in written:
            known = references.find(reference, name)
            if known is None:
                if not is_nothing(reference):
                    self.problems.append(unknown_dependency(name, reference))
                continue
            if known != reference:
                self.repairs.append(f"reference:{reference}")
            found.append(known)
        unique = tuple(dict.fromkeys(found))
        if len(unique) < len(found):
            self.repairs.append(f"doubled_dependency:{name}")
        return unique

    def _written(self, value: Any, name: str, references: References, depth: int) -> Iterable[str]:
        """The references in whatever stands as dependencies, each as text; those that can't be one are problems."""
        if isinstance(value, str) and is_nothing(value) and references.find(" ".join(value.split()), name):
            yield " ".join(value.split())  # there is a step called "none"
        elif is_nothing(value):
            if depth == 0 and value not in (None, [], ()):
                self.repairs.append(f"dependencies:{name}")
        elif isinstance(value, list | tuple | set) and depth < MAX_DEPTH:
            if depth:
                self.repairs.append(f"dependencies:{name}")
            for item in value:
                yield from self._written(item, name, references, depth + 1)
        elif isinstance(value, Mapping) and (key := next((key for key in _ID_KEYS if key in value), None)):
            self.repairs.append(f"dependencies:{name}")
            yield from self._written(value[key], name, references, depth + 1)
        elif (text := scalar_text(value)) is not None:
            if depth == 0 or not isinstance(value, str):
                self.repairs.append(f"dependencies:{name}")
            yield from self._split(text, name, references)
        else:
            message = f"a dependency of step {quoted(name)} is {describe(value)}, not the id of a step"
            self._problem("unknown_dependency", (name,), message)

    def _split(self, text: str, name: str, references: References) -> Collection[str]:
        """One reference; or several in one text, where each of them is known."""
        if references.find(text, name) is None:
            parts = [part.strip(" \"'") for part in re.split(r"[,;\[\]]|\band\b|&", text)]
            parts = [part for part in parts if part]
            if len(parts) > 1 or (parts and parts != [text]):
                known = [references.find(part, name) for part in parts]
                if all(known):
                    return parts
        return [text]

    # Hints

    def _hint(self, value: Any, known: tuple[str, ...] | None, kind: str, name: str) -> str | None:
        if isinstance(value, Mapping):
            value = value.get("name", value.get("id"))
        if isinstance(value, list | tuple) and value:
            self.repairs.append(f"{kind}_hint:{name}")
            names = [scalar_text(item) or "" for item in value]
            value = next((item for item in names if known is not None and item in known), names[0])
        hint = scalar_text(value)
        if hint is None or (is_nothing(hint) and hint not in (known or ())):
            return None
        hint = hint[:MAX_ID_CHARS]
        if known is None or hint in known:
            return hint
        alike = [item for item in known if squeeze(item) == squeeze(hint)]
        if len(alike) == 1:
            self.repairs.append(f"{kind}_hint:{hint}")
            return alike[0]
        if kind == "tool" or hint.casefold() not in _GENERAL:
            self.warnings.append(f"unknown_{kind}:{hint}")
        return None
