"""Real processes of the service: workers and servers started by the command, and their children."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from executor.store.database import Database
from executor.store.jobs import JobStore, NewJob
from tests.fakes import ProviderFake
from tests.support.command import MODULE, PATIENCE, openai, started

PLAN = {"steps": [{"id": "a", "task": "Work out the figure."}]}


class Running:
    """A command that runs; `lines` are what it and its children have logged, as JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out, self.lines, self.raw = "", list[dict[str, Any]](), ""

    async def read(self) -> None:
        """Takes in what is written, until the end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_out())
            group.create_task(self._read_err())

    async def _read_out(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.out += line.decode()

    async def _read_err(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.raw += line.decode()
            with suppress(ValueError):
                self.lines.append(json.loads(line))

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of an event."""
        return [line for line in self.lines if line.get("event") == event]

    def told(self, text: str) -> bool:
        """Whether something was written."""
        return text in self.raw or text in self.out

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits until something holds, on a busy machine for long; what was written shows why not."""
        try:
            await until(condition)
        except TimeoutError:
            raise AssertionError(f"in vain; it wrote {self.out}\n{self.raw}") from None

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ends the command by a signal; its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


async def until(condition: Callable[[], Any]) -> None:
    """Waits until something holds."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = condition()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running(
    *words: str, home: Path, env: Mapping[str, str], start: Sequence[str] = MODULE
) -> AsyncIterator[Running]:
    """The command within the block; afterwards neither it nor a child of it is there."""
    process = await started(*words, home=home, env=env, start=start)
    run = Running(process)
    family = {process.pid}
    async with asyncio.TaskGroup() as group:
        group.create_task(run.read())
        try:
            yield run
        finally:
            family |= set(children(process.pid))
            if process.returncode is None:
                process.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(20):
                        await process.wait()
            for pid in family:
                if pid != process.pid or process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that live."""
    found = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    rows = (line.split() for line in found.stdout.splitlines())
    return [int(row[0]) for row in rows if not row[1].startswith("Z")]


def zombies(pid: int) -> list[int]:
    """Children that have ended and that nobody has waited for."""
    found = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    rows = (line.split() for line in found.stdout.splitlines())
    return [int(row[0]) for row in rows if row[1].startswith("Z")]


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(found.stdout.strip()) and not found.stdout.strip().startswith("Z")


def worker_env(dsn: str, fake: ProviderFake, **settings: Any) -> dict[str, str]:
    """Variables of workers on a database, whose models are the fake."""
    short = {"heartbeat_timeout": 1.0, "drain_seconds": 1.0, **settings}
    given = {f"DAGWRIGHT_{name.upper()}": str(value) for name, value in short.items()}
    return {**openai(fake), "DATABASE_URL": dsn, "DAGWRIGHT_SEARCH": "none", **given}


async def new_job(database: Database, goal: str = "Work out six times seven.", **request: Any) -> str:
    """A queued job with a plan of one step."""
    row, _ = await JobStore(database).create("", NewJob(goal, "dag", request={"plan": PLAN, **request}))
    return str(row["id"])


async def row_of(database: Database, job_id: str) -> Any:
    """A job's row."""
    row = await database.row("jobs.get", job_id, "")
    assert row is not None
    return row


def ended(database: Database, *job_ids: str) -> Callable[[], Awaitable[bool]]:
    """Whether all of these have ended."""

    async def have() -> bool:
        return all([(await row_of(database, job_id))["ended_at"] is not None for job_id in job_ids])

    return have
