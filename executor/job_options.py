"""How a job is run: one frozen value, made of the settings or by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.planner import DAGPlanner
from planner.schemas import TASK_CHARS
from registry.clock import SYSTEM_CLOCK, Clock
from registry.fallback import Told
from registry.models import ModelRegistry
from registry.tools import ToolRegistry

from .hooks_config import HookEntry
from .options import RunOptions
from .routing_settings import routing_of


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job is run. `max_replan_rounds` counts executions, the first included; `replan_stop_confidence` is 0 to 1.
    `plan_prompt` names the planner's prompt (plan, plan_short), `max_task_chars` bounds a planned step's task.
    `hooks` are declared ones, for whoever starts jobs to build anew for each: see `executor.hooks_config`. `roles` says
    which models have these roles in the job, whoever has them else."""

    run: RunOptions = field(default_factory=RunOptions)
    max_replan_rounds: int = 3
    replan_stop_confidence: float = 0.8
    router: bool = True
    max_steps: int = 64
    plan_prompt: str = "plan"
    max_task_chars: int = TASK_CHARS
    analyze: bool = True
    hooks: tuple[HookEntry, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Any) -> JobOptions:
        """The options that the settings say. Raises ConfigError for a routing policy that can't be had."""
        agent = {
            "max_iterations": settings.max_iterations,
            "cycle_detection_threshold": settings.cycle_detection_threshold,
            "completion_check": settings.completion_check_min_tools > 0,
            "completion_check_min_tools": max(1, settings.completion_check_min_tools),
            "self_reflection_interval": settings.self_reflection_interval,
        }
        run = RunOptions(
            max_concurrency=settings.max_concurrency,
            step_timeout=settings.step_timeout,
            step_retries=settings.step_retries,
            agent=agent,
            structured_context_multiplier=settings.structured_context_multiplier,
            step_verification=settings.step_verification,
            citation_verification=settings.citation_verification,
            routing=routing_of(settings),
        )
        return cls(
            run,
            settings.max_replan_rounds,
            settings.replan_stop_confidence,
            settings.router,
            settings.max_steps,
            hooks=tuple(settings.hooks),
            roles=dict(settings.roles),
        )

    def planner(
        self,
        models: ModelRegistry,
        tools: ToolRegistry,
        clock: Clock = SYSTEM_CLOCK,
        on_fallback: Told | None = None,
    ) -> DAGPlanner:
        """The planner that these options ask for."""
        return DAGPlanner(
            models,
            tools=tools,
            max_steps=self.max_steps,
            prompt_name=self.plan_prompt,
            max_task_chars=self.max_task_chars,
            clock=clock,
            on_fallback=on_fallback,
        )
