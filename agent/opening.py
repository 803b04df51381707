"""How an agent begins: its mode, its tools, the date, what its hooks have to say. All of that is told, and then stands,
whichever process goes on with the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from registry.clock import today
from registry.context import caller
from registry.messages import Message, Usage
from registry.text import cut_middle
from registry.tokens import estimate_messages
from registry.tools import ToolRegistry

from .events import Emit
from .hooks import HookContext
from .modes import JSON, NATIVE, Mode, mode_for
from .replay import Replay
from .selection import TOOL_SELECTION_THRESHOLD, select_tools
from .trust import new_marker

if TYPE_CHECKING:
    from .react import ReActAgent

QUERY_TAIL_CHARS = 20_000
"""What is kept of a query whose summary failed: its end."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What an agent begins with. `context` are the texts of its hooks; `marker` is the code that delimits data; `date`
    is that of the beginning; `refused` are abilities of the model that its server was known to refuse."""

    query: str
    mode: Mode
    tools: ToolRegistry
    marker: str
    date: str
    context: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @classmethod
    def of(cls, agent: ReActAgent, query: str) -> Opening:
        """What can be said of it without touching the world."""
        date = today(agent.clock).isoformat()
        return cls(query, JSON, agent.tools, agent.services.marker or new_marker(), date).asking(agent)

    def asking(self, agent: ReActAgent) -> Opening:
        """In the mode in which the model can be asked, by all that is known of it now."""
        llm = agent.llm
        refused = tuple(ability for ability in llm.abilities if llm.refuses(ability))
        return replace(self, mode=mode_for(llm, agent.options.use_native_tools), refused=refused)

    def head(self, extra: str) -> Message:
        """The system message."""
        return Message.system(self.mode.system_prompt(self.date, self.tools, extra))

    def tell(self, emit: Emit, given: str | None = None) -> None:
        """Tells it; `given`: the query as the agent got it, which is known without being told."""
        told: dict[str, Any] = {"mode": self.mode.name, "date": self.date, "tools": list(self.tools.names())}
        told |= {"context": list(self.context), "marker": self.marker}
        if given not in (None, self.query):
            told["query"] = self.query
        if self.refused:
            told["refused"] = list(self.refused)
        tell_who(emit, "opening", **told)

    def as_told(self, told: Mapping[str, Any], agent: ReActAgent) -> Opening:
        """As another process told it, with what it knew of the model."""
        mode, refused = NATIVE if told["mode"] == NATIVE.name else JSON, tuple(told.get("refused", ()))
        for ability in refused:
            agent.llm.refuse(ability)
        tools = agent.tools
        if told["tools"] != list(tools.names()):
            tools = tools.subset(name for name in told["tools"] if name in tools)
        query = told.get("query", self.query)
        return Opening(query, mode, tools, told["marker"], told["date"], tuple(told["context"]), refused)


async def opened(plain: Opening, agent: ReActAgent, past: Replay, emit: Emit) -> tuple[Opening, Usage]:
    """The opening, and what it cost: as it is recorded, else the query bounded, tools chosen, hooks heard. Raises
    LLMError."""
    if (begun := past.opening()) is not None:
        return plain.as_told(begun.told, agent), begun.usage
    usage, query, tools = Usage.zero(), plain.query, plain.tools
    long, many = len(query) > agent.options.max_query_chars, len(tools) > TOOL_SELECTION_THRESHOLD
    if long or many:
        tell_who(emit, "begun")
    past.check()
    if long:
        query, cost = await agent.guard.summarise(query, agent.llm, "planner_input", tail=QUERY_TAIL_CHARS)
        usage += cost
    query = _half_of_budget(query, agent)
    if many:
        emit("phase", phase="selecting_tools", total_tools=len(tools))
        tools, cost = await select_tools(agent.llm, tools, query)
        usage += cost
    context = await agent.hooks.started(_start_ctx(agent, query)) if len(agent.hooks) else ()
    opening = replace(plain, query=query, tools=tools, context=context).asking(agent)
    opening.tell(emit, plain.query)
    return opening, usage


def tell_who(emit: Emit, kind: str, content: str = "", **told: Any) -> None:
    """A note by which the agent is known: which attempt at its step it is, and in which role."""
    who = caller()
    emit("note", kind=kind, content=content, attempt=who.attempt, round=who.round, role=who.role, **told)


def _start_ctx(agent: ReActAgent, query: str) -> HookContext:
    metadata = {**(agent.options.metadata or {}), "query": query}
    return HookContext("", {}, metadata.get("agent_id"), metadata.get("user_id"), metadata)


def _half_of_budget(query: str, agent: ReActAgent) -> str:
    """The query leaves at least half of the budget to the work."""
    budget = agent.guard.budget(agent.llm) // 2
    tokens = estimate_messages([Message.user(query)])
    return query if tokens <= budget else cut_middle(query, max(200, len(query) * budget // tokens), "\n[Truncated]\n")
