"""One attempt at a step: a fresh agent on the model that fits it, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from registry.clock import SYSTEM_CLOCK, Clock
from registry.messages import Event
from registry.metering import Meter
from registry.models import as_registry
from registry.routing import RouteRequest
from registry.tools import ToolRegistry

from .options import RunOptions
from .results import StepOutcome
from .routed import Routed
from .step_prompt import StepBrief
from .step_route import JobFacts, StepRoute, step_request
from .step_run import StepRun

if TYPE_CHECKING:
    from agent.hooks import HookRegistry
    from agent.react import ReActAgent
    from agent.services import Services
    from planner.plan import PlanStep

Emit = Callable[[Event], None]

AMPLE_CHARS = 1 << 30
"""A step's query has its bound from its brief; the agent must not summarise it."""


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
        """The name of the model that the policy chooses for the step, of which nothing but itself is known."""
        return self.route_of(step).now.model

    def route(self, request: RouteRequest, known: Sequence[Routed] = (), attempt: int = 1) -> StepRoute:
        """The models of a step by the run's policy. Raises UsageError where it names one that is not registered."""
        return StepRoute(self.options.routing, self.models, request, known, attempt)

    def route_of(self, step: PlanStep) -> StepRoute:
        """The models of a step that belongs to no plan's run."""
        return self.route(step_request(step, "", JobFacts()))

    def resolve_agent(
        self,
        step: PlanStep,
        emit: Emit | None = None,
        meter: Meter | None = None,
        taint: tuple[str, ...] = (),
        model: str | None = None,
    ) -> ReActAgent:
        """A fresh agent for the step: the model of this name, else the one that the policy chooses; its own guards and
        memory, the run's hooks and tools. `taint`: where the texts that it is given come from, as far as that is not to
        be trusted."""
        from agent.context import ContextGuard
        from agent.react import ReActAgent
        from agent.services import Services

        meter = meter or Meter()
        compact = next((role for role in ("compact", "fast") if role in self.models.roles()), None)
        settings = dict(self.options.agent)
        settings["metadata"] = {"agent_id": step.id, **(settings.get("metadata") or {})}
        return ReActAgent(
            meter.metered(self.models.get(model or self.route_of(step).now.model)),
            self.tools,
            **{
                "hooks": self.hooks,
                "context_guard": ContextGuard(
                    compact_llm=meter.metered(self.models.get_by_role(compact)) if compact else None
                ),
                "on_event": _both(emit, settings.pop("on_event", None)),
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
        """The step by a fresh agent, whose query leaves at least half of its model's context free. While a provider is
        out a fresh agent on the next model begins again; a result that does not do is left to the model that the
        policy goes on to, else it is worked over once. Each of them is told what was already done."""
        return await StepRun(self, brief, emit, meter).outcome()


def _both(one: Emit | None, other: Emit | None) -> Emit | None:
    """An observer for two: the run must hear of everything, whoever else listens."""
    if one is None or other is None:
        return one or other

    def observe(event: Event) -> None:
        one(event)
        other(event)

    return observe
