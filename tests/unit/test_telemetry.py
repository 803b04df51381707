"""Spans of single calls, runs and tools: their ends on every way out, and what it costs when nobody listens."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from agent.react import ReActAgent
from registry import telemetry
from registry.context import calling
from registry.errors import AuthError, OverloadedError, RefusalError
from registry.messages import LLMResult, Message, Usage
from registry.redaction import know_secret
from registry.testing import FakeClock, ScriptedLLM
from registry.tools import tool
from tests.support.spans import Spans, attributes, recorded

ASK = [Message.user("q")]
KEY = "zq-Very-Secret-Key-1"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    with recorded(monkeypatch) as found:
        yield found


def outcome(spans: Spans) -> list[tuple[str, str | None]]:
    return [(span.name, attributes(span).get("error.type")) for span in spans.all]


async def test_a_call_that_succeeds(spans: Spans) -> None:
    usage = Usage(10, 5, cached_tokens=4, cache_write_tokens=3, reasoning_tokens=2, cost=Decimal("0.25"))
    llm = ScriptedLLM([LLMResult(Message.assistant("a"), usage, "stop", "scripted-2026")])
    with calling(job_id="job_1", step_id="s1", attempt=2, role="step"):
        await llm.chat(ASK, temperature=0.5, max_tokens=100, response_format={"type": "json_object"})
    (span,) = spans.all
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.conversation.id": "job_1",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.output.type": "json",
        "gen_ai.response.model": "scripted-2026",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "dagwright.cost": 0.25,
        "dagwright.step.id": "s1",
        "dagwright.step.attempt": 2,
        "dagwright.model.name": "scripted",
        "dagwright.model.role": "step",
        "dagwright.model.try": 1,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_each_try_has_its_span(spans: Spans, stream: bool) -> None:
    llm = ScriptedLLM([OverloadedError(f"with {KEY}"), "a"], clock=FakeClock())
    await turn(llm, stream)
    assert outcome(spans) == [("chat scripted", "overloaded"), ("chat scripted", None)]
    assert [attributes(span)["dagwright.model.try"] for span in spans.all] == [1, 2]
    assert attributes(spans.all[0]).get("gen_ai.request.stream") is (True if stream else None)
    assert KEY not in spans.everything()


async def turn(llm: ScriptedLLM, stream: bool) -> None:
    if not stream:
        await llm.chat(ASK)
        return
    async for _ in llm.stream_chat(ASK):
        pass


async def test_a_refusal_is_a_finish_reason(spans: Spans) -> None:
    llm = ScriptedLLM([LLMResult(Message.assistant("no"), Usage(1, 1), "refusal", "m")])
    with pytest.raises(RefusalError):
        await llm.chat(ASK)
    assert attributes(spans.all[0])["gen_ai.response.finish_reasons"] == ("refusal",)


async def test_a_call_that_breaks_says_by_what(spans: Spans) -> None:
    with pytest.raises(ZeroDivisionError):
        await ScriptedLLM([ZeroDivisionError("bug")]).chat(ASK)
    assert outcome(spans) == [("chat scripted", "ZeroDivisionError")]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_call_ends_its_span(spans: Spans, stream: bool) -> None:
    async def never(request: Any) -> Any:
        await asyncio.sleep(30)

    task = asyncio.create_task(turn(ScriptedLLM(never), stream))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert outcome(spans) == [("chat scripted", "cancelled")]


async def test_a_stream_left_in_the_middle_ends_its_span(spans: Spans) -> None:
    llm = ScriptedLLM(["a long enough text for several pieces"], chunk_size=4)
    async with aclosing(llm.stream_chat(ASK)) as chunks:
        async for _ in chunks:
            break
    assert outcome(spans) == [("chat scripted", "cancelled")]


async def test_a_streams_consumer_is_not_inside_its_span(spans: Spans) -> None:
    tracer = trace.get_tracer("host")
    with tracer.start_as_current_span("host"):
        async for _ in ScriptedLLM(["some text in pieces"], chunk_size=4).stream_chat(ASK):
            assert trace.get_current_span().name == "host"  # type: ignore[attr-defined]
            tracer.start_span("consumer").end()
        assert trace.get_current_span().name == "host"  # type: ignore[attr-defined]
    for span in spans.all:
        assert spans.above(span) == ([] if span.name == "host" else ["host"])


async def test_streams_interleaved_in_one_task_stay_apart(spans: Spans) -> None:
    tracer = trace.get_tracer("host")
    streams = []
    for name in ("one", "two"):
        with tracer.start_as_current_span(name):
            stream = ScriptedLLM(["text in pieces"], chunk_size=4, model_id=name).stream_chat(ASK)
            await anext(stream)
            streams.append(stream)
    for stream in reversed(streams):
        async for _ in stream:
            pass
    chats = {span.name: spans.above(span) for span in spans.all if span.name.startswith("chat")}
    assert chats == {"chat one": ["one"], "chat two": ["two"]}


@tool
def fails(word: str) -> str:
    """Fails with what it was given.

    Args:
        word: Anything.
    """
    raise RuntimeError(f"{word} {KEY}")


@tool
def traced(word: str) -> str:
    """Makes a span of its own, in its thread.

    Args:
        word: Anything.
    """
    trace.get_tracer("host").start_span("own").end()
    return word


async def test_an_agent_alone_and_its_tools(spans: Spans) -> None:
    know_secret(KEY)
    calls = [[("fails", {"word": KEY}), ("traced", {"word": "w"})], [("unknown", {})]]
    llm = ScriptedLLM([*calls, "done", "checked", "done"])
    await ReActAgent(llm, [fails, traced], metadata={"agent_id": "helper"}).run("the query")
    (run,) = spans.of("invoke_agent")
    assert run.name == "invoke_agent helper"
    assert attributes(run)["dagwright.agent.stop_reason"] == "final_answer"
    assert attributes(run)["gen_ai.usage.output_tokens"] > 0
    assert {span.name: attributes(span).get("error.type") for span in spans.of("execute_tool")} == {
        "execute_tool fails": "tool_error",
        "execute_tool traced": None,
    }
    own = next(span for span in spans.all if span.name == "own")
    assert spans.above(own) == ["execute_tool traced", "invoke_agent helper"]
    for text in (KEY, "the query", "RuntimeError"):
        assert text not in spans.everything()


async def test_an_agent_that_fails_says_by_what(spans: Spans) -> None:
    await ReActAgent(ScriptedLLM([AuthError("wrong key")])).run("q")
    assert outcome(spans) == [("chat scripted", "auth"), ("invoke_agent agent", "auth")]


async def test_without_a_provider_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.delenv("OTEL_PYTHON_TRACER_PROVIDER", raising=False)
    assert telemetry.agent(ScriptedLLM([]), None) is telemetry.NO_SPAN
    assert not telemetry.in_use()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    assert telemetry.workflow("dag") is telemetry.NO_SPAN


def test_a_job_without_telemetry_does_not_import_it() -> None:
    code = (
        "import asyncio, sys; from executor import run_job; from registry.testing import ScriptedLLM\n"
        "job = asyncio.run(run_job('g', ScriptedLLM(['a', 'a']), mode='react')); assert job.status == 'completed'\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus'))])"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, timeout=60)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        (None, "openai"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("http://127.0.0.1:1/v1", "openai"),
        ("http://bad:port/v1", "openai"),
    ],
)
def test_providers_are_known_by_their_host(spans: Spans, url: str | None, provider: str) -> None:
    from registry.adapters.openai_chat import OpenAIChatLLM

    with telemetry.agent(OpenAIChatLLM("m", base_url=url), "a"):
        pass
    assert attributes(spans.all[0])["gen_ai.provider.name"] == provider
