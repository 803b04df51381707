"""Figures for Prometheus: of this process's HTTP, and of the whole service as the database knows it.

Workers are processes of their own, whose counters of model calls, tokens and tools stay with them (they go out as
telemetry). What is read from the database is the same on every server: it must not be summed over them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from executor.job_types import JobStatus
from executor.store.database import Database
from registry import metrics

from .guard import App, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

RECENT = 3_600.0
"""Seconds back that ended jobs are counted."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the histogram of requests."""
UNKNOWN = "none"
"""The route of a request that has none, such as one for what is not there."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OPEN: tuple[str, ...] = ("queued", "running", "needs_decision")
ENDED: tuple[str, ...] = tuple(status for status in get_args(JobStatus) if status not in OPEN)


class HttpFigures:
    """Counts the requests of one process."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        self._requests = Counter(
            "dagwright_http_requests", "Requests answered by this process.", ["method", "route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "dagwright_http_request_seconds", "Seconds until the answer began, in this process.", ["method", "route"],
            registry=self.registry, buckets=SECONDS,
        )  # fmt: skip
        self._open = Gauge(
            "dagwright_http_requests_open", "Requests under way in this process, streams among them.",
            registry=self.registry,
        )  # fmt: skip

    def began(self) -> None:
        """A request came."""
        self._open.inc()

    def ended(self, scope: Scope, status: int | None, seconds: float | None) -> None:
        """It is answered, or its client has left. Label values are bounded: routes are those of the application."""
        self._open.dec()
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path_format", None) or getattr(scope.get("route"), "path", UNKNOWN)
        self._requests.labels(method, route, "none" if status is None else str(status)).inc()
        if seconds is not None:
            self._seconds.labels(method, route).observe(seconds)


class Counted:
    """Wraps the application."""

    def __init__(self, app: App, figures: HttpFigures) -> None:
        self.app, self.figures = app, figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status: int | None = None
        seconds: float | None = None
        begun = time.perf_counter()

        async def counted(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.perf_counter() - begun
            await send(message)

        self.figures.began()
        try:
            await self.app(scope, receive, counted)
        finally:
            self.figures.ended(scope, status, seconds)


@dataclass(frozen=True, slots=True, eq=False)
class ServiceFigures:
    """What the database knows: a few statements that read indexes, whatever the number of jobs that have ended."""

    open_jobs: dict[str, int]
    ended_jobs: dict[str, int]
    recent_usd: float
    queued: int
    picked: int
    oldest_seconds: float
    webhooks: int

    @classmethod
    async def read(cls, database: Database) -> ServiceFigures:
        """As of now."""
        opened = await database.rows("figures.open_jobs")
        ended = await database.rows("figures.ended_jobs", RECENT)
        queue = await database.row("figures.queue")
        hooks = await database.row("figures.webhooks")
        assert queue is not None  # both statements always give a row
        assert hooks is not None
        return cls(
            {row["status"]: row["jobs"] for row in opened},
            {row["status"]: row["jobs"] for row in ended},
            sum(row["usd"] for row in ended),
            queue["queued"],
            queue["picked"],
            queue["oldest"],
            hooks["waiting"],
        )

    def collect(self) -> Iterator[Metric]:
        """As prometheus-client collects it."""
        yield _gauge("jobs", "Jobs that have not ended, by status.", _by_status(OPEN, self.open_jobs))
        yield _gauge(
            "recent_jobs", "Jobs that ended within the last hour, by status.", _by_status(ENDED, self.ended_jobs)
        )
        yield _gauge("recent_cost_usd", "Known cost of the jobs that ended within the last hour.", self.recent_usd)
        queue = [({"status": "queued"}, self.queued), ({"status": "picked"}, self.picked)]
        yield _gauge("queue_jobs", "Jobs in the queue: waiting, and taken by workers.", queue)
        yield _gauge("queue_oldest_seconds", "How long the first of the queue has waited.", self.oldest_seconds)
        yield _gauge("webhooks_waiting", "Webhooks that are to be delivered.", self.webhooks)


def _by_status(statuses: Iterable[str], counts: dict[str, int]) -> list[tuple[dict[str, str], float]]:
    return [({"status": status}, counts.get(status, 0)) for status in statuses]


def _gauge(name: str, told: str, values: Any) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    rows = values if isinstance(values, list) else [({}, values)]
    family = GaugeMetricFamily(f"dagwright_service_{name}", told, labels=list(rows[0][0]))
    for labels, value in rows:
        family.add_metric(list(labels.values()), value)
    return family


def page(http: CollectorRegistry, service: ServiceFigures) -> bytes:
    """The page to scrape."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(service)
    return generate_latest(http) + generate_latest(registry) + metrics.render()
