"""The collected cases of the way to a provider, by their ids, and refusals in all their forms, against a misbehaving
server over real HTTP through the real SDKs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from executor.dag import DAGExecutor
from planner.plan import Plan, PlanStep
from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.base import SDKAdapter
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.adapters.openai_responses import OpenAIResponsesLLM
from registry.errors import LLMError
from registry.gate import ProviderGate
from registry.gate_limits import Limits
from registry.gate_rules import SPACING
from registry.messages import Message, ToolCall
from registry.retry import RetryPolicy
from registry.testing import FakeClock
from tests.fakes import ProviderFake
from tests.support.http_script import (
    Answer,
    HttpScript,
    chat_chunks,
    chat_reply,
    claude_events,
    claude_reply,
    response_reply,
)

ASK = [Message.user("q")]
GOOD = {"chat": chat_reply(), "claude": claude_reply(), "responses": response_reply()}
CASES = {
    case["id"]: case
    for case in map(
        json.loads, (Path(__file__).parents[1] / "cases" / "execution.jsonl").read_text("utf-8").splitlines()
    )
    if case["context"]["scope"] == "client"
}


def make(kind: str, url: str, **options: Any) -> SDKAdapter:
    options.setdefault("clock", FakeClock())
    if kind == "claude":
        return AnthropicLLM("m", base_url=url, **options)
    return {"chat": OpenAIChatLLM, "responses": OpenAIResponsesLLM}[kind]("m", base_url=f"{url}/v1", **options)


def starts_of(llm: SDKAdapter) -> list[float]:
    """When calls that were not refused went through the model's gate. A fake clock moves on before they arrive."""
    assert isinstance(llm.gate, ProviderGate)
    return [start.at for start in reversed(llm.gate.traffic.starts)][::-1]


def slept(llm: SDKAdapter) -> float:
    assert isinstance(llm.clock, FakeClock)
    return sum(llm.clock.sleeps)


def scripted(case: Mapping[str, Any], kind: str) -> list[Answer]:
    """A case's replies; those with status 200 are good ones of the dialect."""
    return [
        Answer(GOOD[kind]) if reply["status"] == 200 else Answer(reply.get("body", ""), reply["status"])
        for reply in case["input"]["replies"]
    ]


async def replies(case: Mapping[str, Any], kind: str) -> tuple[dict[str, Any], HttpScript, SDKAdapter]:
    """What comes of a case that is a list of replies: in the words of its `expect`."""
    async with HttpScript(scripted(case, kind)) as server:
        llm = make(kind, server.url)
        seen: dict[str, Any]
        try:
            result = await llm.chat(ASK, max_tokens=65_536)
            seen = {"result": result.message.content}
        except LLMError as error:
            seen = {"raises": error.code, "retryable": error.retryable}
        await llm.aclose()
        return seen | {"calls": len(server.bodies), "wait_s_min": slept(llm)}, server, llm


async def replies_in_turn(case: Mapping[str, Any], kind: str) -> None:
    expect = dict(case["expect"])
    seen, server, _ = await replies(case, kind)
    smaller = expect.pop("second_request", None)
    if smaller is not None:
        limits = [
            body.get("max_tokens") or body.get("max_output_tokens") or body["max_completion_tokens"]
            for body in server.bodies
        ]
        assert (limits[1] < limits[0]) is smaller["max_output_smaller"]
    assert seen["wait_s_min"] >= expect.pop("wait_s_min", 0.0)
    assert {key: seen.get(key) for key in expect} == expect


async def in_flight(case: Mapping[str, Any], kind: str) -> None:
    """ex-concurrency-setting-real: as many calls as steps may run are under way at once."""
    wanted = case["expect"]["in_flight_reaches"]

    async def script(view: Any) -> str:
        async with asyncio.timeout(30):
            while fake.most_open < wanted:
                await asyncio.sleep(0.01)
        return "done"

    async with ProviderFake(script) as fake:
        llm = make(kind, fake.anthropic_url, clock=FakeClock())
        if kind == "chat":  # all the way, from the executor's setting
            plan = Plan("goal", tuple(PlanStep(f"s{n}", "Say done.") for n in range(case["input"]["server_slots"])))
            result = await DAGExecutor(llm, max_concurrency=case["input"]["max_parallel_steps"]).execute(plan)
            assert result.status == "completed"
        else:
            await asyncio.gather(*(llm.chat(ASK) for _ in range(case["input"]["max_parallel_steps"])))
        await llm.aclose()
        assert fake.most_open == wanted


def cut_stream(kind: str, arguments: str) -> list[str]:
    """A stream of a dialect that ends after a call's arguments, without saying that the turn is over."""
    if kind == "chat":
        call = {"index": 0, "id": "c1", "function": {"name": "write", "arguments": arguments}}
        return chat_chunks({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}, finish=None, done=False)
    if kind == "claude":
        block = {"type": "tool_use", "id": "t", "name": "write"}
        delta = {"type": "input_json_delta", "partial_json": arguments}
        return claude_events(
            {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
        )
    item = {"type": "function_call", "call_id": "c1", "id": "f1", "name": "write", "arguments": ""}
    return claude_events(
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "f1", "delta": arguments},
    )


