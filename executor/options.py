"""How plans are run: one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from registry.errors import UsageError
from registry.routing import Hint, RoutingPolicy


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What holds for all steps of a run.

    `max_concurrency`: steps at once. `step_timeout`: seconds a step may run in all its attempts together, from the
    moment it has its slot, waits for a human left out; None: no limit. `step_retries`: new attempts at a failed step.
    `agent`: further keyword arguments of each step's ReActAgent (max_iterations, use_native_tools, …).
    `context_chars`: bound of the dependencies' results in a step's query, in characters; times
    `structured_context_multiplier` where they hold tables, code or citations. `step_verification`: a model takes a
    second look at each result; `citation_verification`: the citations of each result must occur in what its step has
    seen and be borne out by it. A result that fails is worked over once; failing again, its step has failed.
    `routing` chooses the model of each step.
    """

    max_concurrency: int = 5
    step_timeout: float | None = 600.0
    step_retries: int = 0
    agent: Mapping[str, Any] = field(default_factory=dict)
    context_chars: int = 50_000
    structured_context_multiplier: int = 3
    step_verification: bool = False
    citation_verification: bool = False
    routing: RoutingPolicy = field(default_factory=Hint)

    def __post_init__(self) -> None:
        for name, least in (("max_concurrency", 1), ("step_retries", 0), ("context_chars", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)!r}")
        if self.structured_context_multiplier < 1:
            raise UsageError("structured_context_multiplier must be at least 1")
        if self.step_timeout is not None and not self.step_timeout > 0:
            raise UsageError(f"step_timeout must be positive seconds or None, not {self.step_timeout!r}")
        if not isinstance(self.routing, RoutingPolicy):
            raise UsageError(f"routing must be a RoutingPolicy, not {type(self.routing).__name__}: see `policy_of`")
        if self.agent:
            _check_agent_keywords(self.agent)


def _check_agent_keywords(given: Mapping[str, Any]) -> None:
    """Raises UsageError for keywords that a ReActAgent doesn't have. The agent is imported only where it is asked."""
    from inspect import Parameter, signature

    from agent.react import ReActAgent

    parameters = signature(ReActAgent).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
    if unknown := [repr(name) for name in given if name not in known]:
        raise UsageError(f"an agent has no option {', '.join(unknown)}: there are {', '.join(known)}")
