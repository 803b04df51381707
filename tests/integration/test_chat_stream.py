"""A chat stream against a worker that does what the test says: pieces ahead, a void answer, silence, a stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from executor.log.stored import StoredLog
from executor.service.chat import stream as chat_stream
from executor.service.chat.answer import VOID
from executor.store.fold import end_cancelled
from tests.support.service import Service, running

BODY = {"model": "dagwright", "messages": [{"role": "user", "content": "Do it."}], "stream": True}
PATIENCE = 30.0
USAGE = {"input_tokens": 3, "output_tokens": 2, "cached_tokens": 1, "reasoning_tokens": 1, "calls": 1}
DONE = {
    "answer": "the whole answer", "iterations": 1, "elapsed": 0.1, "cost": None, "status": "completed", "error": None,
    "error_code": None, "usage": {**USAGE, "cost_usd": None, "partial": True, "unpriced_calls": 1},
}  # fmt: skip


@dataclass
class Chat:
    """One streaming request: its lines as they come, its job, and the log of whoever owns that."""

    service: Service
    lines: AsyncIterator[str]
    log: StoredLog
    seen: list[dict[str, Any]]

    async def until(self, text: str) -> None:
        """Reads on until the answer so far holds a text."""
        async with asyncio.timeout(PATIENCE):
            while text not in self.content:
                self.seen.append(await self._next())

    async def rest(self) -> str:
        """Reads to the end; the stream's last line."""
        async with asyncio.timeout(PATIENCE):
            last = ""
            async for line in self.lines:
                last = line or last
                if line.startswith("data: {"):
                    self.seen.append(json.loads(line[6:]))
        return last

    async def _next(self) -> dict[str, Any]:
        async for line in self.lines:
            if line.startswith("data: {"):
                found: dict[str, Any] = json.loads(line[6:])
                return found
        raise AssertionError("the stream has ended")

    @property
    def content(self) -> str:
        return self._joined("content")

    @property
    def reasoning(self) -> str:
        return self._joined("reasoning_content")

    def _joined(self, field: str) -> str:
        return "".join(c["delta"].get(field, "") for chunk in self.seen for c in chunk.get("choices", ()))

    def say(self, text: str) -> None:
        """A piece of the answer, by the job's owner."""
        self.log.append("answer", {"status": "delta", "content": text})


@asynccontextmanager
async def chatting(dsn: str) -> AsyncIterator[Chat]:
    """A stream that was begun, and its job, which the test owns."""
    async with running(dsn) as service, service.http.stream("POST", "/v1/chat/completions", json=BODY) as response:
        assert response.status_code == 200
        job_id, owner = response.headers["x-dagwright-job"], uuid4()
        assert await service.database.row("log.claim", job_id, owner) is not None
        log = StoredLog(job_id, service.database, owner, live=service.app.state.hub.on_piece)
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(log.serve())
            try:
                yield Chat(service, response.aiter_lines(), log, [])
            finally:
                writer.cancel()


async def test_pieces_are_sent_before_they_are_stored(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredLog, "merge_seconds", 3600.0)
    async with chatting(database_url) as chat:
        chat.log.append("answer", {"status": "start"})
        for word in ("the ", "whole ", "answer"):
            chat.say(word)
            await chat.until(word)
        stored = await chat.service.database.rows("log.read_events", chat.log.job_id, 0, False, 100)
        assert "whole" not in str([row["payload"] for row in stored])
        chat.log.append("answer", {"status": "done"})
        chat.log.append("done", DONE)
        await chat.log.barrier()
        assert await chat.rest() == "data: [DONE]"
        assert chat.content == "the whole answer"


async def test_a_void_answer_is_said_to_be_void(database_url: str) -> None:
    async with chatting(database_url) as chat:
        chat.log.append("answer", {"status": "start"})
        chat.say("the wrong")
        await chat.until("the wrong")
        chat.log.append("answer", {"status": "reset"})
        chat.log.append("phase", {"phase": "replanning", "reasoning": "it fell short"})
        chat.log.append("answer", {"status": "start"})
        chat.say("the whole ")
        chat.say("answer")
        chat.log.append("answer", {"status": "done"})
        chat.log.append("done", DONE)
        await chat.log.barrier()
        assert await chat.rest() == "data: [DONE]"
        assert chat.content == f"the wrong{VOID}the whole answer"
        assert "replanning: it fell short\n" in chat.reasoning


