"""Errors of providers and of the way to them: what each is called, whether it is tried again, and when."""

from __future__ import annotations

import asyncio
import gc
import time
from email.utils import formatdate
from typing import Any

import pytest

from registry.adapters import failures
from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.base import SDKAdapter
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.adapters.openai_responses import OpenAIResponsesLLM
from registry.errors import ConfigError, ContextLengthError, LLMError
from registry.messages import Message
from registry.retry import RetryPolicy
from registry.testing import FakeClock
from tests.support.http_script import Answer, HttpScript, chat_chunks, chat_reply, claude_events, claude_reply
from tests.support.http_script import response_reply as reply_of_responses

ASK = [Message.user("q")]
ONCE = RetryPolicy(tries=1)
GOOD = {"chat": chat_reply(), "claude": claude_reply(), "responses": reply_of_responses()}


def make(kind: str, url: str, **options: Any) -> SDKAdapter:
    options.setdefault("clock", FakeClock())
    if kind == "claude":
        return AnthropicLLM("m", base_url=url, **options)
    return {"chat": OpenAIChatLLM, "responses": OpenAIResponsesLLM}[kind]("m", base_url=f"{url}/v1", **options)


def waits(llm: SDKAdapter) -> list[float]:
    assert isinstance(llm.clock, FakeClock)
    return llm.clock.sleeps


async def turn(llm: SDKAdapter, stream: bool) -> None:
    if not stream:
        await llm.chat(ASK)
        return
    async for _ in llm.stream_chat(ASK):
        pass


async def error_of(kind: str, *answers: Answer, stream: bool = False, **options: Any) -> tuple[LLMError, int]:
    """The error that a call ends with, and the number of requests it took."""
    async with HttpScript(answers) as server:
        llm = make(kind, server.url, **options)
        with pytest.raises(LLMError) as caught:
            await turn(llm, stream)
        return caught.value, len(server.bodies)


STATUSES = [  # status, body, code, retryable
    (400, "", "bad_request", False),
    (400, {"error": {"message": "no such field"}}, "bad_request", False),
    (401, {"error": {"message": "Incorrect API key provided"}}, "auth", False),
    (403, {"error": {"message": "not yours"}}, "auth", False),
    (402, {"error": {"message": "pay"}}, "quota", False),
    (404, {"error": {"message": "no model"}}, "bad_request", False),
    (408, "", "timeout", True),
    (409, "", "provider_error", True),
    (413, "", "context_length", False),
    (429, {"error": {"message": "slow"}}, "rate_limit", True),
    (429, {"error": {"code": "insufficient_quota"}}, "quota", False),
    (429, {"error": {"message": "You exceeded your current quota, retry in 3.5s"}}, "rate_limit", True),
    (
        500,
        {"error": {"message": "Failed to parse tool call arguments", "type": "server_error"}},
        "provider_error",
        True,
    ),
    (500, {"error": {"message": "The model is overloaded"}}, "overloaded", True),
    (502, "<html>Bad gateway</html>", "provider_error", True),
    (503, "", "overloaded", True),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded", True),
    (400, {"error": {"code": "content_filter", "message": "blocked"}}, "content_filter", False),
    (400, {"error": "your credit balance is too low"}, "quota", False),
]


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize(("status", "body", "code", "retryable"), STATUSES)
async def test_statuses(kind: str, status: int, body: Any, code: str, retryable: bool) -> None:
    error, calls = await error_of(kind, Answer(body, status=status), retry=RetryPolicy(tries=2))
    assert (error.code, error.retryable, error.status) == (code, retryable, status)
    assert calls == (2 if retryable else 1)


