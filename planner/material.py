"""What planner, analyzer and router put into their prompts: goal, conversation, tools, models, results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from agent.context import ContextGuard
from registry import clock as clocks
from registry.clock import Clock
from registry.llm import LLM
from registry.messages import Message
from registry.models import OFFERED, ROLES, ModelRegistry
from registry.text import cut_end, cut_middle, load_prompt, marked, unforgeable_marker
from registry.tokens import estimate_text

from .plan import PlanStep

Context: TypeAlias = str | Sequence[Message] | None
"""What was said before: a text, or the messages."""

LONG_TOKENS = 16_000
"""A goal or conversation with more estimated tokens is summarised before it is planned for."""
TAIL_CHARS = 20_000
"""What stays of one that could not be summarised: its end."""
TOOL_LINE_CHARS = 200


def prompt(name: str, **values: str) -> str:
    """One of this room's prompts, filled in. What is filled in is data; it can't change the prompt."""
    return load_prompt("planner", name).substitute(values)


def model_for(llm: LLM | ModelRegistry, role: str) -> LLM:
    """The model for a role; a bare LLM has every role."""
    return llm.for_role(role) if isinstance(llm, ModelRegistry) else llm


def today(clock: Clock) -> str:
    """The date, in UTC."""
    return clocks.today(clock).strftime("%A, %d %B %Y")


def conversation(context: Context) -> str:
    """What was said before as one text."""
    if context is None or isinstance(context, str):
        return context or ""
    said = [f"{message.role}: {message.content}" for message in context if message.content.strip()]
    return "\n\n".join(said)


def framed(text: str) -> str:
    """The conversation as the part of a prompt that comes before the goal; nothing where there is none."""
    return prompt("conversation", text=text) + "\n\n" if text.strip() else ""


async def shortened(text: str, llm: LLM | ModelRegistry) -> str:
    """A text over LONG_TOKENS in few words by the compacting model, its end where that fails; others unchanged."""
    if estimate_text(text) <= LONG_TOKENS:
        return text
    model = model_for(llm, "compact")
    summary, _ = await ContextGuard().summarise(text, model, "planner_input", tail=TAIL_CHARS)
    return summary if estimate_text(summary) <= LONG_TOKENS else summary[-TAIL_CHARS:]


def tool_lines(tools: Iterable[Any]) -> tuple[tuple[str, ...], str]:
    """The names of tools, and a line for each with what it does. A tool is an object or a dict with name and
    description, or just a name."""
    described = {}
    for tool in tools:
        if isinstance(tool, str):
            described[tool] = ""
        elif isinstance(tool, Mapping):
            described[str(tool["name"])] = str(tool.get("description", ""))
        else:
            name = getattr(tool, "name", None) or tool.__name__
            described[name] = getattr(tool, "description", None) or getattr(tool, "__doc__", None) or ""
    return tuple(described), _lines(described)


def model_lines(models: Any, llm: LLM | ModelRegistry) -> tuple[tuple[str, ...] | None, str]:
    """The hints that exist (None: whatever is written will do) and a line for each with what it is for."""
    if models is None and not isinstance(llm, ModelRegistry):
        return None, _lines({hint: ROLES[hint] for hint in OFFERED})
    source: Any = llm if models is None else models
    if isinstance(source, ModelRegistry):
        hints: Mapping[str, str] = source.hints()
    elif isinstance(source, Mapping):
        hints = source
    else:
        hints = {str(name): ROLES.get(str(name), "") for name in source}
    return tuple(hints), _lines(hints)


def _lines(described: Mapping[str, str]) -> str:
    lines = []
    for name, text in described.items():
        first = next((line.strip() for line in str(text).splitlines() if line.strip()), "")
        lines.append(f"- {name}: {cut_end(first, TOOL_LINE_CHARS)}" if first else f"- {name}")
    return "\n".join(lines) or "(none)"


def status_of(result: Any) -> str:
    """A step result's status as a word."""
    status = getattr(result, "status", None)
    return str(getattr(status, "value", status) or "not run")


def output_of(result: Any) -> str:
    """A step result's output as a text; a bare text is its own output."""
    output = result if isinstance(result, str) else getattr(result, "output", None)
    return "" if output is None else str(output)


def results_of(result: Any) -> Mapping[str, Any]:
    """The step results in a PlanResult, or in a mapping of them."""
    found = result if isinstance(result, Mapping) else getattr(result, "steps", {})
    return found if isinstance(found, Mapping) else {step.id: step for step in found}


def step_report(result: Any, limit: int, steps: Iterable[PlanStep] = ()) -> str:
    """Each step with status, task and at most `limit` characters of its result or error, which stand between lines
    that they can't forge."""
    results = results_of(result)
    tasks = {step.id: step for step in steps}
    texts = {name: _texts_of(found, limit) for name, found in results.items()}
    said = [text for pair in texts.values() for text in pair] + [step.task for step in tasks.values()]
    marker = unforgeable_marker(said)
    blocks = []
    for step_id in dict.fromkeys([*tasks, *results]):
        lines = [f"[{step_id}] {status_of(results.get(step_id))}"]
        if step_id in tasks:
            lines += _told_of(tasks[step_id])
        output, error = texts.get(step_id, ("", ""))
        if output:
            lines.append(marked(output, f"result of {step_id}", marker))
        if error:
            lines.append(marked(error, f"error of {step_id}", marker))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or "(no step was run)"


def _told_of(step: PlanStep) -> list[str]:
    hints = (("tool_hint", step.tool_hint), ("model_hint", step.model_hint))
    depends = [f"depends on: {', '.join(step.dependencies)}"] if step.dependencies else []
    return [f"task: {step.task}", *depends, *(f"{name}: {hint}" for name, hint in hints if hint)]


def _texts_of(found: Any, limit: int) -> tuple[str, str]:
    error = getattr(found, "error", None) or getattr(found, "root_cause", None)
    return cut_middle(output_of(found), limit), cut_middle(str(error), limit) if error else ""