async def test_an_answer_that_was_never_streamed_comes_with_the_end(database_url: str) -> None:
    async with chatting(database_url) as chat:
        chat.log.append("done", {**DONE, "status": "partial"})
        await chat.log.barrier()
        assert await chat.rest() == "data: [DONE]"
        assert chat.content == "the whole answer"
        last = chat.seen[-1]
        assert last["choices"][0]["finish_reason"] == "stop"
        assert last["dagwright"] == {
            "job": chat.log.job_id, "status": "partial", "calls": 1, "cost_usd": None, "partial": True,
        }  # fmt: skip


async def test_a_stream_is_never_silent_for_long(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chat_stream.SILENCE <= 10
    monkeypatch.setattr(chat_stream, "SILENCE", 0.05)
    async with chatting(database_url) as chat:
        while len(chat.seen) < 4:  # nothing happens, and yet something comes
            chat.seen.append(await chat._next())
        assert [chunk["choices"][0]["delta"] for chunk in chat.seen[1:]] == [{"reasoning_content": ""}] * 3
        chat.say("the ")
        await chat.until("the ")
        chat.seen.append(await chat._next())
        assert chat.seen[-1]["choices"][0]["delta"] == {"content": ""}  # a client that reads the answer goes on with it


async def test_who_waits_for_a_decision_is_told_how_to_decide(database_url: str) -> None:
    async with chatting(database_url) as chat:
        waiting = {"call_id": "c1", "tool_name": "send", "tool_args": {"to": "a"}, "status": "waiting", "reason": "r"}
        chat.log.append("approval", waiting, "s1")
        chat.log.append("approval", {**waiting, "call_id": "c2", "status": "uncertain"}, "s1")
        chat.log.append("done", DONE)
        await chat.log.barrier()
        await chat.rest()
        assert (
            f"s1: send waits for approval - r {{'to': 'a'}} (POST /v1/jobs/{chat.log.job_id}/approvals/c1 decides)"
            in (chat.reasoning)
        )
        assert f"what became of it - r (POST /v1/jobs/{chat.log.job_id}/approvals/c2 decides)" in chat.reasoning


async def test_a_server_that_stops_says_so_and_leaves_the_job_alone(database_url: str) -> None:
    async with chatting(database_url) as chat:
        chat.say("the ")
        await chat.until("the ")
        chat.service.app.state.hub.stop()
        last = json.loads((await chat.rest()).removeprefix("data: "))
        assert last["error"]["code"] == "server_stopping"
        assert f"GET /v1/jobs/{chat.log.job_id}" in last["error"]["message"]
        row = await chat.service.jobs.get("", chat.log.job_id)
        assert row is not None
        assert (row["status"], row["cancel"]) == ("running", False)


async def test_a_job_that_somebody_else_cancels_ends_the_stream_with_an_error(database_url: str) -> None:
    async with chatting(database_url) as chat, chat.service.client() as other:
        async with chat.service.database.connection() as connection:  # its worker has let go of it
            await connection.execute("update dw_jobs set owner = null")
        assert await end_cancelled(chat.service.database, chat.log.job_id) is not None
        last = json.loads((await chat.rest()).removeprefix("data: "))
        assert last["error"]["code"] == "job_cancelled"
        assert (await other.get("/healthz")).status_code == 200


async def test_a_client_that_does_not_read_costs_the_server_little(database_url: str) -> None:
    text = "x" * 1_000
    async with chatting(database_url) as chat:
        chat.log.append("answer", {"status": "start"})
        for number in range(2_000):
            chat.say(text)
            if number % 100 == 0:
                await chat.log.barrier()
        done = {**DONE, "answer": text * 2_000}
        chat.log.append("done", done)
        await chat.log.barrier()
        async with asyncio.timeout(PATIENCE), httpx2.AsyncClient(base_url=chat.service.url) as other:
            assert (await other.get("/healthz")).status_code == 200
        assert await chat.rest() == "data: [DONE]"
        assert chat.content == done["answer"]
