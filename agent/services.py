"""What a job lends to its agents, beside models and tools of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .activity import Activity
from .waits import Nobody, Waits

if TYPE_CHECKING:
    from registry.artifacts import ArtifactStore
    from registry.call_cache import CallCache
    from registry.llm import LLM

    from .past import AgentPast, Key


async def at_once() -> None:
    """Nothing has to be stored."""


def nothing() -> None:
    """As `at_once`, for what is not waited for."""


@dataclass(frozen=True, slots=True)
class Services:
    """All optional: an agent of its own has a stand-in for each.

    `llm`: the model of a role, for tools that call models (else the agent's). `waits`: who decides on calls that need
    it. `cache`: answers of pure tools, shared by the job. `artifacts`: where tools' artifacts are kept. `marker`: the
    random code that delimits tools' text in this job (else one of the run's own). `taint`: where the text that the
    agent is given came from, as far as that is not to be trusted. `barrier` returns when all that was told so far is
    kept for good: before each call that may change something; `store` begins to keep it, and waits for nobody: after
    such a call. `activity` counts the calls, and may keep new ones from
    beginning. `past`: what is recorded of agents that were begun by another process.
    """

    llm: Callable[[str | None], LLM] | None = None
    waits: Waits = Nobody()  # noqa: RUF009 - has no state
    cache: CallCache | None = None
    artifacts: ArtifactStore | None = None
    marker: str = ""
    taint: tuple[str, ...] = ()
    barrier: Callable[[], Awaitable[None]] = at_once
    store: Callable[[], None] = nothing
    activity: Activity = field(default_factory=Activity)
    past: Mapping[Key, AgentPast] = field(default_factory=dict)
