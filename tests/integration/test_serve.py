"""`dagwright serve` as a process of its own: server, workers and live pieces together, over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import ProviderFake, View, brain
from tests.fakes.brain import SYNTHESIS
from tests.support.command import NO_LOCAL_SERVERS, command
from tests.support.processes import Running, alive, children, running, until, worker_env


async def address(run: Running) -> str:
    """The address that it has printed."""
    await run.until(lambda: "\n" in run.out)
    found = re.fullmatch(r"dagwright serves on (http://127\.0\.0\.1:\d+)\n", run.out)
    assert found is not None, run.out
    return found[1]


async def asked(url: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of a request."""

    def ask() -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    return await asyncio.to_thread(ask)


async def test_it_prints_its_address_runs_a_job_and_stops_in_time(
    tmp_path: Path, database_url: str, provider_fake: ProviderFake
) -> None:
    env = worker_env(database_url, provider_fake)
    async with running("serve", "--port", "0", home=tmp_path, env=env) as run:
        url = await address(run)
        assert await asked(f"{url}/healthz") == (200, {"status": "ok"})
        status, job = await asked(f"{url}/v1/jobs?wait=30", {"goal": "Work out six times seven."})
        assert (status, job["status"], job["answer"]) == (202, "completed", SYNTHESIS), run.raw
        pids = children(run.process.pid)
        assert len(pids) == 1  # one worker for two cores, and the database is given
        began = time.monotonic()
        assert await run.end() == 0
        assert time.monotonic() - began < 10
        assert not any(alive(pid) for pid in pids)
    assert "Traceback" not in run.raw


async def test_open_streams_end_at_its_stop_and_the_job_is_handed_over(
    tmp_path: Path, database_url: str, provider_fake: ProviderFake
) -> None:
    opened, waiting = asyncio.Event(), asyncio.Event()

    async def gate(view: View) -> Any:
        if view.tools and view.forced is None:
            waiting.set()
            await opened.wait()
        return brain(view)

    provider_fake.script = gate
    env = worker_env(database_url, provider_fake)
    async with running("serve", "--port", "0", home=tmp_path, env=env) as run:
        url = await address(run)
        _, job = await asked(f"{url}/v1/jobs", {"goal": "Work out six times seven.", "mode": "dag"})
        await run.until(waiting.is_set)
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /v1/jobs/{job['id']}/events HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        async with asyncio.timeout(30):
            await reader.readuntil(b"event: step")
            began = time.monotonic()
            run.process.send_signal(signal.SIGTERM)
            rest = await reader.read()
        assert b"event: bye" in rest
        assert await run.process.wait() == 0
        assert time.monotonic() - began < 10
        writer.close()


async def test_whatever_is_open_ends_at_its_stop(
    tmp_path: Path, database_url: str, provider_fake: ProviderFake
) -> None:
    """A reply that waits, a chat that streams, an upload that stands still, a reader that reads nothing, a connection
    kept for later: none of them makes the stop longer than ten seconds, and none is left without a word that can have
    one."""
    began_work = asyncio.Event()

    async def hang(view: View) -> Any:
        began_work.set()
        await asyncio.Event().wait()

    provider_fake.script = hang
    env = worker_env(database_url, provider_fake)
    async with running("serve", "--port", "0", home=tmp_path, env=env) as run:
        port = int((await address(run)).rpartition(":")[2])

        async def sent(method: str, path: str, body: bytes = b"", *, more: int = 0, kind: str = "json") -> Any:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/{kind}\r\n"
            writer.write(f"{head}Content-Length: {len(body) + more}\r\n\r\n".encode() + body)
            return reader, writer

        goal = json.dumps({"goal": "Work out six times seven.", "mode": "dag"}).encode()
        talk = json.dumps(
            {"model": "dagwright", "messages": [{"role": "user", "content": "x"}], "stream": True}
        ).encode()
        wait = await sent("POST", "/v1/jobs?wait=300", goal)
        chat = await sent("POST", "/v1/chat/completions", talk)
        upload = await sent("POST", "/v1/batches?mode=plan", goal + b"\n", more=1_000, kind="jsonl")
        kept = await sent("GET", "/healthz")
        async with asyncio.timeout(60):
            await chat[0].readuntil(b"chat.completion.chunk")
            await kept[0].readuntil(b'{"status":"ok"}')
            await began_work.wait()
        began = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            waited, chatted, _, _ = [await reader.read() for reader, _ in (wait, chat, upload, kept)]
        assert await run.process.wait() == 0
        assert time.monotonic() - began < 10
        assert waited.startswith(b"HTTP/1.1 202 ")
        assert json.loads(waited.partition(b"\r\n\r\n")[2])["ended_at"] is None
        assert b"server_stopping" in chatted
        for _, writer in (wait, chat, upload, kept):
            writer.close()


