"""What a step's agents have done so far, for those who come after them, and for the account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agent.waits import PendingCall
from registry.fallback import Fallback
from registry.messages import Event, canonical_json
from registry.text import clean, cut_end, cut_middle
from registry.tools import ToolRegistry

from .recovery.step_past import AttemptStart, StepPast
from .recovery.uncertain import Effects
from .results import StepResult

if TYPE_CHECKING:
    from .step_route import StepRoute

DONE_CHARS = 12_000
"""Characters that calls made earlier may take in a query."""
SHOWN_READS = 20
"""Of calls that only read, the newest so many are told; those that may have changed something are all told."""
ARGUMENT_CHARS = 400
MIN_RESULT_CHARS = 80


@dataclass(frozen=True, slots=True)
class CallDone:
    """A tool call that an earlier agent made. `observation` None: it was under way when that agent ended, and nobody
    knows what came of it. `writes`: its tool is not declared read-only, pure or idempotent."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    observation: str | None = None
    is_error: bool = False
    writes: bool = True


class StepTrail:
    """A step's history over all its agents, whichever way each of them ends. Owned by the step's task.

    `attempts` counts the agents, `model` is the name of the last one's model, `fallbacks` are the changes of model,
    `route` says which model is the work's (None: it is not routed), `output` is what the last agent came to, `taint`
    the untrusted origins of all that they read, `retries` counts new attempts after a failure, and `rechecked` says
    that a failed check has had its new attempt. `uncertain` are calls that a dead worker had begun, by key, and
    `effects` says what became of them. With a `past` the step goes on from there: `goes_on` is the start of the attempt
    that was under way, until it is taken up.
    """

    def __init__(self, past: StepPast | None = None) -> None:
        self.past = past or StepPast(StepResult())
        start = self.past.start
        self.goes_on: AttemptStart | None = None if past is None else start
        self.attempts = 0 if past is None else start.attempt
        self.model: str | None = start.model
        self.route: StepRoute | None = None
        self.fallbacks: list[Fallback] = list(self.past.fallbacks)
        self.output, self.taint = start.output, start.taint
        self.retries, self.rechecked = start.retries, start.rechecked
        self.uncertain: dict[str, PendingCall] = {}
        self.effects = Effects()
        self._retold = list(self.past.retold)
        self._calls: dict[tuple[int, str], CallDone] = {}
        self.recorded(self.past.calls)

    @property
    def escalated_from(self) -> str | None:
        """The model that was chosen first, where a policy has taken the step to a stronger one."""
        return None if self.route is None else self.route.escalated_from(self.model)

    def recorded(self, calls: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Takes up the `call` events of another worker's agents, each with its attempt."""
        for attempt, told in calls:
            self._note(told, attempt)

    def watching(self, emit: Callable[[Event], None] | None) -> Callable[[Event], None]:
        """An observer of an agent's events that notes its tool calls and hands everything on to `emit`."""

        def observe(event: Event) -> None:
            if event.channel == "call":
                self._note(event.payload, self.attempts)
            if emit is not None:
                emit(event)

        return observe

    def fell_back(self, change: Fallback) -> bool:
        """A change of model; whether it is new, not one of before that comes again."""
        if change in self._retold:
            self._retold.remove(change)
            return False
        self.fallbacks.append(change)
        return True

    def _note(self, told: Mapping[str, Any], attempt: int) -> None:
        self.effects.hear(told)
        key = attempt, str(told.get("key"))
        if told.get("status") == "start":
            self._calls[key] = CallDone(str(told.get("tool_name")), told.get("tool_args") or {})
        elif told.get("status") == "end" and key in self._calls:
            text, is_error = str(told.get("observation") or ""), bool(told.get("is_error"))
            self._calls[key] = replace(self._calls[key], observation=text, is_error=is_error)

    def calls(self, tools: ToolRegistry, before: int | None = None) -> tuple[CallDone, ...]:
        """All calls so far, in the order in which they began; of those `before` an attempt only."""
        harmless = {tool.name for tool in tools if tool.read_only or tool.pure or tool.idempotent}
        return tuple(
            replace(call, writes=call.name not in harmless)
            for (attempt, _), call in self._calls.items()
            if before is None or attempt < before
        )


def told_calls(calls: Sequence[CallDone], room: int, share: Callable[[Sequence[str], int], list[str]]) -> str:
    """The calls as numbered lines with their results, in about `room` characters; `share` cuts several texts to a
    common bound. Empty where there were none."""
    shown = _shown(calls)
    if not shown:
        return ""
    arguments = max(60, min(ARGUMENT_CHARS, room // (3 * len(shown))))
    heads = [_head(number, call, arguments) for number, call in enumerate(shown, 1)]
    left = max(MIN_RESULT_CHARS * len(shown), room - sum(map(len, heads)))
    results = share([clean(call.observation or "").strip() for call in shown], left)
    lines = [f"{head}\n{result}" if result else head for head, result in zip(heads, results, strict=True)]
    if missing := len(calls) - len(shown):
        lines.insert(0, f"({missing} earlier calls that only read are left out)")
    return "\n".join(lines)


def texts_of(calls: Iterable[CallDone]) -> list[str]:
    """All that models and tools wrote in these calls."""
    return [text for call in calls for text in (call.name, canonical_json(call.arguments), call.observation or "")]


def _shown(calls: Sequence[CallDone]) -> list[CallDone]:
    reads = [place for place, call in enumerate(calls) if not call.writes]
    left_out = set(reads[:-SHOWN_READS])
    return [call for place, call in enumerate(calls) if place not in left_out]


def _head(number: int, call: CallDone, limit: int) -> str:
    effect = "may have had an effect" if call.writes else "only read"
    end = "outcome unknown" if call.observation is None else "failed" if call.is_error else "succeeded"
    arguments = cut_middle(clean(canonical_json(call.arguments)), limit, " … ")
    return f"{number}. {cut_end(clean(call.name), 100)}({arguments}): {effect}, {end}"
