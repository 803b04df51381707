"""A world of real processes in which parts are killed: the service, workers, PostgreSQL; around them users and a model.

Each part is kept running as a service manager would: it is started again whenever it ends. Every choice comes from the
seed; what the processes make of it depends on the moment.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.fakes import ProviderFake
from tests.support.chaos_process import EFFECTS, PAUSE, effects
from tests.support.chaos_readers import Reader
from tests.support.chaos_work import MORE, Model, Work
from tests.support.command import environment
from tests.support.own_postgres import OwnPostgres, own_postgres
from tests.support.processes import alive, children, worker_env

START = ("-m", "tests.support.chaos_process")
PATIENCE = 90.0
"""Seconds that any single wait may take."""


@dataclass(frozen=True)
class Blow:
    """A part that was struck: what kind, when (seconds since the epoch), how many requests were under way; and the
    jobs that were running, each with its last seq. `recovered`: seconds until all of these had gone on or ended,
    `last`: those of them that were the last."""

    kind: str
    at: float
    open: int
    running: dict[str, int]
    recovered: list[float] = field(default_factory=list)
    last: list[str] = field(default_factory=list)


class Part:
    """A command that is started again whenever it ends. `said` is the file of all that it and its children wrote."""

    def __init__(self, name: str, words: Sequence[str], env: dict[str, str], home: Path, before: Sequence[str] = ()):
        self.name, self.words, self.env, self.home, self.before = name, list(words), env, home, tuple(before)
        self.said = home / f"{name}.log"
        self.process: asyncio.subprocess.Process | None = None
        self.ends: list[tuple[float, int]] = []
        self.wanted = True
        self.seen: set[int] = set()
        """All processes that were ever found below it."""

    async def keep(self) -> None:
        """Runs it until `stop`."""
        while self.wanted:
            with self.said.open("ab") as said:
                self.process = await asyncio.create_subprocess_exec(
                    *self.before, sys.executable, *START, *self.words, cwd=self.home,
                    env=environment(self.home, **self.env), stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said,
                )  # fmt: skip
            code = await self.process.wait()
            self.ends.append((time.time(), code))
            await asyncio.sleep(0.2)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def below(self) -> list[int]:
        """Its worker processes."""
        found = children(self.pid) if self.lives else []
        self.seen |= set(found)
        return found

    def text(self) -> str:
        return self.said.read_text(errors="replace") if self.said.exists() else ""

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it for good."""
        self.wanted = False
        self.below()
        if self.lives:
            self._send(how)
            with suppress(TimeoutError):
                async with asyncio.timeout(20):
                    assert self.process is not None
                    await self.process.wait()
        if self.lives:
            self._send(signal.SIGKILL)
        for pid in self.seen:
            if alive(pid) and _ours(pid):
                os.kill(pid, signal.SIGKILL)

    def _send(self, how: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            assert self.process is not None
            self.process.send_signal(how)


def _ours(pid: int) -> bool:
    """Whether it is a process of this module: numbers are given again."""
    with suppress(OSError):
        return b"chaos_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


class World:
    """Everything: `postgres`, `fake` (the provider) with its `model`, the `server` and the `hosts` (workers alone),
    `works` that were begun, their `readers`."""

    def __init__(self, home: Path, seed: int, postgres: OwnPostgres, fake: ProviderFake, settings: dict[str, Any]):
        self.home, self.seed, self.postgres, self.fake = home, seed, postgres, fake
        self.random = random.Random(seed)
        self.model = Model(seed)
        fake.script = self.model
        self.effects_file = home / "effects"
        pause = settings.pop("pause", 0.3)
        self.env = {
            **worker_env(postgres.dsn, fake, **settings), EFFECTS: str(self.effects_file), PAUSE: str(pause),
        }  # fmt: skip
        self.url = ""
        self.server: Part | None = None
        self.hosts: list[Part] = []
        self.works: list[Work] = []
        self.readers: dict[str, Reader] = {}
        self.blows: list[Blow] = []
        self.returns: list[float] = []
        """When somebody came back who had been away: what it had begun before may arrive only now."""
        self.deciding, self.sparing = True, True
        """Whether calls that wait are decided; and whether every second one of unknown outcome is left for later."""
        self.undecided: dict[tuple[str, str], str] = {}
        """Calls that nobody decides for the time being, by job and id, with the status they wait in."""
        self.decisions: list[tuple[str, str, str, int]] = []
        """Job, call, the status it waited in, the reply's status."""
        self._tasks: asyncio.TaskGroup | None = None
        self.http = httpx2.AsyncClient(timeout=30, limits=httpx2.Limits(max_connections=None))

    # Parts

    async def start_server(self, workers: int = 1, **more: str) -> None:
        """The service with its workers; returns when it answers."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = ["serve", "--port", str(port), "--workers", str(workers)]
        self.server = self._kept(Part("serve", words, {**self.env, **more}, self.home))
        await self.serves()

    async def start_host(self, workers: int = 1, *, before: Sequence[str] = (), **more: str) -> Part:
        """Workers without a server, as on another host."""
        name = f"host{len(self.hosts) + 1}"
        home = self.home / name
        home.mkdir()
        part = self._kept(Part(name, ["worker", "--workers", str(workers)], {**self.env, **more}, home, before))
        self.hosts.append(part)
        await until(lambda: part.text().count('"worker_ready"') >= workers, f"{name} has no worker: {part.text()}")
        return part

    def _kept(self, part: Part) -> Part:
        self._in_group(part.keep())
        return part

    def _in_group(self, coroutine: Any) -> asyncio.Task[Any]:
        assert self._tasks is not None
        return self._tasks.create_task(coroutine)

    @property
    def parts(self) -> list[Part]:
        return [*([self.server] if self.server is not None else []), *self.hosts]

    def workers(self) -> list[int]:
        """All worker processes that live."""
        return [pid for part in self.parts for pid in part.below()]

    async def serves(self) -> None:
        """Returns when the service answers."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(httpx2.HTTPError):
                    if (await self.http.get(f"{self.url}/healthz", timeout=5)).status_code == 200:
                        return
                await asyncio.sleep(0.05)

    # Users

    async def begin(self, work: Work) -> Work:
        """Has the service do a job, and watches it."""
        self.model.works[work.tag] = work
        reply = await self.asked("POST", "/v1/jobs", work.request(), {"Idempotency-Key": f"{self.seed}-{work.tag}"})
        assert reply.status_code == 202, reply.text
        self._begun(work, reply.json()["id"])
        return work

    async def begin_batch(self, items: list[Work]) -> str:
        """Has the service do a batch of jobs; the batch's id."""
        for work in items:
            self.model.works[work.tag] = work
        requests = [{"custom_id": work.tag, **work.request()} for work in items]
        key = {"Idempotency-Key": f"{self.seed}-batch-{items[0].tag}"}
        reply = await self.asked("POST", "/v1/batches", {"mode": "run", "requests": requests}, key)
        assert reply.status_code == 202, reply.text
        batch = str(reply.json()["id"])
        ids = {row["custom_id"]: row["id"] for row in await self.sql(
            "select custom_id, id from dw_jobs where batch = $1", batch)}  # fmt: skip
        for work in items:
            work.batch = batch
            self._begun(work, ids[work.tag])
        return batch

    def _begun(self, work: Work, job_id: str) -> None:
        work.job_id = job_id
        self.works.append(work)
        reader = self.readers[work.tag] = Reader(self.http, self.url, job_id, lambda event: self._seen(work, event))
        self._in_group(reader.follow())
        if work.extra is not None:
            self._in_group(self._say_more(work, self.random.random() * 3))
        if work.to_cancel:
            self._in_group(self._cancel(work, self.random.random() * 3))

    def _seen(self, work: Work, event: Any) -> None:
        """Decides what waits for a human, a moment later; of calls whose outcome is unknown only every second one."""
        data = event.data
        if event.channel != "approval" or data["status"] not in ("waiting", "uncertain"):
            return
        uncertain = data["status"] == "uncertain"
        self.undecided[work.job_id, data["call_id"]] = data["status"]
        if self.deciding and not (uncertain and self.sparing and self.random.random() < 0.5):
            self._in_group(self._decide_later(work.job_id, data["call_id"], self.random.random() * 1.5))

    async def _decide_later(self, job_id: str, call_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.decide(job_id, call_id)

    async def decide(self, job_id: str, call_id: str) -> int:
        """Approves a call; of one whose outcome is unknown says what became of it. The reply's status; 0 where it
        does not wait any more."""
        status = self.undecided.pop((job_id, call_id), None)
        if status is None:
            return 0
        done = any(line["key"] in (call_id, call_id.removeprefix("uncertain:")) for line in self.effects())
        said = {"approve": done if status == "uncertain" else True, "reason": "looked up"}
        reply = await self.asked("POST", f"/v1/jobs/{job_id}/approvals/{call_id}", said)
        self.decisions.append((job_id, call_id, status, reply.status_code))
        return int(reply.status_code)

    async def _say_more(self, work: Work, seconds: float) -> None:
        await asyncio.sleep(seconds)
        reply = await self.asked("POST", f"/v1/jobs/{work.job_id}/messages", {"text": MORE}, once=True)
        work.said = reply is not None and reply.status_code == 202

    async def _cancel(self, work: Work, seconds: float) -> None:
        await asyncio.sleep(seconds)
        work.cancelled = True
        await self.asked("POST", f"/v1/jobs/{work.job_id}/cancel", {})

    async def asked(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, *, once: bool = False
    ) -> Any:
        """The service's answer, however often it must be asked; `once`: None where it may have taken it or not."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    reply = await self.http.request(method, self.url + path, json=body, headers=headers)
                except httpx2.ConnectError:
                    reply = None
                except httpx2.HTTPError:
                    if once:
                        return None
                    reply = None
                if reply is not None and reply.status_code < 500:
                    return reply
                await asyncio.sleep(0.2)

    async def sql(self, text: str, *args: Any) -> list[Any]:
        return await self.postgres.sql(text, *args)

    def effects(self) -> list[dict[str, Any]]:
        return effects(self.effects_file)

    # Blows

    async def strike(self, kind: str) -> Blow:
        """Kills something with -9: worker, server, host or postgres; or everything at once. The rest happens by
        itself, but that the database is started again."""
        rows = await self.sql("select id, seq from dw_jobs where owner is not null and ended_at is null")
        blow = Blow(kind, time.time(), self.fake.open, {row["id"]: row["seq"] for row in rows})
        if kind in ("worker", "everything"):
            found = sorted(self.workers())
            for pid in found if kind == "everything" else found and [self.random.choice(found)]:
                _kill(pid)
        struck = {"server": self.parts[:1], "host": [self.random.choice(self.hosts or self.parts)]}
        for part in struck.get(kind, self.parts if kind == "everything" else []):
            part.below()
            if part.lives:
                _kill(part.pid)
        if kind in ("postgres", "everything"):
            self.postgres.kill()
            await asyncio.sleep(self.random.random() * 1.5)
            await self.postgres.start()
        self.blows.append(blow)
        self._in_group(self._recovery(blow))
        return blow

    async def _recovery(self, blow: Blow) -> None:
        """Notes when all jobs that were running then have written something since, or have no owner any more."""
        while blow.running:
            rows = await self.sql("select id, seq, owner is null as free from dw_jobs where id = any ($1::text[])",
                                  list(blow.running))  # fmt: skip
            left = [row["id"] for row in rows if not (row["free"] or row["seq"] > blow.running[row["id"]])]
            if not left:
                break
            blow.last[:] = left
            await asyncio.sleep(0.25)
        blow.recovered.append(time.time() - blow.at)

    async def all_rest(self, seconds: float = 100.0, *, decided: bool = False) -> list[Any]:
        """Waits until no job is on its way: each has ended or, unless all is `decided`, waits for a human. The rows of
        those that are not."""
        query = (
            "select id, status, seq, owner, goal from dw_jobs where ended_at is null "
            "and ($1 or not (status = 'needs_decision' and owner is null))"
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self.sql(query, decided) or (self.deciding and self._still_deciding()):
                    await asyncio.sleep(0.3)
        return await self.sql(query, decided)

    def _still_deciding(self) -> bool:
        return any(status == "waiting" for status in self.undecided.values())

    async def close(self) -> None:
        """Ends all parts."""
        for reader in self.readers.values():
            reader.stop()
        async with asyncio.TaskGroup() as group:
            for part in self.parts:
                group.create_task(part.stop())

    def logged(self, pattern: str) -> int:
        """How often something was logged by any part."""
        return sum(len(re.findall(pattern, part.text())) for part in self.parts)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def until(condition: Any, why: Any = "in vain", seconds: float = PATIENCE) -> None:
    """Waits until something holds."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = condition()
                if await found if hasattr(found, "__await__") else found:
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(why() if callable(why) else why) from None


@asynccontextmanager
async def world(home: Path, seed: int, **settings: Any) -> AsyncIterator[World]:
    """A world without processes yet but the database and the provider; afterwards nothing of it runs."""
    async with own_postgres() as postgres, ProviderFake() as fake:
        made = World(home, seed, postgres, fake, settings)
        async with made.http, asyncio.TaskGroup() as tasks:
            made._tasks = tasks
            try:
                yield made
            finally:
                await made.close()