async def test_pieces_of_an_answer_come_through_ahead_of_their_storage(
    tmp_path: Path, database_url: str, provider_fake: ProviderFake
) -> None:
    long = " ".join(f"word{number}" for number in range(5_000))
    provider_fake.script = lambda view: long if view.stream else brain(view)
    env = worker_env(database_url, provider_fake)
    async with running("serve", "--port", "0", home=tmp_path, env=env) as run:
        url = await address(run)
        _, job = await asked(f"{url}/v1/jobs", {"goal": "Work out six times seven.", "mode": "dag"})
        stream = await asyncio.to_thread(read_all, f"{url}/v1/jobs/{job['id']}/events")
    blocks = [block.split("\n") for block in stream.split("\n\n") if block.startswith("event: answer\n")]
    pieces = [(lines, json.loads(line[6:])) for lines in blocks for line in lines if line.startswith("data: ")]
    assert [piece for lines, piece in pieces if "content" in piece and not any(one.startswith("id:") for one in lines)]
    text = ""
    for _, piece in pieces:  # a reader puts live and stored pieces together by their places
        if "content" in piece:
            offset, content = piece["offset"], piece["content"]
            text = text[:offset] + content + text[offset + len(content) :]
    assert text == long


def read_all(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return str(reply.read().decode())


@pytest.mark.heavy
async def test_a_killed_worker_ends_no_stream(tmp_path: Path, database_url: str, provider_fake: ProviderFake) -> None:
    waiting = asyncio.Event()

    async def gate(view: View) -> Any:
        if view.tools and view.forced is None and not waiting.is_set():
            waiting.set()
            await asyncio.Event().wait()
        return brain(view)

    provider_fake.script = gate
    env = worker_env(database_url, provider_fake)
    async with running("serve", "--port", "0", home=tmp_path, env=env) as run:
        url = await address(run)
        _, job = await asked(f"{url}/v1/jobs", {"goal": "Work out six times seven.", "mode": "dag"})
        reading = asyncio.create_task(asyncio.to_thread(read_all, f"{url}/v1/jobs/{job['id']}/events"))
        await run.until(waiting.is_set)
        (child,) = children(run.process.pid)
        os.kill(child, signal.SIGKILL)
        stream = await reading
        assert "event: done" in stream, stream
        _, job = await asked(f"{url}/v1/jobs/{job['id']}")
        assert job["ended_at"] is not None


@pytest.mark.heavy
async def test_workers_end_when_the_server_is_killed(
    tmp_path: Path, database_url: str, provider_fake: ProviderFake
) -> None:
    async with running("serve", "--port", "0", home=tmp_path, env=worker_env(database_url, provider_fake)) as run:
        await address(run)
        await run.until(lambda: run.logged("worker_ready"))
        pids = children(run.process.pid)
        await run.end(signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids))


async def test_elsewhere_than_on_this_machine_it_listens_only_with_keys(
    tmp_path: Path, database_url: str, provider_fake: ProviderFake
) -> None:
    env = worker_env(database_url, provider_fake)
    done = await command("serve", "--host", "0.0.0.0", "--port", "0", home=tmp_path, env=env)
    assert (done.code, done.out) == (2, "")
    assert "without API keys" in done.err
    assert (await command("keys", "create", "mine", "--json", home=tmp_path, env=env)).code == 0
    async with running("serve", "--host", "0.0.0.0", "--port", "0", home=tmp_path, env=env) as run:
        url = await address(run)
        assert (await asked(f"{url}/healthz"))[0] == 200
        assert (await asked(f"{url}/v1/jobs"))[0] == 401


async def test_a_port_that_is_taken_is_said(tmp_path: Path, database_url: str, provider_fake: ProviderFake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = await command("serve", "--port", port, home=tmp_path, env=worker_env(database_url, provider_fake))
    assert (done.code, done.out) == (2, "")
    assert f"can't listen on 127.0.0.1, port {port}" in done.err


async def test_without_a_model_it_runs_and_says_so(tmp_path: Path, database_url: str) -> None:
    start = NO_LOCAL_SERVERS
    async with running(
        "serve", "--port", "0", "--json", home=tmp_path, env={"DATABASE_URL": database_url}, start=start
    ) as run:
        await run.until(lambda: "}" in run.out)
        url = json.loads(run.out)["url"]
        assert "refuses jobs until there is one" in run.raw
        assert children(run.process.pid) == []
        status, problem = await asked(f"{url}/v1/jobs", {"goal": "Work out six times seven."})
        assert status in (422, 503), problem


async def test_the_live_socket_is_the_users_own(tmp_path: Path, database_url: str, provider_fake: ProviderFake) -> None:
    env = {**worker_env(database_url, provider_fake), "TMPDIR": str(tmp_path)}
    async with running("serve", "--port", "0", home=tmp_path, env=env) as run:
        await address(run)
        (folder,) = [tmp_path / name for name in os.listdir(tmp_path) if name.startswith("dagwright-")]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / "live").is_socket()
        await run.end()
    assert [name for name in os.listdir(tmp_path) if name.startswith("dagwright-")] == []
