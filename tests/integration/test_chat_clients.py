"""The service as a model for OpenAI's own client: plain and streamed, with earlier turns, its errors, its leaving."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from executor.store.keys import KeyStore, Limits
from registry.toolbox.calculate import calculate
from tests.fakes import ProviderFake, brain
from tests.fakes.brain import ANSWER, SYNTHESIS
from tests.fakes.view import Reply, View
from tests.support.command import environment
from tests.support.service import Service
from tests.support.working import models_of, working

CASES = {
    case["id"]: case
    for case in map(
        json.loads, (Path(__file__).parents[1] / "cases" / "execution.jsonl").read_text("utf-8").splitlines()
    )
}
GOAL = [{"role": "user", "content": "Work out the result."}]
PATIENCE = 30.0


def client_of(service: Service, key: str = "none", **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=key, **options)


@asynccontextmanager
async def chatting(
    dsn: str, fake: ProviderFake, key: str = "k", **settings: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Service]]:
    async with working(dsn, models_of(fake, key), [calculate], **settings) as service, client_of(service) as client:
        yield client, service


async def settled(service: Service, job_id: str, status: str) -> None:
    """Waits for a job to have a status."""
    async with asyncio.timeout(PATIENCE):
        while (row := await service.jobs.get("", job_id)) is None or row["status"] != status:
            await asyncio.sleep(0.02)


async def test_models_are_listed_and_found(database_url: str, provider_fake: ProviderFake) -> None:
    async with chatting(database_url, provider_fake) as (client, _):
        names = [model.id async for model in await client.models.list()]
        assert names == ["dagwright", "dagwright:dag", "dagwright:react", "dagwright/small", "dagwright/large"]
        for name in names:
            model = await client.models.retrieve(name)
            assert (model.id, model.object, model.owned_by) == (name, "model", "dagwright")
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
            await client.models.retrieve("gpt")


async def test_a_plain_completion_is_a_whole_job(database_url: str, provider_fake: ProviderFake) -> None:
    async with chatting(database_url, provider_fake) as (client, service):
        reply = await client.chat.completions.create(
            model="dagwright:dag", messages=GOAL, temperature=0.3, max_tokens=50, metadata={"from": "test"}
        )
        (row,), _ = await service.jobs.page("", limit=10)
        assert reply.id == f"chatcmpl-{row['id'].removeprefix('job_')}"
        assert (reply.object, reply.model) == ("chat.completion", "dagwright:dag")
        assert abs(reply.created - row["created_at"].timestamp()) <= 1
        (choice,) = reply.choices
        assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
        assert (choice.message.role, choice.message.content) == ("assistant", SYNTHESIS)
        assert choice.message.tool_calls is None
        billed = provider_fake.billed
        assert reply.usage is not None
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (billed.input_tokens, billed.output_tokens)
        assert reply.usage.total_tokens == billed.input_tokens + billed.output_tokens
        extra = reply.model_extra or {}
        assert extra["dagwright"] == {
            "job": row["id"], "status": "completed", "calls": billed.calls, "cost_usd": None, "partial": True,
        }  # fmt: skip
        assert (row["mode"], row["metadata"]) == ("dag", {"from": "test"})
        assert not provider_fake.refusals


async def test_a_streamed_completion_tells_its_progress(database_url: str, provider_fake: ProviderFake) -> None:
    async with chatting(database_url, provider_fake) as (client, _):
        stream = await client.chat.completions.create(
            model="dagwright:dag", messages=GOAL, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
        assert chunks[0].object == "chat.completion.chunk"
        *others, last = chunks
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.total_tokens == provider_fake.billed.input_tokens + provider_fake.billed.output_tokens
        assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in others)
        deltas = [chunk.choices[0].delta for chunk in others]
        assert (deltas[0].role, deltas[0].content) == ("assistant", "")
        assert "".join(delta.content or "" for delta in deltas) == SYNTHESIS
        assert all(delta.tool_calls is None for delta in deltas)
        assert [chunk.choices[0].finish_reason for chunk in others] == [None] * (len(others) - 1) + ["stop"]
        told = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
        lines = told.splitlines()
        assert lines[0] == "planning"
        assert "plan, round 1: 4 steps" in lines
        assert "    s4: Put both halves together. (after s2, s3)" in lines
        assert "s1: calculate {'expression': '6*7'}" in lines
        assert [line for line in lines if line.startswith("s1 completed on ")]
        assert lines[-1] in ("analyzing", "synthesizing")  # the latter, unless the answer was stored


async def test_without_being_asked_a_stream_has_no_usage(database_url: str, provider_fake: ProviderFake) -> None:
    async with chatting(database_url, provider_fake) as (client, service):
        stream = await client.chat.completions.create(model="dagwright:react", messages=GOAL, stream=True)
        chunks = [chunk async for chunk in stream]
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        body = {"model": "dagwright:react", "messages": GOAL, "stream": True}
        raw = await service.http.post("/v1/chat/completions", json=body)
        assert raw.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert (raw.headers["cache-control"], raw.headers["x-accel-buffering"]) == ("no-cache", "no")
        *events, end = raw.text.strip().split("\n\n")
        assert end == "data: [DONE]"
        assert all(event.startswith("data: {") and '"usage"' not in event for event in events)


async def test_earlier_turns_and_instructions_reach_the_models(database_url: str) -> None:
    async with ProviderFake(brain) as fake, chatting(database_url, fake) as (client, _):
        reply = await client.chat.completions.create(
            model="dagwright",
            messages=[
                {"role": "system", "content": "Speak like a sailor."},
                {"role": "user", "content": "Remember the number 1234."},
                {"role": "assistant", "content": "I shall."},
                {"role": "user", "content": "Work out the result."},
            ],
        )
        assert reply.choices[0].message.content == SYNTHESIS
        routed, planned, *_, written = fake.views
        for view in (routed, planned):
            assert "Remember the number 1234." in view.last_text
            assert "I shall." in view.last_text
        assert written.stream  # the synthesis
        for view in (routed, planned, written):
            assert "Speak like a sailor." in view.last_text
        await client.chat.completions.create(
            model="dagwright:react/large", messages=[*GOAL, {"role": "assistant", "content": "42"}, *GOAL]
        )
        alone = fake.views[-3]
        assert [message.role for message in alone.messages] == ["user", "assistant", "user"]
        assert {view.model for view in fake.views[-3:]} == {"fake-large"}


async def test_errors_are_those_that_the_client_knows(database_url: str, provider_fake: ProviderFake) -> None:
    async with chatting(database_url, provider_fake, max_goal_chars=100) as (client, service):
        ask = client.chat.completions.create
        with pytest.raises(openai.NotFoundError) as not_found:
            await ask(model="gpt-4", messages=GOAL)
        assert (not_found.value.code, not_found.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as bad:
            await ask(model="dagwright", messages=GOAL, n=2)
        assert (bad.value.code, bad.value.param, bad.value.type) == (
            "unsupported_parameter", "n", "invalid_request_error",
        )  # fmt: skip
        with pytest.raises(openai.BadRequestError) as bad:
            await ask(model="dagwright", messages=[{"role": "wizard", "content": "x"}])  # type: ignore[list-item]
        assert (bad.value.code, bad.value.param) == ("validation", "messages.0.role")
        with pytest.raises(openai.BadRequestError, match="max_goal_chars"):
            await ask(model="dagwright", messages=[{"role": "user", "content": "x" * 101}])
        with pytest.raises(openai.BadRequestError) as bad:
            await ask(model="dagwright", messages=GOAL, stream_options={"include_usage": True})
        assert bad.value.param == "stream_options"
        raw = await service.http.post(
            "/v1/chat/completions", content=b"{", headers={"content-type": "application/json"}
        )
        assert (raw.status_code, raw.json()["error"]["code"]) == (400, "invalid_json")
        raw = await service.http.post("/v1/chat/completions", content=b"x", headers={"content-type": "text/plain"})
        assert (raw.status_code, raw.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert (await service.jobs.page("", limit=10))[0] == []
        assert provider_fake.requests == []


async def test_keys_and_their_limits(database_url: str, provider_fake: ProviderFake) -> None:
    async with chatting(database_url, provider_fake) as (_, service):
        key, secret = await KeyStore(service.database).create("one", Limits(running_jobs=1))
        async with client_of(service, "dwk_wrong") as stranger, client_of(service, secret, max_retries=0) as owner:
            with pytest.raises(openai.AuthenticationError) as refused:
                await stranger.chat.completions.create(model="dagwright", messages=GOAL)
            assert (refused.value.code, refused.value.type) == ("unauthorized", "authentication_error")
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()
            reply = await owner.chat.completions.create(model="dagwright:react", messages=GOAL)
            assert reply.choices[0].message.content == SYNTHESIS
            (row,), _ = await service.jobs.page(key.id, limit=10)
            assert row["tenant"] == key.id
            async with service.database.connection() as connection:  # one that never ends
                await connection.execute("update dw_jobs set ended_at = null")
            with pytest.raises(openai.RateLimitError) as limited:
                await owner.chat.completions.create(model="dagwright:react", messages=GOAL)
            assert (limited.value.code, limited.value.type) == ("too_many_jobs", "rate_limit_error")
            assert int(limited.value.response.headers["retry-after"]) >= 1


async def read(client: openai.AsyncOpenAI, *, stream: bool) -> None:
    reply: Any = await client.chat.completions.create(model="dagwright", messages=GOAL, stream=stream)
    if stream:
        async for _ in reply:
            pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_job_without_an_answer_is_an_error_and_is_not_asked_for_again(
    database_url: str, provider_fake: ProviderFake, stream: bool
) -> None:
    async with chatting(database_url, provider_fake, key="bad-key") as (client, service):
        with pytest.raises(openai.APIError) as failed:
            await read(client, stream=stream)
        assert isinstance(failed.value, openai.UnprocessableEntityError) is not stream
        assert failed.value.code == "job_failed"
        assert "key" in failed.value.message
        (row,), more = await service.jobs.page("", limit=10)
        assert (row["status"], more) == ("failed", False)


async def test_what_a_budget_left_is_an_answer_that_was_cut(database_url: str) -> None:
    async with ProviderFake(brain) as fake, chatting(database_url, fake) as (client, _):
        whole = await client.chat.completions.create(model="dagwright:react", messages=GOAL)
        assert whole.usage is not None
        most = whole.usage.total_tokens // 2
        cut = await client.chat.completions.create(
            model="dagwright:react", messages=GOAL, extra_body={"budget": f"{most} tokens"}
        )
        assert cut.choices[0].finish_reason == "length"
        assert cut.choices[0].message.content
        assert cut.usage is not None
        assert cut.usage.total_tokens <= most


class Slow:
    """A provider whose steps take as long as the test wants; it answers the other calls at once."""

    def __init__(self) -> None:
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, view: View) -> Any:
        if view.tools and view.results:
            self.reached.set()
            await self.go_on.wait()
        return brain(view)


async def drop_plain(client: openai.AsyncOpenAI, slow: Slow) -> None:
    task = asyncio.create_task(client.chat.completions.create(model="dagwright:react", messages=GOAL))
    await slow.reached.wait()
    task.cancel()
    await asyncio.wait({task})


async def drop_stream(client: openai.AsyncOpenAI, slow: Slow) -> None:
    stream = await client.chat.completions.create(model="dagwright:react", messages=GOAL, stream=True)
    async with stream:
        async for chunk in stream:
            if "calculate" in str(chunk):
                break
        await slow.reached.wait()


async def drop_while_queued(client: openai.AsyncOpenAI, slow: Slow) -> None:
    stream = await client.chat.completions.create(model="dagwright:react", messages=GOAL, stream=True)
    await stream.close()
    slow.reached.set()


@pytest.mark.parametrize("drop", [drop_plain, drop_stream, drop_while_queued])
async def test_a_client_that_leaves_ends_its_own_job_and_no_other(
    database_url: str, drop: Callable[[openai.AsyncOpenAI, Slow], Awaitable[None]]
) -> None:
    case = CASES["ex-sync-request-gone"]
    slow = Slow()
    async with ProviderFake(slow) as fake, chatting(database_url, fake) as (client, service), asyncio.timeout(PATIENCE):
        other = asyncio.create_task(client.chat.completions.create(model="dagwright:react", messages=GOAL))
        await slow.reached.wait()
        (kept,), _ = await service.jobs.page("", limit=10)
        slow.reached.clear()
        await drop(client, slow)
        (dropped, _), _ = await service.jobs.page("", limit=10)
        await settled(service, dropped["id"], "cancelled")
        calls = len(fake.requests)
        slow.go_on.set()
        reply = await other
        assert reply.choices[0].message.content == SYNTHESIS
        assert reply.id == f"chatcmpl-{kept['id'].removeprefix('job_')}"
        of_the_other = 1  # its answer is written up
        assert len(fake.requests) - calls - of_the_other == case["expect"]["provider_calls_after"]
        row = await service.jobs.get("", kept["id"])
        assert row is not None
        assert (row["status"], row["cancel"]) == ("completed", False)


async def test_a_client_that_is_impatient_ends_what_it_asks_for_anew(database_url: str) -> None:
    slow = Slow()
    async with ProviderFake(slow) as fake, chatting(database_url, fake) as (_, service):
        async with client_of(service, timeout=0.5, max_retries=1) as client:
            with pytest.raises(openai.APITimeoutError):
                await client.chat.completions.create(model="dagwright:react", messages=GOAL)
        rows, _ = await service.jobs.page("", limit=10)
        assert len(rows) == 2
        for row in rows:
            await settled(service, row["id"], "cancelled")


async def test_hidden_calls_and_thoughts_stay_inside(database_url: str) -> None:
    def thinking(view: View) -> Any:
        answer = brain(view)
        return Reply(answer, reasoning="secret thought") if answer in (ANSWER, SYNTHESIS) else answer

    async with ProviderFake(thinking) as fake, chatting(database_url, fake) as (_, service):
        body = {"model": "dagwright:react", "messages": GOAL}
        plain = await service.http.post("/v1/chat/completions", json=body)
        streamed = await service.http.post("/v1/chat/completions", json={**body, "stream": True})
        for text in (plain.text, streamed.text):
            assert "tool_calls" not in text
            assert "secret thought" not in text
        assert plain.headers["x-dagwright-job"] != streamed.headers["x-dagwright-job"]
        job = await service.http.get(f"/v1/jobs/{plain.headers['x-dagwright-job']}/events", timeout=httpx2.Timeout(30))
        assert "event: done" in job.text  # the request's job can be looked at like any other


async def test_the_answer_of_a_demonstration_model_says_so(database_url: str, provider_fake: ProviderFake) -> None:
    async with chatting(database_url, provider_fake) as (client, service):
        service.app.state.workshop = replace(service.app.state.workshop, notice="demonstration quality")
        plain = await client.chat.completions.create(model="dagwright:react", messages=GOAL)
        assert plain.choices[0].message.content == f"[demonstration quality]\n\n{SYNTHESIS}"
        stream = await client.chat.completions.create(model="dagwright:react", messages=GOAL, stream=True)
        said = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(said) == plain.choices[0].message.content


async def test_the_example_runs_as_it_stands(database_url: str, provider_fake: ProviderFake, tmp_path: Path) -> None:
    async with chatting(database_url, provider_fake) as (_, service):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).parents[2] / "examples" / "chat.py"),
            env=environment(tmp_path, DAGWRIGHT_URL=service.url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        assert (process.returncode, out.decode()) == (0, f"{SYNTHESIS}\n"), err.decode()
        assert "plan, round 1: 4 steps" in err.decode()


async def test_what_no_route_takes_is_told_as_openai_tells_it(database_url: str, provider_fake: ProviderFake) -> None:
    async with chatting(database_url, provider_fake) as (client, service):
        for method, path, status, code in (
            ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
            ("POST", "/v1/models", 405, "method_not_allowed"),
            ("DELETE", "/v1/models/dagwright", 405, "method_not_allowed"),
            ("GET", "/v1/chat/completions/chatcmpl-1", 404, "not_found"),
            ("GET", "/v1/chat", 404, "not_found"),
        ):
            response = await service.http.request(method, path)
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error"), path
            assert ("allow" in response.headers) == (status == 405)
        with pytest.raises(openai.NotFoundError, match="Not Found"):
            await client.chat.completions.retrieve("chatcmpl-1")
        for path in ("/v1/modelsandmore", "/v1/chats", "/v1/nothing"):  # elsewhere problems are told as ever
            response = await service.http.get(path)
            assert response.headers["content-type"] == "application/problem+json"
            assert (response.status_code, response.json()["code"]) == (404, "not_found")
