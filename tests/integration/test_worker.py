"""Worker processes as they are: started by the command, killed, paused, told to end; their jobs get to an end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from executor.demo.serve import HEADER, MODEL_NAME
from executor.store.database import Database
from executor.store.jobs import NewJob, insert
from executor.store.queue import enqueue
from executor.workers.worker import DEMO
from tests.fakes import ProviderFake, View, brain
from tests.fakes.brain import SYNTHESIS
from tests.support.command import NO_LOCAL_SERVERS, command, openai
from tests.support.processes import (
    PLAN,
    Running,
    alive,
    children,
    ended,
    new_job,
    row_of,
    running,
    until,
    worker_env,
    zombies,
)
from tests.support.stored_jobs import events_of


class Gate:
    """A script in which steps wait until they are let on; `waiting` counts those that do."""

    def __init__(self) -> None:
        self.open, self.waiting = asyncio.Event(), 0

    async def __call__(self, view: View) -> Any:
        if bool(view.tools) and view.choice == "auto" and view.forced is None and not self.open.is_set():
            self.waiting += 1
            try:
                await self.open.wait()
            finally:
                self.waiting -= 1
        return brain(view)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url, size=2) as opened:
        yield opened


async def sql(database: Database, text: str, *args: Any) -> Any:
    async with database.connection() as connection:
        return await connection.fetch(text, *args)


async def ready(run: Running, count: int = 1) -> list[int]:
    """The workers' processes, when all of them take jobs."""
    await run.until(lambda: len(run.logged("worker_ready")) >= count)
    return children(run.process.pid)


