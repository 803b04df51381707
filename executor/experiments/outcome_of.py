"""What came of a cell's job, out of its account and its log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from executor.log.file import CUT
from executor.recovery.past_time import PastTime
from executor.routed import is_choice
from executor.tally import Tally
from registry.budget import NOTHING, Amount, cost_of
from registry.messages import Event, Usage

from .types import Cell, Outcome

FAILED = ("failed", "cancelled")
"""Statuses of steps that count as failed; skipped ones were never begun."""


def outcome_of(
    cell: Cell, summary: Mapping[str, Any], events: Iterable[Event] = (), *, job_id: str | None = None
) -> Outcome:
    """The outcome of a job that has ended. `summary` is the job in its public shape (`Job.to_json`), `events` its log,
    internal channels included: it says what came from the cache and how long the job worked, times without a process
    left out. A call that was cut off because the run was interrupted counts as spent, but is no cost of the arm's.
    Without events the latency is the job's whole time."""
    told = _Log()
    for event in events:
        told.hear(event)
    tally = told.tally if told.cut else _tally_of(summary["usage"])
    usage = tally.usage
    steps = summary["steps"]
    models = Counter(step["model"] for step in steps if step.get("model")) or Counter(told.agent[-1:])
    latency = told.seconds if told.heard else float(summary["elapsed"])
    return Outcome(
        cell,
        summary["status"],
        summary["answer"] or "",
        summary["error"],
        summary["error_code"],
        usage.cost,
        usage,
        dict(tally.by_role),
        dict(tally.by_model),
        None if told.cached else latency,
        summary["rounds"],
        len(steps),
        sum(step["status"] in FAILED for step in steps),
        dict(models),
        len(told.escalated | {step["id"] for step in steps if step.get("escalated_from")}),
        told.cached,
        None,
        job_id or summary["id"],
        told.spent.usd if told.heard else usage.cost,
        told.spent.tokens if told.heard else usage.input_tokens + usage.output_tokens,
    )


def spent_in(events: Iterable[Event]) -> Amount:
    """What a job's calls count against the budget of its run: those from the cache not at all, those of unknown cost as
    the bound that they had."""
    told = _Log()
    for event in events:
        told.hear(event)
    return told.spent


class _Log:
    """What a job's log says beside its account."""

    def __init__(self) -> None:
        self.heard = False
        self.cached = 0
        self.cut = False
        self.tally = Tally()
        self.escalated: set[str | None] = set()
        self.agent: list[str] = []  # the models that were chosen for a single agent, one after the other
        self.spent = NOTHING
        self._time = PastTime()

    @property
    def seconds(self) -> float:
        return round(self._time.spent, 3)

    def hear(self, event: Event) -> None:
        self.heard = True
        self._time.hear(event)
        if event.channel == "turn":
            self._turn(event.payload)
        elif event.channel == "route" and is_choice(event.payload):
            self._chosen(event)

    def _chosen(self, event: Event) -> None:
        if event.step_id is None:
            self.agent.append(event.payload["model"])
        if event.payload.get("from") is not None:
            self.escalated.add(event.step_id)

    def _turn(self, turn: Mapping[str, Any]) -> None:
        if turn.get(CUT):
            self.cut = True
        else:
            self.tally.add(turn["role"], turn["model"], Usage.recorded(turn["usage"]))
        if turn.get("cached"):
            self.cached += 1
            return
        bound = turn.get("bound_behind") or turn.get("bound")
        if turn["usage"] is None and bound is not None:
            self.spent += Amount(Decimal(bound["usd"]), bound["tokens"])
        else:
            self.spent += cost_of(Usage.recorded(turn["usage"]), None)


def _tally_of(told: Mapping[str, Any]) -> Tally:
    parts = [{name: Usage.from_json(part) for name, part in told[by].items()} for by in ("by_role", "by_model")]
    return Tally(Usage.from_json(told), *parts)
