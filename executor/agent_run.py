"""A single agent's work on a job; while its model's provider is out, a fresh one on the next model begins again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.react import ReActAgent
from agent.state import AgentResult
from agent.trust import joined_taint
from registry.context import calling
from registry.fallback import OUTAGES, Told, alternatives, change_of
from registry.llm import LLM
from registry.messages import Event, Message, Usage
from registry.models import ModelRegistry
from registry.text import unforgeable_marker
from registry.tools import ToolRegistry

from .step_prompt import done_section
from .step_trail import StepTrail, texts_of

NewAgent = Callable[[LLM, Callable[[Event], None]], ReActAgent]
"""Makes a fresh agent on a model; the second argument observes its events."""


async def run_agent(
    new_agent: NewAgent,
    models: ModelRegistry,
    llm: LLM,
    query: str,
    history: Sequence[Message],
    tools: ToolRegistry,
    trail: StepTrail,
    on_event: Callable[[Event], None],
    told: Told,
) -> tuple[AgentResult, LLM]:
    """The result of the agent whose model answered, with the counts of all, and that model.

    Each agent is an attempt of its own in `trail`, and has the taint of those before it. A further one is told the
    query, what was said meanwhile, and which calls were made; nothing that a model thought goes over to another one.
    """
    chain = (llm, *alternatives(models, llm))
    before: list[AgentResult] = []
    for model, successor in zip(chain, (*chain[1:], None), strict=True):
        trail.attempts += 1
        agent = new_agent(model, trail.watching(on_event))
        agent.services = replace(agent.services, taint=joined_taint(agent.services.taint, trail.taint))
        with calling(role="agent", attempt=trail.attempts):
            asked = _asked(query, before, trail, tools, agent.guard.budget(model)) if before else query
            result = await agent.run(asked, history=history)
            before.append(result)
            trail.taint = joined_taint(trail.taint, result.taint)
            if successor is None or result.stop_reason != "llm_error" or result.error not in OUTAGES:
                break
            told(change_of(models, model, successor, result.error or ""))
    return _summed(before), model


def _asked(query: str, before: Sequence[AgentResult], trail: StepTrail, tools: ToolRegistry, budget: int) -> str:
    said = [message.content for result in before for message in result.messages if message.pinned]
    parts = [query, *(text for text in said if not text.startswith(query[:200]))]
    done = trail.calls(tools, before=trail.attempts)
    marker = unforgeable_marker([*parts, *texts_of(done)])
    return "\n\n".join(part for part in (*parts, done_section(done, budget, marker)) if part)


def _summed(results: Sequence[AgentResult]) -> AgentResult:
    last = results[-1]
    if len(results) == 1:
        return last
    return replace(
        last,
        iterations=sum(result.iterations for result in results),
        tool_calls=tuple(record for result in results for record in result.tool_calls),
        usage=sum((result.usage for result in results), Usage.zero()),
        uncertain=tuple(call for result in results for call in result.uncertain),
    )
