"""What a run knows: frozen values, folded from what happened. The loop never changes one in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from registry.messages import LLMResult, Message, ToolCall, Usage

from .guards import LoopGuard
from .waits import PendingCall

StopReason = Literal[
    "final_answer",
    "max_iterations",
    "loop_detected",
    "truncated",
    "empty_response",
    "refusal",
    "content_filter",
    "context_length",
    "budget_exceeded",
    "llm_error",
]


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One tool call and what came of it. `elapsed` is seconds; `ran` is False where the tool was never started
    (unknown, invalid, blocked, refused, cut)."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    observation: str
    is_error: bool = False
    elapsed: float = 0.0
    iteration: int = 0
    ran: bool = True


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How a run ended.

    `messages` is the whole trace, compacted or not. `stop_reason` is one of final_answer, max_iterations,
    loop_detected, truncated, empty_response, refusal, content_filter, context_length, budget_exceeded, llm_error;
    `error` carries the code of the cause and `error_message` its text where there is one. `unparsed` says that the
    answer is a reply the JSON mode could not read. `taint`: the untrusted origins of what the agent has read.
    `uncertain`: calls that were under way when an earlier process of this run died, of which nobody knows whether they
    took effect.
    """

    answer: str
    messages: tuple[Message, ...]
    iterations: int
    tool_calls: tuple[ToolCallRecord, ...]
    usage: Usage
    stop_reason: StopReason
    error: str | None = None
    error_message: str | None = None
    unparsed: bool = False
    taint: tuple[str, ...] = ()
    uncertain: tuple[PendingCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A model's reply as the loop sees it: calls to run, or a final text, or what is wrong with it.

    `message` is what stands in the conversation. `problem` is told to the model as an observation (a call-shaped text
    with an unknown name); `unreadable` marks a reply that the mode could not read at all.
    """

    message: Message
    calls: tuple[ToolCall, ...] = ()
    final: str | None = None
    reasoning: str = ""
    problem: str | None = None
    unreadable: bool = False
    cut: bool = False
    pause: bool = False


@dataclass(frozen=True, slots=True)
class AgentState:
    """The fold of a run's events.

    `window` is what the model sees next, `trace` all that was ever said. `measured` are the tokens the provider
    counted for the first `measured_count` messages of the window (0: unknown), and `overhead` the tokens that come on
    top of the messages' own estimate (tool schemas, mostly).
    """

    query: str
    window: tuple[Message, ...]
    trace: tuple[Message, ...]
    usage: Usage = Usage.zero()  # noqa: RUF009 - frozen
    iterations: int = 0
    records: tuple[ToolCallRecord, ...] = ()
    guard: LoopGuard = LoopGuard()  # noqa: RUF009 - frozen
    tool_iterations: int = 0
    parse_failures: int = 0
    nudges: int = 0
    cuts: int = 0
    cut_answer: str = ""
    checklist: Literal["unused", "asked", "answered"] = "unused"
    squeezed: bool = False
    measured: int = 0
    measured_count: int = 0
    overhead: int = 0
    answer: str = ""
    stop_reason: StopReason | None = None
    error: str | None = None
    error_message: str | None = None
    unparsed: bool = False
    taint: tuple[str, ...] = ()
    uncertain: tuple[PendingCall, ...] = ()

    def said(self, *messages: Message) -> AgentState:
        """With these messages at the end of the conversation."""
        return replace(self, window=self.window + messages, trace=self.trace + messages)

    def turned(self, result: LLMResult, message: Message, estimate: int) -> AgentState:
        """After a model's turn; `estimate` is our own count of the tokens that were sent."""
        usage = result.usage
        measured, count, overhead = self.measured, self.measured_count, self.overhead
        if usage is not None and usage.input_tokens:
            measured, count = usage.input_tokens, len(self.window)
            overhead = max(0, usage.input_tokens - estimate)
        return replace(
            self,
            window=(*self.window, message),
            trace=(*self.trace, message),
            iterations=self.iterations + 1,
            usage=self.usage + (usage or Usage.unknown()),
            measured=measured,
            measured_count=count,
            overhead=overhead,
        )

    def spent(self, usage: Usage) -> AgentState:
        """After calls beside the loop: selection, compaction."""
        return replace(self, usage=self.usage + usage)

    def compacted(self, window: tuple[Message, ...]) -> AgentState:
        """With another window; what was measured no longer holds."""
        return replace(self, window=window, measured=0, measured_count=0)

    def stopped(
        self, reason: StopReason, answer: str | None = None, *, error: str | None = None, message: str | None = None
    ) -> AgentState:
        """At the end, with the answer or with what there is of one."""
        text = self.answer if answer is None else answer
        return replace(self, stop_reason=reason, answer=text, error=error, error_message=message)

    def result(self) -> AgentResult:
        """The run's result; only for a stopped state."""
        assert self.stop_reason is not None
        return AgentResult(
            self.answer,
            self.trace,
            self.iterations,
            self.records,
            self.usage,
            self.stop_reason,
            self.error,
            self.error_message,
            self.unparsed,
            self.taint,
            self.uncertain,
        )
