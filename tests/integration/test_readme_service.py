"""The README's section about the service is true: its lines, as they stand there, against a service that was started by
the command."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes import ProviderFake
from tests.fakes.brain import SYNTHESIS
from tests.support.command import ended, environment, started

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODELS = """
[models.small]
provider = "openai_chat"
model = "fake-model"
base_url = "{url}"
roles = ["general"]
"""
HOOKS = """
[[hooks]]
use = "approval"
tools = ["calculate"]
"""
DEFAULT = "URL=http://127.0.0.1:8080"
PATIENCE = 60.0


def lines() -> list[str]:
    """The commands of the section, comments left out."""
    block = re.search(r"\n## The service\n.*?```sh\n(.*?)```", README, re.DOTALL)
    assert block is not None
    return [line for line in block[1].splitlines() if line and not line.startswith("#")]


def line_with(text: str) -> str:
    (found,) = (line for line in lines() if text in line)
    return found


class Shell:
    """One shell, in which each line finds what the lines before it have set."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def run(self, line: str) -> str:
        """What a line prints; it has to succeed."""
        self._in.write(f"{line}\nprintf '\\n--%s--\\n' $?\n".encode())
        async with asyncio.timeout(PATIENCE):
            told = (await self._out.readuntil(b"--\n")).decode()
        out, _, code = told.rstrip("-\n").rpartition("\n--")
        assert code == "0", told
        return out

    async def json(self, line: str) -> Any:
        return json.loads(await self.run(line))


@asynccontextmanager
async def served(home: Path, dsn: str, fake: ProviderFake) -> AsyncIterator[str]:
    """A service that `dagwright serve` has started; its address."""
    (home / "models.toml").write_text(MODELS.format(url=fake.openai_url))
    (home / "dagwright.toml").write_text(HOOKS)
    env = {"DAGWRIGHT_DATABASE_URL": dsn, "DAGWRIGHT_WORKERS": "1"}
    process = await started("serve", "--port", "0", home=home, env=env)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = (await process.stdout.readline()).decode().strip()
        assert line, (await process.stderr.read()).decode() if process.stderr else ""
        said, _, url = line.rpartition(" ")
        assert f"{said} {DEFAULT.removeprefix('URL=')}" in README
        async with asyncio.TaskGroup() as group:
            drain = group.create_task(_drained(process.stderr))
            yield url
            process.terminate()
            async with asyncio.timeout(PATIENCE):
                assert await process.wait() == 0
            drain.cancel()
    finally:
        await ended(process)


