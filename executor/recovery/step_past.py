"""A step as its job's log has it: what became of it, or how far its work had come when its worker died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from executor.results import StepResult
from executor.routed import Routed
from registry.fallback import Fallback
from registry.messages import Event, Usage

CHECKS: Mapping[str, str] = {
    "citations_seen": "check",
    "citation_check": "check",
    "step_check": "check",
    "self_report": "self_report",
}
"""Kinds of the notes that tell what a check of a step's result came to, and the role of the calls made for it."""


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """Where a step stood when an attempt began: on which model, after how many `retries`, what the attempt before had
    ended with (`failure`), what a check found, and in which result (`rejected`), what the last agent had come to
    (`output`), and the counts of the agents before in this run of the step. The payload of a `note` of kind `attempt`;
    a first attempt needs none."""

    attempt: int = 1
    model: str | None = None
    retries: int = 0
    failure: tuple[str, str] | None = None
    rejected: tuple[str, str] | None = None
    rechecked: bool = False
    output: str = ""
    taint: tuple[str, ...] = ()
    iterations: int = 0
    tool_calls: int = 0

    def to_json(self) -> dict[str, Any]:
        """The start as plain JSON data."""
        return {
            "attempt": self.attempt,
            "model": self.model,
            "retries": self.retries,
            "failure": None if self.failure is None else list(self.failure),
            "rejected": None if self.rejected is None else list(self.rejected),
            "rechecked": self.rechecked,
            "output": self.output,
            "taint": list(self.taint),
            "iterations": self.iterations,
            "tool_calls": self.tool_calls,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AttemptStart:
        """Reads what `to_json` wrote."""
        failure, rejected = data["failure"], data["rejected"]
        return cls(
            data["attempt"],
            data["model"],
            data["retries"],
            None if failure is None else (failure[0], failure[1]),
            None if rejected is None else (rejected[0], rejected[1]),
            data["rechecked"],
            data["output"],
            tuple(data["taint"]),
            data["iterations"],
            data["tool_calls"],
        )


@dataclass(frozen=True, slots=True)
class StepPast:
    """A step that has begun and not ended.

    `result` is what was told of it last; `start` is that of the attempt under way; `elapsed` are the seconds it ran;
    `usage` is what all its calls cost; `calls` are the `call` events of its agents, each with its attempt. `fallbacks`
    are all changes of model, `retold` those of the attempt under way, which will come again; `checks` are the notes of
    its checks, by kind. `waits`: a call of it waits for a human who has not decided. `routes` are the choices of its
    models.
    """

    result: StepResult
    start: AttemptStart = AttemptStart()
    elapsed: float = 0.0
    usage: Usage = Usage.zero()  # noqa: RUF009 - frozen
    calls: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    retold: tuple[Fallback, ...] = ()
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    waits: bool = False
    routes: tuple[Routed, ...] = ()


class StepFold:
    """Folds the events of one step in one round; `pending` are the turns of the attempt under way whose replies may be
    asked for again."""

    def __init__(self, step_id: str) -> None:
        self.result = StepResult(id=step_id)
        self.start: AttemptStart | None = None
        self.usage = Usage.zero()
        self.calls: list[tuple[int, Mapping[str, Any]]] = []
        self.fallbacks: list[Fallback] = []
        self.retold: list[Fallback] = []
        self.checks: dict[str, Mapping[str, Any]] = {}
        self.pending: list[Event] = []
        self.routes: list[Routed] = []

    def hear(self, event: Event) -> None:
        """The step's next event."""
        payload = event.payload
        match event.channel:
            case "step_progress":
                self.result = StepResult.from_progress(self.result.id, payload)
            case "turn":
                self.usage += Usage.recorded(payload["usage"])
                self.pending.append(event)
            case "call":
                self.calls.append((self.attempt, payload))
            case "fallback":
                self.fallbacks.append(Fallback.from_json(payload))
                self.retold.append(Fallback.from_json(payload))
            case "route":
                self.routes.append(Routed.from_json(payload))
            case "note" if payload["kind"] == "attempt":
                self.start = AttemptStart.from_json(payload)
                self.retold, self.checks, self.pending = [], {}, []
            case "note" if payload["kind"] in CHECKS:
                self.checks[payload["kind"]] = payload
                role = CHECKS[payload["kind"]]
                self.pending = [turn for turn in self.pending if turn.payload["role"] != role]

    @property
    def attempt(self) -> int:
        """The attempt under way."""
        return 1 if self.start is None else self.start.attempt

    def past(self, elapsed: float, waits: bool) -> StepPast:
        """The step as far as it has come."""
        return StepPast(
            self.result,
            self.start or AttemptStart(model=self.result.model),
            elapsed,
            self.usage,
            tuple(self.calls),
            tuple(self.fallbacks),
            tuple(self.retold),
            self.checks,
            waits,
            tuple(self.routes) or self._unrouted(),
        )

    def _unrouted(self) -> tuple[Routed, ...]:
        """The choice of a step whose log does not tell it: an earlier version's."""
        model = self.result.model
        return () if model is None else (Routed("hint", model, "the model that it began on"),)
