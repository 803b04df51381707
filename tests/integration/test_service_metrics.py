"""/metrics: what the database knows of the service, and what this process answered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from executor.store.database import Database
from executor.store.keys import KeyStore
from tests.support.service import Service, running


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with running(database_url) as started:
        yield started


async def figures(service: Service, key: str | None = None) -> dict[tuple[str, ...], float]:
    """The samples: name and label values, sorted by the labels' names."""
    async with service.client(key) as client:
        reply = await client.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


async def set_status(database: Database, job_id: str, status: str, *, ended: str = "null") -> None:
    async with database.connection() as connection:
        await connection.execute(
            f"update dw_jobs set status = $2, ended_at = {ended}, cost_usd = 0.25 where id = $1", job_id, status
        )


async def test_jobs_and_queue_as_the_database_has_them(service: Service) -> None:
    ids = [(await service.http.post("/v1/jobs", json={"goal": f"g{n}"})).json()["id"] for n in range(5)]
    await set_status(service.database, ids[1], "running")
    await set_status(service.database, ids[2], "completed", ended="now()")
    await set_status(service.database, ids[3], "failed", ended="now() - interval '50 minutes'")
    await set_status(service.database, ids[4], "failed", ended="now() - interval '70 minutes'")
    async with service.database.connection() as connection:
        await connection.execute(
            "update pgqueuer set created = now() - interval '90 seconds' where dedupe_key = $1", ids[0]
        )
        await connection.execute("update pgqueuer set status = 'picked' where dedupe_key = $1", ids[1])
        await connection.execute("delete from pgqueuer where dedupe_key = any ($1)", ids[2:])
    told = await figures(service)
    assert told["dagwright_service_jobs", "queued"] == 1
    assert told["dagwright_service_jobs", "running"] == 1
    assert told["dagwright_service_jobs", "needs_decision"] == 0
    assert told["dagwright_service_recent_jobs", "completed"] == 1
    assert told["dagwright_service_recent_jobs", "failed"] == 1
    assert told["dagwright_service_recent_cost_usd",] == 0.5
    assert told["dagwright_service_queue_jobs", "queued"] == 1
    assert told["dagwright_service_queue_jobs", "picked"] == 1
    assert 90 <= told["dagwright_service_queue_oldest_seconds",] < 300
    assert told["dagwright_service_webhooks_waiting",] == 0


async def test_an_empty_service_has_figures_too(service: Service) -> None:
    told = await figures(service)
    assert told["dagwright_service_queue_oldest_seconds",] == 0
    assert told["dagwright_service_jobs", "queued"] == 0


async def test_requests_are_counted_by_their_routes(service: Service) -> None:
    for _ in range(3):
        await service.http.get("/v1/jobs/job_unknown")
    await service.http.get("/v1/batches/batch_unknown/results")
    await service.http.get("/nothing/here")
    await service.http.post("/v1/jobs", content=b"x", headers={"content-type": "text/plain"})
    await service.http.request("BREW", "/healthz")
    await service.http.get("/healthz")
    told = await figures(service)
    assert told["dagwright_http_requests_total", "GET", "/v1/jobs/{job_id}", "404"] == 3
    assert told["dagwright_http_requests_total", "GET", "/v1/batches/{batch_id}/results", "404"] == 1
    assert told["dagwright_http_requests_total", "GET", "none", "404"] == 1
    assert told["dagwright_http_requests_total", "POST", "none", "415"] == 1
    assert told["dagwright_http_requests_total", "GET", "/healthz", "200"] == 1
    assert sum(value for (name, *labels), value in told.items() if "other" in labels and "requests_total" in name) == 1
    assert told["dagwright_http_request_seconds_count", "GET", "/healthz"] == 1
    assert told["dagwright_http_requests_open",] == 1  # this one


async def test_with_keys_it_needs_one(service: Service) -> None:
    _, key = await KeyStore(service.database).create("prometheus")
    assert (await service.http.get("/metrics")).status_code == 401
    assert await figures(service, key)