async def listen(llm: SDKAdapter, calls: list[ToolCall]) -> None:
    async for chunk in llm.stream_chat(ASK):
        calls += chunk.result.message.tool_calls if chunk.result is not None else ()


async def cut(case: Mapping[str, Any], kind: str) -> None:
    """ex-cut-stream-*: broken off, or ended in good order without a word that the turn is over: no call comes out."""
    chunks = cut_stream(kind, case["input"]["replies"][0]["stream_tool_args"])
    for broken in (True, False):
        async with HttpScript([Answer(chunks=chunks, cut=broken)]) as server:
            llm = make(kind, server.url, retry=RetryPolicy(tries=1))
            calls: list[ToolCall] = []
            with pytest.raises(LLMError) as caught:
                await listen(llm, calls)
            await llm.aclose()
        assert caught.value.code == case["expect"]["raises"]
        assert caught.value.retryable is case["expect"]["retryable"]
        assert calls == case["expect"]["executed"]


async def herd(case: Mapping[str, Any], kind: str) -> None:
    """ex-herd: ten clients that are refused together, with one gate and one clock, or each with its own."""
    for shared in (True, False):
        clock, seen = FakeClock(), set[str]()

        def answer(body: Any, seen: set[str] = seen) -> Answer:
            text = json.dumps(body)
            if text in seen:
                return Answer(GOOD[kind])
            seen.add(text)
            return Answer("", status=429)

        async with HttpScript(answer) as server:
            count = case["input"]["clients"]
            models = [make(kind, server.url, clock=clock if shared else FakeClock()) for _ in range(count)]
            assert len({id(llm.gate) for llm in models}) == (1 if shared else count)
            await asyncio.gather(*(llm.chat([Message.user(f"caller {n}")]) for n, llm in enumerate(models)))
            for llm in models:
                await llm.aclose()
        if shared:
            back = starts_of(models[0])
            assert len(back) == count
            assert all(after - before >= SPACING - 1e-9 for before, after in pairwise(back))
        else:
            waits = [slept(llm) for llm in models]
            assert max(waits) - min(waits) > 0.005


async def queued(case: Mapping[str, Any], kind: str) -> None:
    """ex-pool-timeout: more calls than may be under way wait in line, with pool time-outs shorter than the wait."""
    given = case["input"]
    async with HttpScript([Answer(GOOD[kind], delay=given["call_s"])]) as server:
        limits = Limits(concurrency=given["connection_limit"])
        llm = make(kind, server.url, limits=limits, timeout=5.0)
        results = await asyncio.gather(
            *(llm.chat(ASK) for _ in range(given["concurrent_calls"])), return_exceptions=True
        )
        await llm.aclose()
    assert sum(isinstance(result, BaseException) for result in results) == case["expect"]["errors"]
    assert server.most == case["expect"]["in_flight_max"]


RUNS: dict[str, Callable[[Mapping[str, Any], str], Awaitable[None]]] = {
    "ex-429-hint-in-body": replies_in_turn,
    "ex-concurrency-setting-real": in_flight,
    "ex-cut-stream-after-tool-end": cut,
    "ex-cut-stream-tool": cut,
    "ex-herd": herd,
    "ex-output-cap-too-big": replies_in_turn,
    "ex-overloaded-529": replies_in_turn,
    "ex-pool-timeout": queued,
    "ex-quota-not-retried": replies_in_turn,
}
LOOPS = "ex-loop-closed-client"


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("case", [name for name in CASES if name != LOOPS])
async def test_case(case: str, kind: str) -> None:
    await RUNS[case](CASES[case], kind)


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("shared", [True, False], ids=["one-model", "a-model-each"])
def test_case_ex_loop_closed_client(kind: str, shared: bool) -> None:
    """asyncio.run three times in one process; refused in the first, held into the second."""
    refusal = Answer("", status=429, headers={"retry-after": "0.05"})
    models: list[SDKAdapter] = []

    async def step(first: bool) -> str:
        async with HttpScript([refusal, Answer(GOOD[kind])] if first else [Answer(GOOD[kind])]) as server:
            llm = make(kind, server.url, gate=gate, limits=Limits(concurrency=1))
            models.append(llm)
            return (await asyncio.gather(llm.chat(ASK), llm.chat(ASK)))[1].message.content

    gate = ProviderGate() if shared else None
    assert [asyncio.run(step(number == 0)) for number in range(3)] == ["ok"] * 3
    assert all(isinstance(llm.gate, ProviderGate) and llm.gate.in_flight == 0 for llm in models)
    assert CASES[LOOPS]["expect"] == {"errors": 0}


# Refusals in all their forms hold everybody, in all three adapters