OVERFLOWS = [
    ({"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}, 200_000),
    (
        {
            "error": {
                "message": "This model's maximum context length is 8192 tokens.",
                "code": "context_length_exceeded",
            }
        },
        8192,
    ),
    ({"error": {"message": "too big", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 4096}}, 4096),
    ({"error": {"message": "input length and `max_tokens` exceed context limit: 199990 + 21333 > 200000"}}, 200_000),
    ({"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096"}, 4096),
    ({"error": {"message": "Please reduce the length of the messages."}}, None),
]


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize(("body", "size"), OVERFLOWS)
async def test_context_overflow_is_told_apart_and_not_tried_again(kind: str, body: Any, size: int | None) -> None:
    error, calls = await error_of(kind, Answer(body, status=400))
    assert isinstance(error, ContextLengthError)
    assert (error.context_size, calls) == (size, 1)


@pytest.mark.parametrize(
    ("headers", "message", "least"),
    [
        ({"retry-after": "7"}, "slow", 7.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, "slow", 1.5),
        ({}, "Rate limit reached. Please try again in 1.5s.", 1.5),
        ({}, "Please try again in 20ms.", 0.02),
        ({}, "Please try again in 1m30.5s.", 90.5),
        ({}, "Please retry after 12 seconds.", 12.0),
        ({"retry-after": "soon"}, "slow", 0.5),
    ],
)
async def test_waits_as_long_as_asked(headers: dict[str, str], message: str, least: float) -> None:
    refused = Answer({"error": {"message": message}}, status=429, headers=headers)
    async with HttpScript([refused, Answer(chat_reply())]) as server:
        llm = make("chat", server.url, retry=RetryPolicy(wait_cap=100.0))
        assert (await llm.chat(ASK)).message.content == "ok"
        assert len(server.bodies) == 2
    (wait,) = waits(llm)
    assert least <= wait <= least * 1.5 + 0.25


def test_retry_after_as_a_date_is_taken_from_the_servers_clock() -> None:
    now = time.time()
    headers = {"retry-after": formatdate(now + 30, usegmt=True), "date": formatdate(now, usegmt=True)}
    assert failures.retry_after(headers, "", now=0.0) == pytest.approx(30, abs=1.1)
    assert failures.retry_after({"retry-after": formatdate(now + 30, usegmt=True)}, "", now) == pytest.approx(
        30, abs=1.1
    )


async def test_overload_passes() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error"}}
    async with HttpScript([Answer(body, status=529), Answer("", status=529), Answer(claude_reply())]) as server:
        llm = make("claude", server.url)
        assert (await llm.chat(ASK)).message.content == "ok"
        assert (len(server.bodies), len(waits(llm))) == (3, 2)


async def test_callers_refused_together_do_not_come_back_together() -> None:
    seen: set[str] = set()

    def answer(body: Any) -> Answer:
        caller = body["messages"][0]["content"]
        first = caller not in seen
        seen.add(caller)
        return Answer("", status=429) if first else Answer(chat_reply())

    async with HttpScript(answer) as server:
        models = [make("chat", server.url) for _ in range(10)]
        await asyncio.gather(*(llm.chat([Message.user(f"caller {n}")]) for n, llm in enumerate(models)))
    all_waits = [wait for llm in models for wait in waits(llm)]
    assert len(all_waits) == 10
    assert max(all_waits) - min(all_waits) > 0.005


CUT_CALLS = ['{"path": "a.md"}', '{"path": "a.md", "conten']


@pytest.mark.parametrize("arguments", CUT_CALLS)
async def test_a_chat_stream_cut_in_or_after_a_call_is_a_lost_connection(arguments: str) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "write", "arguments": arguments}}
    chunks = chat_chunks({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}, finish=None, done=False)
    for cut in (True, False):  # broken off, or ended in good order without a finish reason
        error, calls = await error_of("chat", Answer(chunks=chunks, cut=cut), stream=True, retry=ONCE)
        assert (error.code, error.retryable, calls) == ("connection", True, 1)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("arguments", CUT_CALLS)
async def test_a_claude_stream_cut_in_or_after_a_call_is_a_lost_connection(arguments: str, cut: bool) -> None:
    chunks = claude_events(
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "write"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": arguments}},
        {"type": "content_block_stop", "index": 0},
    )
    error, _ = await error_of("claude", Answer(chunks=chunks, cut=cut), stream=True, retry=ONCE)
    assert (error.code, error.retryable) == ("connection", True)


@pytest.mark.parametrize("cut", [True, False])
async def test_a_response_stream_cut_is_a_lost_connection(cut: bool) -> None:
    chunks = claude_events({"type": "response.output_text.delta", "delta": "hel"})
    error, _ = await error_of("responses", Answer(chunks=chunks, cut=cut), stream=True, retry=ONCE)
    assert (error.code, error.retryable) == ("connection", True)


