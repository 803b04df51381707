"""A single agent's work on a job. While its model's provider is out, or where what it came to does not do, a fresh one
on another model begins again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

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

from .step_prompt import StepBrief, done_section, failure_section, rejected_section
from .step_trail import StepTrail, texts_of

NewAgent = Callable[[LLM, Callable[[Event], None]], ReActAgent]
"""Makes a fresh agent on a model; the second argument observes its events."""
Judge = Callable[[AgentResult, LLM], Awaitable["Successor | None"]]
"""Who begins again after this result of an agent on a model; None: it stands."""


@dataclass(frozen=True, slots=True)
class Successor:
    """The model of an agent that begins again, and, as a brief, what is told of the work before."""

    llm: LLM
    brief: StepBrief


@dataclass(slots=True)
class AgentRun:
    """The agents of one query. Each is an attempt of its own in `trail`, and has the taint of those before it. A
    further one is told the query, what was said meanwhile, and which calls were made; nothing that a model thought goes
    over to another one.

    `told` hears of each change of model because a provider is out. `results` are those of the agents so far, `brief`
    says what the work before wanted.
    """

    new_agent: NewAgent
    models: ModelRegistry
    query: str
    history: Sequence[Message]
    tools: ToolRegistry
    trail: StepTrail
    on_event: Callable[[Event], None]
    told: Told
    brief: StepBrief | None = None
    results: list[AgentResult] = field(default_factory=list)

    async def outcome(self, llm: LLM, judge: Judge) -> tuple[AgentResult, LLM]:
        """The result of the agent whose result stands, with the counts of all, and its model; `llm` begins."""
        while True:
            model = await self.on_chain(llm)
            successor = await judge(self.results[-1], model)
            if successor is None:
                return _summed(self.results), model
            llm, self.brief = successor.llm, successor.brief

    async def on_chain(self, llm: LLM) -> LLM:
        """Agents on the model and on those that take over while providers are out; the model of the last one."""
        chain = (llm, *alternatives(self.models, llm))
        for model, successor in zip(chain, (*chain[1:], None), strict=True):
            result = await self.on(model)
            if successor is None or result.stop_reason != "llm_error" or result.error not in OUTAGES:
                break
            with calling(role="agent"):
                self.told(change_of(self.models, model, successor, result.error or ""))
        return model

    async def on(self, model: LLM) -> AgentResult:
        """One agent's work."""
        trail = self.trail
        trail.attempts += 1
        agent = self.new_agent(model, trail.watching(self.on_event))
        agent.services = replace(agent.services, taint=joined_taint(agent.services.taint, trail.taint))
        with calling(role="agent", attempt=trail.attempts):
            asked = self.asked(agent.guard.budget(model)) if self.results else self.query
            result = await agent.run(asked, history=self.history)
        self.results.append(result)
        trail.taint = joined_taint(trail.taint, result.taint)
        return result

    def asked(self, budget: int) -> str:
        """What a further agent is told."""
        query, brief = self.query, self.brief
        said = [message.content for result in self.results for message in result.messages if message.pinned]
        parts = [query, *(text for text in said if not text.startswith(query[:200]))]
        done = self.trail.calls(self.tools, before=self.trail.attempts)
        wanting = () if brief is None else (*(brief.failure or ()), *(brief.rejected or ()))
        marker = unforgeable_marker([*parts, *texts_of(done), *wanting])
        parts.append(done_section(done, budget, marker))
        if brief is not None:
            parts += [failure_section(brief, marker), rejected_section(brief, marker)]
        return "\n\n".join(part for part in parts if part)


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
