"""A large batch of plans through the real service and its worker, at a provider that takes so many calls a second.

    python -m tests.support.batch_load LIMIT LATENCY

is the provider: it prints its port, serves until its standard input ends, and then prints what it saw.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes import ProviderFake, brain
from tests.fakes.checks_chat import known_parameters
from tests.fakes.view import Reply, View, as_reply
from tests.support.rate_limit import Window

ROOT = Path(__file__).parents[2]
LIMIT, LATENCY = 50, 0.2
"""Calls a second that the provider takes, and seconds it needs for each."""
LOOK = 0.5
"""Seconds between two looks at the counts."""
COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")


@dataclass
class Outcome:
    """What was seen. `seconds`: from the batch's acceptance to its end; `growth`: bytes by which the server's memory
    grew at most; `faults`: what must not be; `early`: results that came while it ran."""

    goals: int
    accepted_in: float = 0.0
    seconds: float = 0.0
    growth: int = 0
    looks: int = 0
    early: int = 0
    read_in: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    cancelled: dict[str, int] = field(default_factory=dict)
    cancelled_in: float = 0.0
    provider: dict[str, Any] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of the calls that the limit allows in the time, those that were made."""
        return self.goals / (LIMIT * self.seconds)


@dataclass
class Load:
    """One run against a service."""

    http: aiohttp.ClientSession
    pid: int
    outcome: Outcome
    base: int = 0

    async def send(self, goals: int) -> dict[str, Any]:
        """Sends a batch with one bad line in its middle, line by line."""

        async def lines() -> AsyncIterator[bytes]:
            for number in range(goals):
                if number == goals // 2:
                    yield b"this is no JSON\n"
                goal = f"Find out what number {number} of a long list of questions comes to. " * 3
                yield json.dumps({"custom_id": f"c{number}", "goal": goal}).encode() + b"\n"

        headers = {"content-type": "application/jsonl"}
        async with self.http.post("/v1/batches", params={"mode": "plan"}, data=lines(), headers=headers) as answer:
            told: dict[str, Any] = await answer.json()
            assert answer.status == 202, told
            return told

    async def look(self, batch_id: str) -> dict[str, Any]:
        async with self.http.get(f"/v1/batches/{batch_id}") as answer:
            told: dict[str, Any] = await answer.json()
        self.outcome.looks += 1
        if self.base:
            self.outcome.growth = max(self.outcome.growth, resident(self.pid) - self.base)
        return told

    async def results(self, batch_id: str) -> list[dict[str, Any]]:
        found, rest = [], b""
        async with self.http.get(f"/v1/batches/{batch_id}/results") as answer:
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                found += [json.loads(line) for line in lines]
                if self.base:
                    self.outcome.growth = max(self.outcome.growth, resident(self.pid) - self.base)
        return found

    def check(self, before: dict[str, int], counts: dict[str, int]) -> None:
        """Counts make the total, and only go one way."""
        if sum(counts[name] for name in COUNTS) != counts["total"]:
            self.outcome.faults.append(f"the counts do not make the total: {counts}")
        for name in COUNTS[1:]:
            if counts[name] < before[name]:
                self.outcome.faults.append(f"{name} went from {before[name]} to {counts[name]}")
        if counts["processing"] > before["processing"]:
            self.outcome.faults.append("processing grew")

    async def until(self, batch: dict[str, Any], done: int) -> dict[str, Any]:
        """Looks until so many items have ended."""
        counts = batch["counts"]
        while counts["total"] - counts["processing"] < done:
            await asyncio.sleep(LOOK)
            batch = await self.look(batch["id"])
            self.check(counts, batch["counts"])
            counts = batch["counts"]
        return batch


