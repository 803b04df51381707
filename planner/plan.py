"""The plan: steps and what they wait for, as frozen values. The state of a run lives beside it, never in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from registry.text import cut_end

from .checks import PlanError, Problem, dependency_problems, quoted
from .graph import generations, longest_path, reduction

if TYPE_CHECKING:
    import networkx

OnFailure = Literal["skip_dependents", "continue", "fail_fast"]
LABEL_CHARS = 80
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step. `tool_hint` and `model_hint` are suggestions, None for "no suggestion".

    `on_failure`: `skip_dependents` skips what depends on the step, `continue` runs it and tells it what is missing,
    `fail_fast` stops the plan.
    """

    id: str
    task: str
    dependencies: tuple[str, ...] = ()
    tool_hint: str | None = None
    model_hint: str | None = None
    on_failure: OnFailure = "skip_dependents"

    def __post_init__(self) -> None:
        if not isinstance(self.dependencies, tuple):
            given = self.dependencies
            object.__setattr__(self, "dependencies", (given,) if isinstance(given, str) else tuple(given))

    def to_json(self) -> dict[str, Any]:
        """The step as plain JSON data; `from_json` reads it back."""
        return {
            "id": self.id,
            "task": self.task,
            "dependencies": list(self.dependencies),
            "tool_hint": self.tool_hint,
            "model_hint": self.model_hint,
            "on_failure": self.on_failure,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanStep:
        """Reads what `to_json` wrote."""
        return cls(
            data["id"],
            data["task"],
            tuple(data.get("dependencies", ())),
            data.get("tool_hint"),
            data.get("model_hint"),
            data.get("on_failure", "skip_dependents"),
        )


@dataclass(frozen=True)
class Plan:
    """A goal and the steps that lead to it.

    `warnings` and `repairs` are "code:name" each. `round` counts executions, the first is 1. `kept` are the ids of
    steps that an earlier round finished: they are not run again, and steps may depend on them. A kept step need not
    be among `steps`; where it is not, it has no node in the graph.
    """

    goal: str
    steps: tuple[PlanStep, ...]
    warnings: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    round: int = 1
    kept: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "warnings", "repairs", "kept"):
            if not isinstance(getattr(self, name), tuple):
                object.__setattr__(self, name, tuple(getattr(self, name)))

    def check(self) -> None:
        """Raises PlanError, with all problems, for a plan made by hand that could not be run."""
        ids = [step.id for step in self.steps]
        problems = [] if ids else [Problem("empty_plan", (), "the plan has no steps")]
        for step_id, times in Counter(ids).items():
            if times > 1:
                problems.append(
                    Problem("duplicate_id", (step_id,), f"the id {quoted(step_id)} is used by {times} steps")
                )
        for step in self.steps:
            if not step.id:
                problems.append(Problem("missing_id", (), "a step has no id"))
            if not step.task.strip():
                problems.append(Problem("empty_task", (step.id,), f"step {quoted(step.id)} has no task"))
        problems += dependency_problems(self.deps, self.kept)
        if problems:
            raise PlanError(problems)

    @cached_property
    def deps(self) -> Mapping[str, tuple[str, ...]]:
        """What each step depends on, by id, in plan order."""
        return {step.id: step.dependencies for step in self.steps}

    @cached_property
    def by_id(self) -> Mapping[str, PlanStep]:
        """The steps by id, in plan order."""
        return {step.id: step for step in self.steps}

    @cached_property
    def graph(self) -> networkx.DiGraph[str]:
        """The plan as a networkx graph, edges from a step to those that need it; the nodes carry the steps' fields.
        Made once: don't change it."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for step in self.steps:
            graph.add_node(step.id, task=step.task, tool_hint=step.tool_hint, model_hint=step.model_hint)
        for step in self.steps:
            graph.add_edges_from((other, step.id) for other in step.dependencies if other in self.deps)
        return graph

    @cached_property
    def generations(self) -> tuple[tuple[str, ...], ...]:
        """The ids in layers: each step in the first layer after all it depends on."""
        return generations(self.deps)

    @cached_property
    def critical_path(self) -> tuple[str, ...]:
        """The longest chain of ids that must run one after the other."""
        return longest_path(self.deps)

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """The edges to draw: (step, step that needs it), without those that a longer path implies."""
        return reduction(self.deps)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON data; `from_json` reads it back."""
        return {
            "goal": self.goal,
            "round": self.round,
            "steps": [step.to_json() for step in self.steps],
            "edges": [list(edge) for edge in self.edges],
            "generations": [list(layer) for layer in self.generations],
            "critical_path": list(self.critical_path),
            "warnings": list(self.warnings),
            "repairs": list(self.repairs),
            "kept": list(self.kept),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Reads what `to_json` wrote. For what a model or a user wrote there is `parse_plan`."""
        return cls(
            data["goal"],
            tuple(PlanStep.from_json(step) for step in data["steps"]),
            tuple(data.get("warnings", ())),
            tuple(data.get("repairs", ())),
            data.get("round", 1),
            tuple(data.get("kept", ())),
        )

    def mermaid(self) -> str:
        """The plan as a Mermaid flowchart."""
        number = {step.id: f"n{at}" for at, step in enumerate(self.steps, 1)}  # ids may hold anything, these don't
        lines = [f'    {number[step.id]}["{_mermaid_text(step)}"]' for step in self.steps]
        lines += [f"    {number[start]} --> {number[end]}" for start, end in self.edges]
        return "\n".join(["flowchart TD", *lines])

    def dot(self) -> str:
        """The plan in Graphviz's language."""
        number = {step.id: f"n{at}" for at, step in enumerate(self.steps, 1)}
        lines = [f"    {number[step.id]} [label={_dot_text(step)}];" for step in self.steps]
        lines += [f"    {number[start]} -> {number[end]};" for start, end in self.edges]
        return "\n".join(["digraph plan {", "    node [shape=box];", *lines, "}"])


def _label(step: PlanStep) -> str:
    return f"{step.id}: {cut_end(' '.join(step.task.split()), LABEL_CHARS)}"


def _mermaid_text(step: PlanStep) -> str:
    return re.sub(r"[^\w\s.,:;/()…-]", lambda found: f"#{ord(found[0])};", _label(step))


def _dot_text(step: PlanStep) -> str:
    return '"' + _label(step).replace("\\", "\\\\").replace('"', '\\"') + '"'