async def test_a_connection_lost_after_the_finish_reason_costs_only_the_usage() -> None:
    chunks = chat_chunks({"choices": [{"index": 0, "delta": {"content": "ok"}}]}, done=False)
    async with HttpScript([Answer(chunks=chunks, cut=True)]) as server:
        pieces = [piece async for piece in make("chat", server.url, retry=ONCE).stream_chat(ASK)]
    assert pieces[-1].result is not None
    assert (pieces[-1].result.message.content, pieces[-1].result.usage) == ("ok", None)


async def test_a_broken_stream_is_tried_again_and_what_was_said_is_void() -> None:
    cut = chat_chunks({"choices": [{"index": 0, "delta": {"content": "hal"}}]}, finish=None, done=False)
    whole = chat_chunks({"choices": [{"index": 0, "delta": {"content": "whole"}}]})
    async with HttpScript([Answer(chunks=cut, cut=True), Answer(chunks=whole)]) as server:
        pieces = [piece async for piece in make("chat", server.url).stream_chat(ASK)]
    assert [piece.text for piece in pieces if piece.text] == ["hal", "whole"]
    assert [piece.reset for piece in pieces].count(True) == 1


IN_STREAM = [
    ("chat", {"error": {"message": "busy", "type": "overloaded_error"}}, "overloaded"),
    ("chat", {"error": {"message": "Provider returned error", "code": 502}, "choices": []}, "provider_error"),
    ("chat", {"error": {"message": "slow down", "code": 429}}, "rate_limit"),
    ("claude", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded"),
    ("claude", {"type": "error", "error": {"type": "api_error", "message": "oops"}}, "provider_error"),
    ("responses", {"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, "rate_limit"),
    (
        "responses",
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "server_error", "message": "x"}},
        },
        "provider_error",
    ),
]


@pytest.mark.parametrize(("kind", "event", "code"), IN_STREAM)
async def test_errors_inside_a_stream(kind: str, event: dict[str, Any], code: str) -> None:
    chunks = claude_events({"type": "ping"}, {"type": "x", **event})
    error, calls = await error_of(kind, Answer(chunks=chunks), stream=True, retry=RetryPolicy(tries=2))
    assert (error.code, error.retryable, calls) == (code, True, 2)


async def test_an_error_that_comes_as_a_200() -> None:
    error, _ = await error_of("chat", Answer({"error": {"message": "no", "code": 429}}), retry=ONCE)
    assert error.code == "rate_limit"


@pytest.mark.parametrize("kind", GOOD)
async def test_a_connection_that_drops_is_retried(kind: str) -> None:
    async with HttpScript([Answer(cut=True), Answer(GOOD[kind])]) as server:
        llm = make(kind, server.url)
        assert (await llm.chat(ASK)).message.content == "ok"
        assert len(server.bodies) == 2


@pytest.mark.parametrize("kind", GOOD)
async def test_nobody_listens(kind: str) -> None:
    llm = make(kind, "http://127.0.0.1:9", retry=ONCE)
    with pytest.raises(LLMError) as caught:
        await llm.chat(ASK)
    assert caught.value.code == "connection"


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("stream", [False, True])
async def test_no_answer_in_time(kind: str, stream: bool) -> None:
    error, _ = await error_of(kind, Answer(GOOD[kind], delay=0.6), stream=stream, retry=ONCE, timeout=0.2)
    assert (error.code, error.retryable) == ("timeout", True)


@pytest.mark.parametrize("kind", GOOD)
async def test_a_reply_that_is_no_json(kind: str) -> None:
    error, _ = await error_of(kind, Answer("<html>hello</html>"), retry=ONCE)
    assert (error.code, error.retryable) == ("provider_error", True)


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_no_error_repeats_the_key(kind: str, status: int) -> None:
    key = "very-secret-key-1"
    body = {"error": {"message": f"Incorrect API key provided: {key}, or sk-abcdefghijk"}}
    error, _ = await error_of(kind, Answer(body, status=status), api_key=key, retry=ONCE)
    chain: BaseException | None = error
    while chain is not None:
        assert key not in str(chain)
        assert "sk-abc" not in str(chain)
        chain = chain.__cause__ or chain.__context__


@pytest.mark.parametrize("kind", GOOD)
async def test_without_a_key_of_ones_own_none_is_taken_from_the_environment(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "mine")
    async with HttpScript([Answer(GOOD[kind])]) as server:
        await make(kind, server.url).chat(ASK)
    assert "mine" not in str(server.headers)