async def measured(dsn: str, goals: int) -> Outcome:
    """Runs a batch of so many goals, and a smaller one that is cancelled in the middle."""
    outcome = Outcome(goals)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    async with (
        provider(outcome) as port,
        served(dsn, port) as (url, pid),
        aiohttp.ClientSession(url, timeout=timeout) as http,
    ):
        load = Load(http, pid, outcome)
        warm = await load.until(await load.send(20), 21)
        await load.results(warm["id"])
        load.base = resident(pid)
        await _whole(load, goals)
        await _cancelled(load, max(100, goals // 10))
    return outcome


async def _whole(load: Load, goals: int) -> None:
    outcome, begun = load.outcome, time.monotonic()
    batch = await load.send(goals)
    outcome.accepted_in = time.monotonic() - begun
    begun = time.monotonic()
    middle = await load.until(batch, goals // 2)
    early = await load.results(batch["id"])
    outcome.early = len(early)
    least = middle["counts"]["total"] - middle["counts"]["processing"]
    if not least <= len(early) <= goals:
        outcome.faults.append(f"{len(early)} early results, at least {least} were there")
    ended = await load.until(middle, goals + 1)
    outcome.seconds = time.monotonic() - begun
    if ended["status"] != "ended":
        outcome.faults.append(f"the batch is {ended['status']}")
    begun = time.monotonic()
    lines = await load.results(batch["id"])
    outcome.read_in = time.monotonic() - begun
    for line in lines:
        outcome.statuses[line["status"]] = outcome.statuses.get(line["status"], 0) + 1
    ids = [line["custom_id"] for line in lines]
    if sorted(filter(None, ids)) != sorted(f"c{number}" for number in range(goals)) or len(ids) != goals + 1:
        outcome.faults.append("the results are not one for each line")
    bad = [line["line"] for line in lines if line["status"] != "succeeded"]
    if bad != [goals // 2 + 1]:
        outcome.faults.append(f"the lines {bad[:10]} did not succeed")
    if any(line["status"] == "succeeded" and not line["plan"]["steps"] for line in lines):
        outcome.faults.append("a plan has no steps")


async def _cancelled(load: Load, goals: int) -> None:
    outcome = load.outcome
    batch = await load.until(await load.send(goals), goals // 4)
    begun = time.monotonic()
    async with load.http.post(f"/v1/batches/{batch['id']}/cancel") as answer:
        batch = await answer.json()
    batch = await load.until(batch, goals + 1)
    outcome.cancelled_in, outcome.cancelled = time.monotonic() - begun, batch["counts"]
    told = [line["status"] for line in await load.results(batch["id"])]
    if any(told.count(name) != batch["counts"][name] for name in COUNTS[1:]):
        outcome.faults.append("after a cancel the results are not what the counts say")


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def served(dsn: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """`dagwright serve` with one worker; its address and process."""
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "DAGWRIGHT_DATABASE_URL": dsn, "DAGWRIGHT_LOG_LEVEL": "error",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "k", "DAGWRIGHT_MODEL": "fake-model",
    }  # fmt: skip
    words = ("-m", "executor.cli", "serve", "--port", "0", "--workers", "1", "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=env, cwd="/", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        lines = b""
        while not lines.rstrip().endswith(b"}"):  # one object over some lines
            line = await process.stdout.readline()
            assert line, "the service did not start"
            lines += line
        told = json.loads(lines)
        yield told["url"], told["pid"]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


@asynccontextmanager
async def provider(outcome: Outcome) -> AsyncIterator[int]:
    """The provider in a process of its own; its port."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.batch_load", str(LIMIT), str(LATENCY), cwd=ROOT, stdin=pipe, stdout=pipe
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        said, _ = await process.communicate(b"")
        outcome.provider = json.loads(said)


async def _provide(limit: int, latency: float) -> None:
    logging.getLogger("aiohttp.server").setLevel(
        logging.CRITICAL
    )  # of a call that was cancelled nobody takes the reply
    window = Window(limit, 1.0, sliding=True)
    refused = 0

    def script(view: View) -> Reply:
        nonlocal refused
        wait = window.refused(time.monotonic())
        if wait is not None:
            refused += 1
            return Reply(status=429, error="slow down", headers={"retry-after-ms": str(int(1_000 * wait) + 1)})
        return replace(as_reply(brain(view)), delay=latency)

    known_parameters()  # imports the SDK: not while the first calls wait for their replies
    async with ProviderFake(script) as fake:
        print(fake.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        rules = [refusal.rule.name for refusal in fake.refusals]
        seen = {"answered": fake.billed.calls, "refused": refused, "most_open": fake.most_open, "rules": rules}
        print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(_provide(int(sys.argv[1]), float(sys.argv[2])))