async def _drained(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(2**16):
        pass


@asynccontextmanager
async def shell(home: Path) -> AsyncIterator[Shell]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "bash", cwd=home, env=environment(home), stdin=pipe, stdout=pipe, limit=2**24, start_new_session=True
    )
    try:
        yield Shell(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it runs holds its pipes
        await process.wait()


async def until(get: Callable[[], Awaitable[Any]], right: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not right(found := await get()):
            await asyncio.sleep(0.05)
    return found


async def approving(http: httpx2.AsyncClient) -> None:
    """Somebody who approves whatever waits, beside the lines."""
    while True:
        for job in (await http.get("/v1/jobs", params={"status": ["running", "needs_decision"]})).json()["data"]:
            for call in (await http.get(f"/v1/jobs/{job['id']}")).json().get("approvals", ()):
                await http.post(f"/v1/jobs/{job['id']}/approvals/{call['call_id']}", json={"approve": True})
        await asyncio.sleep(0.1)


@pytest.mark.timeout(240)
async def test_the_lines_do_what_they_say(tmp_path: Path, database_url: str, provider_fake: ProviderFake) -> None:
    async with (
        served(tmp_path, database_url, provider_fake) as url,
        shell(tmp_path) as sh,
        httpx2.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await _follow(Lines(sh, http, url))


class Lines:
    """The lines on their way: each is run once, in the order in which they stand."""

    def __init__(self, sh: Shell, http: httpx2.AsyncClient, url: str) -> None:
        self.sh, self.http, self.url = sh, http, url
        self.left = lines()

    def next(self, text: str) -> str:
        """The next line, which holds a text."""
        line = self.left.pop(0)
        assert text in line
        return line.replace(DEFAULT, f"URL={self.url}")

    async def waiting(self) -> tuple[str, str]:
        """Waits for a call of the shell's job to wait; the job's id and the call's."""
        job_id = (await self.sh.run("echo $JOB")).strip()
        job = await until(lambda: self.job(job_id), lambda job: bool(job["approvals"]))
        return job_id, job["approvals"][0]["call_id"]

    async def job(self, job_id: str) -> Any:
        return (await self.http.get(f"/v1/jobs/{job_id}")).json()


async def _follow(here: Lines) -> None:
    sh, submit = here.sh, line_with("JOB=")
    await sh.run(here.next(DEFAULT))
    await sh.run(here.next("JOB="))
    job_id, call_id = await here.waiting()
    job = await sh.json(here.next("/v1/jobs/$JOB"))
    assert (job["id"], job["status"], job["mode"]) == (job_id, "needs_decision", "dag")
    await sh.run(here.next("CALL="))
    assert (await sh.run("echo $CALL")).strip() == call_id
    assert (await sh.json(here.next("/approvals/$CALL")))["sent"] == "decide"
    assert (await sh.json(here.next("/messages")))["sent"] == "message"
    async with asyncio.TaskGroup() as group:
        human = group.create_task(approving(here.http))
        events = await sh.run(here.next("/events"))
        await _batch(here)
        await _ends(here, submit, human)
        chat = await sh.run(here.next("/v1/chat/completions"))
        human.cancel()
    assert "event: inject" in events
    assert "And of 45500." in events
    assert events.rstrip().endswith("the job has ended")
    done = json.loads(re.findall(r"event: done\ndata: (.*)", events)[0])
    assert (done["status"], done["answer"]) == ("completed", SYNTHESIS)
    assert chat.rstrip().endswith("data: [DONE]")
    assert '"reasoning_content":"' in chat
    assert here.left == []


async def _batch(here: Lines) -> None:
    await here.sh.run(here.next("> goals.jsonl"))
    await here.sh.run("""printf '%s\\n' '{"goal": "no id"}' >> goals.jsonl""")
    await here.sh.run(here.next("BATCH="))
    batch = await here.sh.json(here.next("/v1/batches/$BATCH"))
    assert (batch["mode"], batch["counts"]["total"]) == ("plan", 3)
    status = f"/v1/batches/{batch['id']}"
    await until(lambda: _data(here.http, status), lambda batch: batch["status"] == "ended")
    results = [json.loads(line) for line in (await here.sh.run(here.next("/results"))).splitlines() if line]
    by_id = {result["custom_id"]: result for result in results}
    assert [by_id[name]["status"] for name in ("a1", "a2")] == ["succeeded", "succeeded"]
    assert len(by_id["a1"]["plan"]["steps"]) == 4
    assert sorted(result["status"] for result in results) == ["errored", "succeeded", "succeeded"]


async def _ends(here: Lines, submit: str, human: asyncio.Task[None]) -> None:
    """Cancelling an ended job changes nothing; one that runs ends."""
    cancel = here.next("$JOB/cancel")
    assert (await here.sh.json(cancel))["status"] == "completed"
    await here.sh.run(submit)
    assert (await here.sh.json(cancel))["cancel_requested"]
    job_id = (await here.sh.run("echo $JOB")).strip()
    job = await until(lambda: here.job(job_id), lambda job: job["ended_at"] is not None)
    assert job["status"] == "cancelled"
    assert (await here.sh.json(here.next("$BATCH/cancel")))["status"] == "ended"
    assert not human.done()


async def _data(http: httpx2.AsyncClient, path: str) -> Any:
    return (await http.get(path)).json()
