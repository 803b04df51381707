"""The agent as its users hold it: options, `run`, `finish`. What a run does stands in `loop.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from registry import telemetry
from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import UsageError
from registry.llm import LLM
from registry.messages import Message
from registry.tools import ToolRegistry

from .context import ContextGuard
from .events import Emitter, OnEvent
from .hooks import Hook, HookRegistry
from .interrupts import InterruptQueue
from .loop import Run
from .services import Services
from .state import AgentResult
from .synthesis import AnswerDelta, format_trace, stream_synthesis, synthesis_messages

MAX_QUERY_CHARS = 50_000
"""A longer query is summarised first."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent is told beside its model and tools."""

    use_native_tools: bool = True
    max_iterations: int = 50
    completion_check: bool = True
    completion_check_min_tools: int = 3
    cycle_detection_threshold: int = 3
    self_reflection_interval: int = 6
    answer_mode: Literal["synthesis", "direct"] = "synthesis"
    temperature: float | None = None
    max_query_chars: int = MAX_QUERY_CHARS
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("max_iterations", "completion_check_min_tools", "cycle_detection_threshold"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.answer_mode not in ("synthesis", "direct"):
            raise UsageError(f'answer_mode must be "synthesis" or "direct", not {self.answer_mode!r}')


class ReActAgent:
    """Works on one task with one model and a set of tools.

    Parameters beside `llm` and `tools`: `system_prompt` is added to the built-in one; `hooks` (a HookRegistry or a
    list of hooks) run around every tool call; `use_native_tools=False` forces the JSON mode; `max_iterations` counts
    model calls of the loop; `interrupts` brings in messages while it works; `context_guard` keeps the conversation
    within the model's context; `on_event` sees each Event as it happens. `answer_mode="direct"` streams the loop's
    own last turn as the answer. `services` is what a job lends to its agents.
    """

    def __init__(
        self,
        llm: LLM,
        tools: ToolRegistry | Iterable[Any] = (),
        *,
        system_prompt: str | None = None,
        hooks: HookRegistry | Iterable[Hook] | None = None,
        use_native_tools: bool = True,
        max_iterations: int = 50,
        completion_check: bool = True,
        completion_check_min_tools: int = 3,
        cycle_detection_threshold: int = 3,
        self_reflection_interval: int = 6,
        interrupts: InterruptQueue | None = None,
        context_guard: ContextGuard | None = None,
        on_event: OnEvent | None = None,
        answer_mode: Literal["synthesis", "direct"] = "synthesis",
        temperature: float | None = None,
        max_query_chars: int = MAX_QUERY_CHARS,
        metadata: Mapping[str, Any] | None = None,
        services: Services | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.llm = llm
        self.services = services or Services()
        self.tools = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        self.system_prompt = system_prompt or ""
        self.hooks = hooks if isinstance(hooks, HookRegistry) else HookRegistry(hooks or ())
        self.interrupts = interrupts
        self.guard = context_guard or ContextGuard()
        self.clock = clock
        self.emit = Emitter(on_event, clock)
        self._finishing = False
        self.options = AgentOptions(
            use_native_tools,
            max_iterations,
            completion_check,
            completion_check_min_tools,
            cycle_detection_threshold,
            self_reflection_interval,
            answer_mode,
            temperature,
            max_query_chars,
            metadata,
        )

    async def run(self, query: str, *, history: Sequence[Message] = ()) -> AgentResult:
        """Works until the model answers or a limit ends it; `stop_reason` says which.

        No failure of the model or of a tool is raised, only a cancellation. `history` is an earlier conversation.
        Where `services.past` holds records of this very agent, it goes on from them; EndedThereError is raised where
        they belong to one that was ended from outside and has a successor.
        """
        run = Run(self, query)
        with telemetry.agent(self.llm, (self.options.metadata or {}).get("agent_id")) as span:
            state = await run.start(history)
            while state.stop_reason is None:
                state = await run.step(state)
            telemetry.agent_ended(span, state.result())
        return state.result()

    def finish(self) -> None:
        """Asks a running agent to come to an end: its next turn has no tools and is the last one."""
        self._finishing = True

    @property
    def finishing(self) -> bool:
        """Whether `finish` was called."""
        return self._finishing

    async def stream_answer(self, query: str, result: AgentResult) -> AsyncGenerator[AnswerDelta, None]:
        """The reader's answer, written by the same model from the run's trace, piece by piece (pieces are strings).

        A piece with `reset` voids those before it; where the synthesis fails the run's own answer is given.
        """
        messages = synthesis_messages(query, format_trace(result.messages))
        async with aclosing(stream_synthesis(self.llm, messages, result.answer, self.emit)) as deltas:
            async for delta in deltas:
                yield delta
