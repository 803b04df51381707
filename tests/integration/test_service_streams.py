"""Event streams of real jobs through the service: who leaves, and who starts the same job twice."""

from __future__ import annotations

import asyncio
from typing import Any

from executor.store.queue import enqueue
from tests.fakes import ProviderFake, brain
from tests.support import sse
from tests.support.working import models_of, working


async def ended(http: Any, job_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            job: dict[str, Any] = (await http.get(f"/v1/jobs/{job_id}")).json()
            if job["ended_at"] is not None:
                return job
            await asyncio.sleep(0.05)


async def test_a_client_that_drops_its_stream_only_unsubscribes(database_url: str) -> None:
    """The collected case ex-client-gone-job."""
    going = asyncio.Event()

    async def script(view: Any) -> Any:
        await going.wait()
        return brain(view)

    async with ProviderFake(script) as fake, working(database_url, models_of(fake)) as service:
        job_id = (await service.http.post("/v1/jobs", json={"goal": "Work it out.", "mode": "dag"})).json()["id"]
        async with service.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
            assert await anext(response.aiter_raw())
        going.set()
        job = await ended(service.http, job_id)
        assert job["status"] == "completed"
        events = await sse.read(service.http, job_id)
        ids = [event.id for event in events if event.id is not None]
        assert ids == sorted(set(ids))
        assert events[-1].channel == "done"


async def test_a_job_that_is_queued_twice_runs_once(database_url: str, provider_fake: ProviderFake) -> None:
    """The collected case ex-two-workers: the queue knows a job by its id, and a claim by its owner."""
    async with working(database_url, models_of(provider_fake)) as service:
        job_id = (await service.http.post("/v1/jobs", json={"goal": "Work it out.", "mode": "dag"})).json()["id"]
        for _ in range(5):
            async with service.database.transaction() as connection:
                await enqueue(connection, [job_id])
            await asyncio.sleep(0.02)
        job = await ended(service.http, job_id)
        assert job["status"] == "completed"
        rows = await service.database.rows("log.read_events", job_id, 0, True, 10_000)
        started = [
            row["step_id"]
            for row in rows
            if row["channel"] == "step_progress" and row["payload"]["status"] == "running"
        ]
        assert sorted(started) == sorted(set(started))
        assert provider_fake.billed.calls == job["usage"]["calls"]
