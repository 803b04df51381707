"""One attempt at a step: a fresh agent on the model that fits it, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from registry.clock import SYSTEM_CLOCK, Clock
from registry.messages import Event
from registry.metering import Meter
from registry.models import as_registry
from registry.tools import ToolRegistry

from .options import RunOptions
from .results import StepOutcome
from .step_prompt import StepBrief

if TYPE_CHECKING:
    from agent.hooks import HookRegistry
    from agent.react import ReActAgent
    from agent.services import Services
    from agent.state import AgentResult
    from planner.plan import PlanStep

Emit = Callable[[Event], None]

AMPLE_CHARS = 1 << 30
"""A step's query has its bound from its brief; the agent must not summarise it."""

_WHY = {
    "max_iterations": "the iteration limit was reached before there was an answer",
    "loop_detected": "it repeated the same calls with the same results",
    "truncated": "the output limit cut the answer",
    "empty_response": "the model answered with neither text nor a call",
    "refusal": "the model refused",
    "content_filter": "the provider's content filter blocked the answer",
    "context_length": "the conversation did not fit into the model's context",
    "budget_exceeded": "the budget is used up",
    "unparsed": "the answer could not be read",
}


class StepRunner(Protocol):
    """What does the work of a step. May raise: the step has then failed."""

    def model_of(self, step: PlanStep) -> str | None:
        """The name of the model that will do this step."""

    async def run_step(self, brief: StepBrief, emit: Emit | None, meter: Meter) -> StepOutcome:
        """One attempt. `emit` takes the agent's events, `meter` what its calls cost."""


class AgentRunner:
    """Runs steps by agents: a fresh one for each attempt, which shares nothing with others but models and tools."""

    def __init__(
        self,
        models: Any,
        tools: ToolRegistry | Iterable[Any] = (),
        hooks: Any = None,
        options: RunOptions | None = None,
        clock: Clock = SYSTEM_CLOCK,
        services: Services | None = None,
    ) -> None:
        self.services = services
        self.models = as_registry(models)
        self.tools = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        self.hooks: HookRegistry | Any = hooks
        self.options = options or RunOptions()
        self.clock = clock

    def model_of(self, step: PlanStep) -> str | None:
        """The name of the model that the step's hint comes to."""
        return self.models.resolve_name(step.model_hint)

    def resolve_agent(
        self, step: PlanStep, emit: Emit | None = None, meter: Meter | None = None, taint: tuple[str, ...] = ()
    ) -> ReActAgent:
        """A fresh agent for the step: the model by its hint, its own guards and memory, the run's hooks and tools.
        `taint`: where the texts that it is given come from, as far as that is not to be trusted."""
        from agent.context import ContextGuard
        from agent.react import ReActAgent
        from agent.services import Services

        meter = meter or Meter()
        compact = next((role for role in ("compact", "fast") if role in self.models.roles()), None)
        settings = dict(self.options.agent)
        settings["metadata"] = {"agent_id": step.id, **(settings.get("metadata") or {})}
        return ReActAgent(
            meter.metered(self.models.resolve(step.model_hint)),
            self.tools,
            **{
                "hooks": self.hooks,
                "context_guard": ContextGuard(
                    compact_llm=meter.metered(self.models.get_by_role(compact)) if compact else None
                ),
                "on_event": emit,
                "clock": self.clock,
                "max_query_chars": AMPLE_CHARS,
                "services": replace(
                    self.services or Services(),
                    llm=lambda role: meter.metered(self.models.resolve(role)),
                    taint=taint,
                ),
                **settings,
            },
        )

    async def run_step(self, brief: StepBrief, emit: Emit | None, meter: Meter) -> StepOutcome:
        """One attempt by a fresh agent; the query leaves it at least half of its model's context."""
        agent = self.resolve_agent(brief.step, emit, meter, brief.taint)
        result = await agent.run(brief.query(agent.guard.budget(agent.llm)))
        return outcome_of(result)


def outcome_of(result: AgentResult) -> StepOutcome:
    """What an agent's end means for its step: only a readable final answer is a result; else what it had is kept."""
    text, turns, calls, taint = result.answer, result.iterations, len(result.tool_calls), result.taint
    reason = "unparsed" if result.stop_reason == "final_answer" and result.unparsed else result.stop_reason
    if reason == "final_answer":
        return StepOutcome(text, None, "", turns, calls, taint=taint)
    why = result.error_message or _WHY.get(reason, "the model's provider failed")
    if reason == "llm_error" and result.error:  # the cause says more: auth, quota, rate_limit, …
        return StepOutcome(text, result.error, f"{reason}: {result.error}: {why}", turns, calls, taint=taint)
    return StepOutcome(text, reason, f"{reason}: {why}", turns, calls, taint=taint)