async def test_a_missing_key_is_the_operators_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    for llm in (OpenAIChatLLM("m"), OpenAIResponsesLLM("m"), AnthropicLLM("m")):
        with pytest.raises(ConfigError):
            await llm.chat(ASK)


@pytest.mark.parametrize("requested", ["however", "you", "passed"])
async def test_an_output_allowance_that_is_too_big_is_lowered(requested: str) -> None:
    message = {
        "you": "maximum context length is 131072 tokens; you requested 65536 output tokens and your prompt has 65600",
        "passed": "You passed 65600 input tokens and requested 65536 output tokens. However, the model's context "
        "length is only 131072 tokens. Please reduce the length of the input prompt.",
        "however": "This model's maximum context length is 131072 tokens. However, you requested 131136 tokens "
        "(65600 in the messages, 65536 in the completion).",
    }[requested]
    refused = Answer({"error": {"message": message}}, status=400)
    async with HttpScript([refused, Answer(chat_reply())]) as server:
        await make("chat", server.url).chat(ASK, max_tokens=65_536)
    assert [body["max_tokens"] for body in server.bodies] == [65_536, 131_072 - 65_600 - 32]


async def test_an_output_limit_of_the_model_is_remembered() -> None:
    refused = Answer(
        {"error": {"message": "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for m"}},
        status=400,
    )
    async with HttpScript([refused, Answer(claude_reply())]) as server:
        llm = make("claude", server.url)
        await llm.chat(ASK)
        await llm.chat(ASK)
    assert [body["max_tokens"] for body in server.bodies] == [8192, 4096, 4096]


# Connections


async def test_128_calls_are_in_flight_at_once() -> None:
    async with HttpScript([Answer(chat_reply(), delay=1.0)]) as server:
        llm = make("chat", server.url)
        await asyncio.gather(*(llm.chat(ASK) for _ in range(128)))
        assert server.most == 128


async def test_more_calls_than_connections_wait_without_an_error() -> None:
    async with HttpScript([Answer(chat_reply(), delay=0.05)]) as server:
        llm = make("chat", server.url, max_connections=20, timeout=0.5)
        await asyncio.gather(*(llm.chat(ASK) for _ in range(300)))
    assert (len(server.bodies), server.most) == (300, 20)


@pytest.mark.parametrize("kind", GOOD)
def test_one_model_over_several_event_loops(kind: str) -> None:
    """asyncio.run three times with the same model: each loop gets a client of its own, closed when the loop ends."""
    llm: SDKAdapter | None = None

    async def step() -> str:
        nonlocal llm
        async with HttpScript([Answer(GOOD[kind])]) as server:
            if llm is None:
                llm = make(kind, server.url)
            else:
                llm.base_url = server.url if kind == "claude" else f"{server.url}/v1"
                llm._clients._make.__self__.base_url = llm.base_url  # type: ignore[attr-defined]
            return (await llm.chat(ASK)).message.content

    assert [asyncio.run(step()) for _ in range(3)] == ["ok", "ok", "ok"]
    assert llm is not None
    assert len(llm._clients._open) == 0
    gc.collect()  # an unclosed connection would warn here, and warnings are errors


@pytest.mark.parametrize("turns", [0, 1, 50])
def test_a_model_that_is_dropped_leaves_no_connection_open(turns: int) -> None:
    """However soon the loop ends after that."""

    async def step() -> None:
        async with HttpScript([Answer(chat_reply())]) as server:
            await make("chat", server.url).chat(ASK)
            for _ in range(turns):
                await asyncio.sleep(0)

    asyncio.run(step())
    gc.collect()


async def test_aclose_and_go_on() -> None:
    async with HttpScript([Answer(chat_reply())]) as server:
        llm = make("chat", server.url)
        await llm.chat(ASK)
        await llm.aclose()
        await llm.aclose()
        assert (await llm.chat(ASK)).message.content == "ok"


async def test_a_call_that_is_cancelled_frees_its_connection() -> None:
    async with HttpScript([Answer(chat_reply(), delay=5.0)]) as server:
        llm = make("chat", server.url, max_connections=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await llm.chat(ASK)
        server._answers = [Answer(chat_reply())]
        async with asyncio.timeout(2):
            assert (await llm.chat(ASK)).message.content == "ok"
