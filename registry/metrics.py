"""Figures for Prometheus, counted from the events of jobs.

Off, and nothing is imported, until `switch_on`; then `observe` takes each event and `render` gives the page to scrape.
Label values are bounded: what is not known beforehand is counted as "other".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from .messages import Event
from .redaction import error_fields

__all__ = ["CONTENT_TYPE", "Metrics", "observe", "render", "switch_off", "switch_on"]

log = structlog.get_logger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What `render` gives."""
OTHER = "other"
MAX_VALUES = 200
"""Different values of one label at most, where configuration decides on them: model names, tool names, error codes."""
ROLES = frozenset(
    {
        "planner", "analyzer", "router", "step", "agent", "selection", "compaction", "synthesis", "check", "tool",
        "verifier", "citations",
    }
)  # fmt: skip
ENDED = frozenset({"completed", "failed", "skipped", "cancelled"})
GOING = frozenset({"running", "waiting"})
JOB_ENDS = frozenset({"completed", "partial", "failed", "cancelled", "budget_exceeded"})
DECISIONS = frozenset({"waiting", "approved", "rejected", "expired", "cancelled"})
BUDGET_REASONS = frozenset({"refused", "lowered", "overbilled", "end"})
BOOKKEEPING = frozenset({"reserved", "released", "end"})
"""Reasons that go with every call, or every job."""
CALL_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
"""Upper bounds of the histogram of model calls: from a cached short reply to a long one of a reasoning model."""
JOB_SECONDS = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200)


