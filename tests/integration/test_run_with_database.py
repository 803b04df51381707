"""`dagwright run` with a database: the same job, kept like those of the service."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.services import at_once
from executor.log.memory import MemoryLog
from executor.store.database import Database
from executor.store.jobs import NewJob
from executor.store.queue import reconcile
from executor.workers.local_job import kept_job
from registry.artifacts import MemoryArtifacts
from tests.fakes import ProviderFake
from tests.support.stored_jobs import Brain, events_of, ran, told, workshop


async def begun(tmp_path: Path, dsn: str, fake: ProviderFake, *args: str) -> asyncio.subprocess.Process:
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "DATABASE_URL": dsn, "OPENAI_BASE_URL": fake.openai_url,
    }  # fmt: skip
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "executor.cli", "run", *args,
        env=environment, cwd=tmp_path, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@asynccontextmanager
async def at_its_model(tmp_path: Path, dsn: str, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command, waiting for a reply of its model that does not come."""
    asked = asyncio.Event()

    async def stuck(view: Any) -> Any:
        asked.set()
        await asyncio.sleep(600)

    async with ProviderFake(stuck) as fake:
        process = await begun(tmp_path, dsn, fake, *args)
        await asyncio.wait_for(asked.wait(), 60)
        yield process


async def only_job(database: Database) -> dict[str, Any]:
    async with database.connection() as connection:
        return dict(await connection.fetchrow("select * from dw_jobs") or {})


async def test_the_job_and_its_history_are_stored(
    database: Database, database_url: str, provider_fake: ProviderFake, tmp_path: Path
) -> None:
    process = await begun(tmp_path, database_url, provider_fake, "--json", "a goal")
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    told = json.loads(out)
    row = await only_job(database)
    assert row["id"] == told["id"]
    assert (row["status"], row["owner"]) == ("completed", None)
    assert row["summary"] == told
    events = await database.rows("log.read_events", row["id"], 0, True, 10_000)
    assert [event["seq"] for event in events] == list(range(1, row["seq"] + 1))
    assert events[-1]["channel"] == "done"
    async with database.connection() as connection:
        assert await connection.fetchval("select count(*) from pgqueuer") == 0  # it stood in no queue


async def test_a_living_process_keeps_its_job_and_a_killed_ones_goes_to_the_workers(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    async with at_its_model(tmp_path, database_url, "a goal") as process:
        assert await reconcile(database) == 0
        process.send_signal(signal.SIGKILL)
        await process.wait()
        async with asyncio.timeout(30):
            while await reconcile(database) == 0:
                await asyncio.sleep(0.1)
    async with database.connection() as connection:
        queued = await connection.fetchval("select dedupe_key from pgqueuer")
    assert queued == (await only_job(database))["id"]


async def test_what_was_set_for_it_holds_where_it_goes_on(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """A worker that takes it over has settings of its own: the budget stays the job's."""
    args = ("--budget", "5000tokens", "--answer-mode", "direct", "a goal")
    async with at_its_model(tmp_path, database_url, *args) as process:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    work = workshop(lambda request: "never asked", budget="9usd", max_steps=3)
    job = work.job(await only_job(database), MemoryLog("job_1"), MemoryArtifacts(), at_once)
    assert str(job.request.budget) == "5000tokens"
    assert (job.request.answer_mode, job.options.max_steps) == ("direct", 3)


async def test_a_command_whose_job_another_worker_has_says_so(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """As where the database was away and a worker took the process for dead: the job is not cancelled, it goes on."""
    async with at_its_model(tmp_path, database_url, "a goal") as process:
        async with database.connection() as connection:
            await connection.execute("update dw_jobs set owner = gen_random_uuid()")
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out) == (75, b""), err.decode()
    assert b"belongs to another worker" in err
    assert b"cancelled" not in err
    assert (await only_job(database))["status"] == "running"


async def test_a_letter_reaches_it(database: Database, database_url: str, tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def slow(view: Any) -> Any:
        asked.set()
        await asyncio.sleep(600)

    async with ProviderFake(slow) as fake:
        process = await begun(tmp_path, database_url, fake, "a goal")
        await asyncio.wait_for(asked.wait(), 60)
        row = await only_job(database)
        assert await database.row("jobs.cancel", row["id"], "") is not None
        await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert (await only_job(database))["status"] == "cancelled"


async def test_a_goal_that_can_not_be_made_a_job_is_told(
    database: Database, database_url: str, provider_fake: ProviderFake, tmp_path: Path
) -> None:
    process = await begun(tmp_path, database_url, provider_fake, "--budget", "1usd", "a goal")
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert b"price" in err


async def test_a_database_that_is_not_there_is_told_at_once(provider_fake: ProviderFake, tmp_path: Path) -> None:
    process = await begun(tmp_path, "postgresql://u:secret@127.0.0.1:9/x", provider_fake, "a goal")
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert b"can't be used" in err
    assert b"secret" not in err
    assert provider_fake.requests == []


async def test_a_worker_without_its_guards_does_not_go_on_with_it(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "dagwright.toml").write_text('[[hooks]]\nuse = "read_only"\n')
    async with at_its_model(tmp_path, database_url, "a goal") as process:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    job = (await only_job(database))["id"]
    row = await ran(database, workshop(lambda request: "never asked"), job)
    assert row["status"] == "failed"
    assert "hooks that are not declared here: read_only" in row["summary"]["error"]


async def test_what_is_said_before_a_job_begins_stands_behind_its_first_event(database: Database) -> None:
    """Whoever reads a log, to replay it for one, finds first what was asked."""
    work = workshop(Brain(None, [{"id": "a", "task": "x"}]))
    async with kept_job(database, NewJob("sum it up", "dag"), work) as handle:
        handle.send("in French")
        ended = await handle.result()
    events = await events_of(database, handle.id)
    assert events[0]["channel"] == "job_started"
    assert [note["letter"] for note in told(events, "note") if note["kind"] == "letter"] == ["message"]
    assert "in French" in ended.goal
    async with kept_job(database, NewJob("sum it up", "dag"), work) as handle:
        handle.cancel()
        assert (await handle.result()).status == "cancelled"
