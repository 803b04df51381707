"""What a step is told: its task, the goal, hints, and what the steps it depends on found, within a bound."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.text import clean, cut_end, cut_middle, load_prompt, unforgeable_marker
from registry.tokens import estimate_text

from .results import StepResult
from .step_trail import DONE_CHARS, CallDone, StepTrail, texts_of, told_calls

if TYPE_CHECKING:
    from planner.plan import PlanStep

CONTEXT_CHARS = 50_000
"""Characters of dependencies' results in a query."""
STRUCTURED_MULTIPLIER = 3
"""How much more room they get where they hold tables, code or citations: those are worthless when cut."""
SHORT_BUDGET = 6_000
"""A model with a smaller budget of tokens is told less around its task."""
GOAL_CHARS = 8_000
FAILURE_CHARS = 4_000
TASK_CHARS = 300
"""Characters of a dependency's task in the head line of its result."""

_STRUCTURED = re.compile(
    r"^```"  # code
    r"|^\s*\|?[ :]*-{2,}[ :]*\|"  # the line under a table's head
    r"|\[\^?\d+\](?!\()"  # [1]
    r"|\bdoi:\s*10\.|https?://doi\.org/"
    r"|§\s*\d",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Dependency:
    """A step that this one depends on, and what became of it."""

    id: str
    task: str
    result: StepResult


@dataclass(frozen=True, slots=True)
class StepBrief:
    """All that one attempt at a step starts from. `failure`: what the attempt before ended with; `taint`: the untrusted
    origins of what it is told. `rejected`: what a check found, and the result that it found it in. `done`: tool calls
    that earlier agents made. `trail`: where the step's agents note what they do."""

    step: PlanStep
    goal: str
    dependencies: Sequence[Dependency] = ()
    failure: tuple[str, str] | None = None
    context_chars: int = CONTEXT_CHARS
    multiplier: int = STRUCTURED_MULTIPLIER
    taint: tuple[str, ...] = ()
    rejected: tuple[str, str] | None = None
    done: tuple[CallDone, ...] = ()
    trail: StepTrail = field(default_factory=StepTrail)

    def query(self, budget: int | None = None) -> str:
        """The step's query for a model with this `budget` of input tokens (None: ample); it leaves half of it free."""
        return step_query(self, budget)


def step_query(brief: StepBrief, budget: int | None = None) -> str:
    """The query of a step. Texts of models and tools in it are data between marked lines they can't forge."""
    outputs = [clean(dependency.result.output) for dependency in brief.dependencies]
    marker = unforgeable_marker(_texts(brief, outputs))
    template = load_prompt("executor", "step_short" if budget is not None and budget < SHORT_BUDGET else "step")
    task = point_to_results(brief.step.task, [dependency.id for dependency in brief.dependencies])
    hint = f"A tool that may help: {_line(brief.step.tool_hint)}" if brief.step.tool_hint else ""
    after = (done_section(brief.done, budget, marker), failure_section(brief, marker), rejected_section(brief, marker))

    def query(results: str) -> str:
        context = "".join(f"\n{section}\n" for section in (hint, results, *after) if section)
        return template.substitute(task=task, goal=cut_middle(brief.goal, GOAL_CHARS) or "(not given)", context=context)

    if not outputs:
        return query("")
    room = brief.context_chars * (brief.multiplier if any(map(is_structured, outputs)) else 1)
    if budget is not None:
        room = min(room, _room(query(""), outputs, budget // 2))
    return query(_results(brief.dependencies, share_out(outputs, room), marker))


def _texts(brief: StepBrief, outputs: Sequence[str]) -> list[str]:
    """Everything in the query that models or tools wrote."""
    texts = [brief.step.task, brief.goal, *outputs, *(brief.failure or ()), *(brief.rejected or ())]
    texts += texts_of(brief.done)
    for dependency in brief.dependencies:
        texts += (dependency.task, dependency.result.error or "")
    return texts


def point_to_results(task: str, ids: Iterable[str]) -> str:
    """The task with `${id}`, `{{id}}` and `#id` of its dependencies as words that point to their results."""
    if "{" not in task and "#" not in task:
        return task
    names = "|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True))
    if not names:
        return task
    field = r"(?:\.(?:output|result))?"
    pattern = rf"\$\{{\s*({names}){field}\s*\}}|\{{\{{\s*({names}){field}\s*\}}\}}|#({names})(?![\w-])"
    return re.sub(pattern, lambda match: f'the result of step "{match[match.lastindex or 0]}" (given below)', task)


def is_structured(text: str) -> bool:
    """Whether a result holds a table, code or citations."""
    return _STRUCTURED.search(text) is not None


def share_out(texts: Sequence[str], room: int) -> list[str]:
    """The texts cut to `room` characters in all: short ones stay whole, the long ones share the rest equally; what is
    cut is marked and keeps head and tail."""
    left, share = room, room
    for number, length in enumerate(sorted(map(len, texts))):
        share = left // (len(texts) - number)
        if length > share:
            break
        left -= length
        share = max(share, length)
    return [cut_middle(text, share) for text in texts]


def _results(dependencies: Sequence[Dependency], outputs: Sequence[str], marker: str) -> str:
    pairs = zip(dependencies, outputs, strict=True)
    blocks = "\n\n".join(_block(dependency, output, marker) for dependency, output in pairs)
    return load_prompt("executor", "step_results").substitute(marker=marker, blocks=blocks)


def _block(dependency: Dependency, output: str, marker: str) -> str:
    result, name = dependency.result, _line(dependency.id)
    if result.status != "completed":
        missing = f"MISSING: there is no result of this step. Reason: {_line(result.error or result.status)}"
        output = f"{missing}\nWhat it had until then:\n{output}" if output.strip() else missing
    outside = f"; holds text from {_line(', '.join(result.taint))}" if result.taint else ""
    head = f"{marker} result of step {name} ({result.status}{outside}): {_line(dependency.task)}"
    return f"{head}\n{output}\n{marker} end of step {name}"


def failure_section(brief: StepBrief, marker: str) -> str:
    """What an agent is told of how the attempt before failed; empty where none did."""
    if brief.failure is None:
        return ""
    code, text = brief.failure
    block = f"{marker} failure\n{cut_middle(clean(text), FAILURE_CHARS)}\n{marker} end of failure"
    return load_prompt("executor", "step_failure").substitute(code=code, block=block, marker=marker)


def rejected_section(brief: StepBrief, marker: str) -> str:
    """What an agent is told of a result that did not pass a check; empty where there is none."""
    if brief.rejected is None:
        return ""
    found, result = (cut_middle(clean(text), FAILURE_CHARS) for text in brief.rejected)
    block = f"{marker} findings\n{found}\n{marker} result\n{result}\n{marker} end"
    return load_prompt("executor", "step_rejected").substitute(block=block, marker=marker)


def done_section(calls: Sequence[CallDone], budget: int | None, marker: str) -> str:
    """What an agent is told of calls that were made before it; empty where there were none."""
    room = DONE_CHARS if budget is None else min(DONE_CHARS, budget)  # a character per token: a quarter of it, mostly
    block = told_calls(calls, room, share_out)
    if not block:
        return ""
    block = f"{marker} tool calls\n{block}\n{marker} end of tool calls"
    return load_prompt("executor", "step_done").substitute(block=block, marker=marker)


def _room(frame: str, outputs: Sequence[str], tokens: int) -> int:
    """Characters of results that fit into `tokens` beside the frame, in the mix of scripts the results have."""
    size = sum(map(len, outputs))
    per_token = size / max(1, sum(map(estimate_text, outputs)))
    return max(0, int((tokens - estimate_text(frame) - HEAD_TOKENS * len(outputs)) * per_token))


HEAD_TOKENS = 60
"""Tokens of the lines around one result, about."""


def _line(text: str) -> str:
    return cut_end(" ".join(clean(text).split()), TASK_CHARS)


def dependencies_of(
    step: PlanStep, steps: Mapping[str, PlanStep], results: Mapping[str, StepResult]
) -> tuple[Dependency, ...]:
    """The step's dependencies with what became of them, in the step's own order."""
    return tuple(
        Dependency(name, steps[name].task if name in steps else "", results[name])
        for name in dict.fromkeys(step.dependencies)
    )