class _Values:
    """The values of one label: the first `MAX_VALUES` as they are, later ones as "other"."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def of(self, value: Any) -> str:
        text = str(value or OTHER)
        if text not in self._seen:
            if len(self._seen) >= MAX_VALUES:
                return OTHER
            self._seen.add(text)
        return text


class Metrics:
    """Counters of a process, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()

        def counter(name: str, told: str, *labels: str) -> Counter:
            return Counter(f"dagwright_{name}", told, labels, registry=self.registry)

        def histogram(name: str, told: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"dagwright_{name}", told, labels, registry=self.registry, buckets=bounds)

        self.jobs = counter("jobs", "Jobs that ended, by status.", "status")
        self.job_seconds = histogram("job_seconds", "How long jobs took.", JOB_SECONDS, "status")
        self.jobs_going = Gauge("dagwright_jobs_going", "Jobs under way in this process.", registry=self.registry)
        self.steps = counter("steps", "Steps that ended, by status.", "status")
        self.steps_going = Gauge(
            "dagwright_steps_going", "Steps under way, by status.", ["status"], registry=self.registry
        )
        self.calls = counter("model_calls", "Tries of model calls: ok or the error's code.", "model", "role", "outcome")
        self.call_seconds = histogram("model_call_seconds", "How long tries took.", CALL_SECONDS, "model", "role")
        self.tokens = counter("tokens", "Tokens; input includes cached, output includes reasoning.", "model", "kind")
        self.cost = counter("cost_usd", "Known cost in USD.", "model")
        self.unpriced = counter("unpriced_calls", "Calls whose cost is unknown.", "model")
        self.tool_calls = counter("tool_calls", "Tool calls that ran: ok or error.", "tool", "outcome")
        self.approvals = counter("approvals", "Calls that waited for a human, by what became of them.", "status")
        self.budget = counter(
            "budget_events", "Calls that a budget refused or cut, or that cost more than set aside.", "reason"
        )
        self._models, self._codes = _Values(), _Values()
        self._tools: set[str] = set()
        self._jobs: dict[str, dict[str, str]] = {}
        self._takes: Mapping[str, Callable[[Event], None]] = {
            "job_started": self._started,
            "note": self._noted,
            "turn": self._turn,
            "call": self._call,
            "step_progress": self._step,
            "approval": self._approval,
            "budget": self._budget,
            "done": self._done,
        }

    def observe(self, event: Event) -> None:
        """Counts one event; most channels count nothing."""
        take = self._takes.get(event.channel)
        if take is not None:
            take(event)

    def render(self) -> bytes:
        """The figures in the text format of Prometheus."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def _started(self, event: Event) -> None:
        room = MAX_VALUES - len(self._tools)
        self._tools.update(sorted(set(event.payload.get("tools", ())) - self._tools)[: max(0, room)])
        self._goes(event.job_id)

    def _noted(self, event: Event) -> None:
        if event.payload.get("kind") == "restored":  # it began elsewhere
            self._goes(event.job_id)

    def _goes(self, job_id: str) -> None:
        if job_id not in self._jobs:
            self._jobs[job_id] = {}
            self.jobs_going.inc()

    def left(self, job_id: str) -> None:
        """The job is under way here no longer."""
        steps = self._jobs.pop(job_id, None)
        if steps is not None:
            self.jobs_going.dec()
            for going in steps.values():
                self.steps_going.labels(going).dec()

    def _done(self, event: Event) -> None:
        status = _known(event.payload.get("status"), JOB_ENDS)
        self.jobs.labels(status).inc()
        self.job_seconds.labels(status).observe(float(event.payload.get("elapsed") or 0.0))
        self.left(event.job_id)

    def _step(self, event: Event) -> None:
        if event.payload.get("kept"):
            return  # another job's
        status, step = str(event.payload.get("status")), event.step_id or ""
        steps = self._jobs.get(event.job_id, {})
        before = steps.pop(step, None)
        if before is not None:
            self.steps_going.labels(before).dec()
        if status in ENDED:
            self.steps.labels(status).inc()
        elif status in GOING and event.job_id in self._jobs:
            steps[step] = status
            self.steps_going.labels(status).inc()

    def _turn(self, event: Event) -> None:
        payload = event.payload
        model, role = self._models.of(payload.get("model")), _known(payload.get("role"), ROLES)
        if payload.get("cached"):
            return  # no model was called
        error = payload.get("error")
        outcome = "ok" if error is None else self._codes.of(error.get("code"))
        self.calls.labels(model, role, outcome).inc()
        self.call_seconds.labels(model, role).observe(float(payload.get("elapsed") or 0.0))
        usage = payload.get("usage")
        if usage is None:
            self.unpriced.labels(model).inc()
            return
        for kind in ("input", "cached", "output", "reasoning"):
            if count := usage.get(f"{kind}_tokens"):
                self.tokens.labels(model, kind).inc(count)
        if cost := usage.get("cost_usd"):
            self.cost.labels(model).inc(float(cost))
        if unpriced := usage.get("unpriced_calls"):
            self.unpriced.labels(model).inc(unpriced)

    def _call(self, event: Event) -> None:
        if event.payload.get("status") != "end":
            return
        name = event.payload.get("tool_name")
        outcome = "error" if event.payload.get("is_error") else "ok"
        self.tool_calls.labels(name if name in self._tools else OTHER, outcome).inc()

    def _approval(self, event: Event) -> None:
        self.approvals.labels(_known(event.payload.get("status"), DECISIONS)).inc()

    def _budget(self, event: Event) -> None:
        reason = _known(event.payload.get("reason"), BUDGET_REASONS)
        if event.payload.get("reason") not in BOOKKEEPING:
            self.budget.labels(reason).inc()


def _known(value: Any, values: frozenset[str]) -> str:
    return str(value) if value in values else OTHER


class _Process:
    metrics: Metrics | None = None


def switch_on() -> Metrics:
    """From now on events are counted. Imports prometheus-client."""
    if _Process.metrics is None:
        _Process.metrics = Metrics()
    return _Process.metrics


def switch_off() -> None:
    """Nothing is counted any more, and what was is forgotten."""
    _Process.metrics = None


def observe(event: Event) -> None:
    """Counts an event of a job, where figures are switched on; one that can't be counted costs the job nothing."""
    if _Process.metrics is None:
        return
    try:
        _Process.metrics.observe(event)
    except Exception as error:  # noqa: BLE001 - whatever stands in it, the work goes on
        log.error("event_not_counted", channel=event.channel, seq=event.seq, **error_fields(error))


def left(job_id: str) -> None:
    """A job goes on in another process."""
    if _Process.metrics is not None:
        _Process.metrics.left(job_id)


def render() -> bytes:
    """The page to scrape; empty where figures are off."""
    return b"" if _Process.metrics is None else _Process.metrics.render()