async def test_jobs_are_run_to_their_end_and_the_command_ends_when_it_is_told(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    before = await new_job(database)
    async with running("worker", home=tmp_path, env=worker_env(database_url, provider_fake)) as run:
        later = await new_job(database)
        planned = await new_job(database)
        await run.until(ended(database, before, later, planned))
        assert run.out == "1 worker process\n"
        for job_id in (before, later, planned):
            row = await row_of(database, job_id)
            assert (row["status"], row["summary"]["answer"]) == ("completed", SYNTHESIS)
        (child,) = children(run.process.pid)
        assert await run.end() == 0
        assert not alive(child)
        assert await sql(database, "select 1 from pgqueuer") == []
    assert "Traceback" not in run.raw


async def test_two_workers_share_the_jobs(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    gate = Gate()
    provider_fake.script = gate
    env = worker_env(database_url, provider_fake, workers=2, jobs_per_worker=2)
    jobs = [await new_job(database) for _ in range(5)]
    async with running("worker", home=tmp_path, env=env) as run:
        await run.until(lambda: gate.waiting == 4)
        owners = await sql(database, "select owner, count(*) from dw_jobs where owner is not null group by owner")
        assert [row["count"] for row in owners] == [2, 2]
        gate.open.set()
        await run.until(ended(database, *jobs))
        assert {(await row_of(database, job_id))["status"] for job_id in jobs} == {"completed"}


@pytest.mark.heavy
async def test_a_killed_worker_is_replaced_and_its_jobs_are_picked_up(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    gate = Gate()
    provider_fake.script = gate
    async with running("worker", home=tmp_path, env=worker_env(database_url, provider_fake)) as run:
        (first,) = await ready(run)
        job_id = await new_job(database)
        await run.until(lambda: gate.waiting == 1)
        owner = (await row_of(database, job_id))["owner"]
        os.kill(first, signal.SIGKILL)
        gate.open.set()
        await run.until(ended(database, job_id))  # the next claim settles what becomes of it
        (second,) = await ready(run, 2)
        assert second != first
        assert run.logged("worker_ended")[0]["code"] == -signal.SIGKILL
        assert zombies(run.process.pid) == []
        assert (await row_of(database, job_id))["owner"] != owner
        other = await new_job(database)
        await run.until(ended(database, other))
        assert (await row_of(database, other))["status"] == "completed"


async def new_suspect(database: Database) -> str:
    """A queued job as it stands when a worker claimed it and died before it had written anything."""
    async with database.transaction() as connection:
        row = await insert(connection, "", NewJob("Work it out.", "dag", request={"plan": PLAN}), None, None)
        assert row is not None
        await connection.execute(
            "update dw_jobs set started_at = now(), status = 'running', owner = $2 where id = $1", row["id"], uuid4()
        )
        await enqueue(connection, [row["id"]])
    return str(row["id"])


@pytest.mark.heavy
async def test_a_job_that_may_have_killed_its_worker_is_run_in_a_process_of_its_own(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    gate = Gate()
    provider_fake.script = gate
    async with running("worker", home=tmp_path, env=worker_env(database_url, provider_fake)) as run:
        (worker,) = await ready(run)
        neighbour = await new_job(database)
        await run.until(lambda: gate.waiting == 1)
        await new_suspect(database)
        await run.until(lambda: gate.waiting == 2)
        (alone,) = children(worker)
        assert run.logged("suspect_begun")[0]["pid"] == alone
        os.kill(alone, signal.SIGKILL)  # nobody else is hurt
        await run.until(lambda: run.logged("suspect_ended"))
        assert run.logged("suspect_ended")[0]["code"] == -signal.SIGKILL
        gate.open.set()
        await run.until(ended(database, neighbour))
        assert (await row_of(database, neighbour))["status"] == "completed"
        assert children(run.process.pid) == [worker]
        other = await new_suspect(database)
        await run.until(ended(database, other))
        assert (await row_of(database, other))["status"] == "completed"
        assert await run.end() == 0


@pytest.mark.heavy
async def test_a_job_that_kills_whoever_goes_on_with_it_is_given_up_with_what_it_had(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    gate = Gate()  # the calls of dead processes count as waiting, too
    provider_fake.script = gate

    async def asked() -> bool:
        return any(event["channel"] == "step" for event in await events_of(database, job_id))

    async with running("worker", home=tmp_path, env=worker_env(database_url, provider_fake)) as run:
        (worker,) = await ready(run)
        job_id = await new_job(database)
        for times in (1, 2):  # the second worker had written nothing
            await run.until(lambda calls=times: gate.waiting == calls)
            await run.until(asked)  # what comes before the call is stored: those who come later have nothing to write
            os.kill(worker, signal.SIGKILL)
            (worker,) = await ready(run, times + 1)
        neighbour = await new_job(database)
        for times in range(5):
            await run.until(lambda calls=times + 4: gate.waiting == calls)
            (alone,) = children(worker)
            os.kill(alone, signal.SIGKILL)
        await run.until(ended(database, job_id))
        row = await row_of(database, job_id)
        assert (row["status"], row["summary"]["error_code"], gate.waiting) == ("failed", "crashed", 8)
        assert "5 processes in a row" in row["summary"]["error"]
        assert [step["id"] for step in row["summary"]["steps"]] == ["a"]
        assert [line["crashes"] for line in run.logged("job_crashed")] == [1, 2, 3, 4, 5]
        gate.open.set()
        await run.until(ended(database, neighbour))
        assert (await row_of(database, neighbour))["status"] == "completed"
        assert children(run.process.pid) == [worker]


@pytest.mark.heavy
async def test_a_worker_that_comes_back_and_owns_its_job_no_more_ends_at_once(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    gate, other = Gate(), uuid4()
    provider_fake.script = gate
    env = worker_env(database_url, provider_fake, heartbeat_timeout=30)
    async with running("worker", home=tmp_path, env=env) as run:
        (child,) = await ready(run)
        job_id = await new_job(database)
        await run.until(lambda: gate.waiting == 1)
        os.kill(child, signal.SIGSTOP)
        await sql(database, "update dw_jobs set owner = $2 where id = $1", job_id, other)
        seq = (await row_of(database, job_id))["seq"]
        gate.open.set()
        os.kill(child, signal.SIGCONT)
        await run.until(lambda: run.logged("worker_ended"))
        assert run.logged("worker_ended")[0]["code"] == 75
        assert run.logged("ownership_lost")[0]["job_id"] == job_id
        row = await row_of(database, job_id)
        assert (row["seq"], row["owner"], row["ended_at"]) == (seq, other, None)
        await ready(run, 2)


async def test_sigterm_hands_over_what_does_not_end_in_time(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    gate = Gate()
    provider_fake.script = gate
    env = worker_env(database_url, provider_fake, heartbeat_timeout=300)
    async with running("worker", home=tmp_path, env=env) as run:
        await ready(run)
        job_id = await new_job(database)
        await run.until(lambda: gate.waiting == 1)
        began = time.monotonic()
        assert await run.end() == 0
        assert time.monotonic() - began < 5 * 2.5
        assert run.logged("worker_killed") == []
    rows = await sql(database, "select status::text from pgqueuer where dedupe_key = $1", job_id)
    assert [row["status"] for row in rows] == ["queued"]
    gate.open.set()
    async with running("worker", home=tmp_path, env=env) as run:  # its heartbeat need not be missed first
        await run.until(ended(database, job_id))


@pytest.mark.heavy
async def test_workers_end_with_their_supervisor_however_that_ends(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    gate = Gate()
    provider_fake.script = gate
    async with running("worker", "--workers", "2", home=tmp_path, env=worker_env(database_url, provider_fake)) as run:
        pids = await ready(run, 2)
        assert len(pids) == 2
        await new_job(database)
        await run.until(lambda: gate.waiting == 1)
        await run.end(signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids))


async def test_the_demonstration_model_is_used_where_the_supervisor_says_so(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    provider_fake.models = (MODEL_NAME,)
    env = {"DAGWRIGHT_DATABASE_URL": database_url, DEMO: provider_fake.openai_url, "DAGWRIGHT_SEARCH": "none"}
    async with running(home=tmp_path, env=env, start=("-m", "executor.workers.worker")) as run:
        job_id = await new_job(database)
        await run.until(ended(database, job_id))
    assert [view.model for view in provider_fake.views][:1] == [MODEL_NAME]
    assert (await row_of(database, job_id))["summary"]["metadata"]["notice"] == HEADER


async def test_a_newer_schema_is_refused(
    tmp_path: Path, database_url: str, database: Database, provider_fake: ProviderFake
) -> None:
    await sql(database, "insert into dw_migrations (number, name, sum) values (999, 'later', 'x')")
    env = worker_env(database_url, provider_fake)
    for words in (["worker"], ["serve", "--port", "0"], ["db", "migrate"]):
        done = await command(*words, home=tmp_path, env=env)
        assert (done.code, done.out) == (2, ""), done.err
        assert "the database has migration 999, which this version of dagwright does not know" in done.err
    done = await command("db", "status", "--json", home=tmp_path, env=env)
    assert done.code == 1
    assert "999" in done.data["problem"]


async def test_children_that_are_misconfigured_end_the_command(
    tmp_path: Path, database_url: str, provider_fake: ProviderFake
) -> None:
    file = '[mcp.gone]\ncommand = "/nonexistent"\nrequired = true\n'
    (tmp_path / "dagwright.toml").write_text(file)
    done = await command("worker", home=tmp_path, env=worker_env(database_url, provider_fake))
    assert done.code == 2
    assert "worker_misconfigured" in done.err
    assert "Workers can't start" in done.err


async def test_what_a_worker_lacks_is_said(tmp_path: Path, database_url: str, provider_fake: ProviderFake) -> None:
    done = await command("worker", home=tmp_path, env=openai(provider_fake))
    assert done.code == 2
    assert "set DATABASE_URL" in done.err
    done = await command("worker", home=tmp_path, env={"DATABASE_URL": database_url}, start=NO_LOCAL_SERVERS)
    assert done.code == 2
    assert "OPENAI_API_KEY" in done.err


async def test_the_schema_is_brought_up_by_command(tmp_path: Path, database_url: str, database: Database) -> None:
    env = {"DATABASE_URL": database_url}
    done = await command("db", "migrate", home=tmp_path, env=env)
    assert (done.code, done.out) == (0, "the schema is up to date\n")
    await sql(database, "drop schema public cascade")
    await sql(database, "create schema public")
    done = await command("db", "status", home=tmp_path, env=env)
    assert done.code == 1
    assert "run `dagwright db migrate`" in done.out
    done = await command("db", "migrate", "--json", home=tmp_path, env=env)
    assert (done.code, done.data["applied"][0]) == (0, "0001_jobs")
    assert (await command("db", "status", home=tmp_path, env=env)).code == 0