def date_headers() -> dict[str, str]:
    base = 1_000_000.0  # the fake clock's time
    return {"retry-after": formatdate(base + 9, usegmt=True), "date": formatdate(base + 5, usegmt=True)}


FORMS: dict[str, tuple[dict[str, str], str, float]] = {  # headers, message, seconds
    "seconds": ({"retry-after": "4"}, "slow", 4.0),
    "parts of a second": ({"retry-after": "2.75"}, "slow", 2.75),
    "a date": (date_headers(), "slow", 4.0),
    "milliseconds": ({"retry-after-ms": "1500", "retry-after": "9"}, "slow", 1.5),
    "words": ({}, "Rate limit reached. Please try again in 1.5s.", 1.5),
    "nothing": ({}, "slow", 0.5),
}


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_a_refusal_holds_all_models_of_the_server(kind: str, form: str, status: int) -> None:
    headers, message, least = FORMS[form]
    clock, asked = FakeClock(), []

    def answer(body: Any) -> Answer:
        asked.append("first" in json.dumps(body))
        if len(asked) == 1:
            return Answer({"error": {"message": message}}, status, headers)
        return Answer(GOOD[kind])

    async with HttpScript(answer) as server:
        first, second = (make(kind, server.url, clock=clock) for _ in range(2))
        began = clock.monotonic()
        refused = asyncio.create_task(first.chat([Message.user("first")]))
        while not asked:
            await asyncio.sleep(0.001)
        while not isinstance(first.gate, ProviderGate) or first.gate.traffic.hold is None:
            await asyncio.sleep(0.001)
        await second.chat([Message.user("second")])
        assert (await refused).message.content == "ok"
        await first.aclose()
        await second.aclose()
    assert asked == [True, True, False]
    starts = starts_of(second)
    assert least <= starts[0] - began <= 1.1 * least + 0.1
    assert starts[1] - starts[0] >= SPACING - 1e-9


IN_STREAM = {
    "chat": chat_chunks({"error": {"message": "busy", "type": "overloaded_error"}, "choices": []}, finish=None),
    "claude": claude_events({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    "responses": claude_events(
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "server_overloaded", "message": "busy"}},
        }
    ),
}
WHOLE = {
    "chat": chat_chunks({"choices": [{"index": 0, "delta": {"content": "ok"}}]}),
    "claude": claude_events(
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ),
    "responses": claude_events(
        {"type": "response.output_text.delta", "delta": "ok"},
        {"type": "response.completed", "response": response_reply()},
    ),
}


@pytest.mark.parametrize("kind", GOOD)
async def test_an_overload_inside_a_stream_holds_everybody_and_is_tried_again(kind: str) -> None:
    async with HttpScript([Answer(chunks=IN_STREAM[kind]), Answer(chunks=WHOLE[kind])]) as server:
        llm = make(kind, server.url)
        chunks = [chunk async for chunk in llm.stream_chat(ASK)]
        await llm.aclose()
        assert len(server.bodies) == 2
    assert chunks[-1].result is not None
    assert chunks[-1].result.message.content == "ok"
    assert isinstance(llm.gate, ProviderGate)
    assert llm.gate.traffic.hold is not None
    assert 0.5 <= slept(llm) <= 0.6


@pytest.mark.parametrize("kind", GOOD)
async def test_a_broken_stream_is_tried_again(kind: str) -> None:
    cut_off = Answer(chunks=WHOLE[kind][: 3 if kind == "claude" else 1], cut=True)  # after the first text
    async with HttpScript([cut_off, Answer(chunks=WHOLE[kind])]) as server:
        llm = make(kind, server.url)
        chunks = [chunk async for chunk in llm.stream_chat(ASK)]
        await llm.aclose()
        assert len(server.bodies) == 2
    assert [chunk.reset for chunk in chunks].count(True) == 1
    assert chunks[-1].result is not None
    assert isinstance(llm.gate, ProviderGate)
    assert llm.gate.traffic.hold is None  # its caller's own wait


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_hangs_is_given_up_and_tried_again(kind: str, stream: bool) -> None:
    good = Answer(chunks=WHOLE[kind]) if stream else Answer(GOOD[kind])
    hangs = Answer(GOOD[kind], delay=1.0)
    async with HttpScript([hangs, good]) as server:
        llm = make(kind, server.url, timeout=0.3)
        if stream:
            last = [chunk async for chunk in llm.stream_chat(ASK)][-1].result
        else:
            last = await llm.chat(ASK)
        await llm.aclose()
        assert len(server.bodies) == 2
    assert last is not None
    assert last.message.content == "ok"


@pytest.mark.parametrize("kind", GOOD)
async def test_an_oversized_prompt_is_never_sent_twice(kind: str) -> None:
    body = {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}
    async with HttpScript([Answer(body, 400)]) as server:
        llm = make(kind, server.url)
        with pytest.raises(LLMError) as caught:
            await llm.chat(ASK)
        await llm.aclose()
        assert len(server.bodies) == 1
    assert caught.value.code == "context_length"
