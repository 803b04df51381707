"""A whole job over real HTTP, as OpenTelemetry sees it: names, parents across parallel steps, no key, no content."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as conventions
from opentelemetry.trace import SpanKind, StatusCode

from executor import run_job
from executor.job_handle import start_job
from registry import AnthropicLLM, OpenAIChatLLM, OpenAIResponsesLLM, telemetry, tool
from registry.messages import Message
from registry.prices import Price
from registry.tool_context import ToolContext
from tests.fakes import ProviderFake, View, brain
from tests.fakes.brain import ANSWER, DIAMOND
from tests.support.command import command, openai
from tests.support.http_script import serving
from tests.support.spans import Spans, attributes, recorded

KEY = "zq-Very-Secret-Key-1"
GOAL = "Work out six times seven in two unmistakable halves."
EXPRESSION = "6*7"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    with recorded(monkeypatch) as found:
        yield found


@tool(read_only=True)
async def calculate(expression: str, context: ToolContext) -> str:
    """Calculates an arithmetic expression and gives the number.

    Args:
        expression: What is to be calculated.
    """
    reply = await context.llm().chat([Message.user(f"Check {expression} with {KEY}")])
    return f"42, checked: {reply.message.content}"


def script(view: View) -> Any:
    """Whole jobs, and the tool's own question."""
    last = view.messages[-1].text
    return "fine" if last.startswith("Check ") else brain(view)


async def test_a_whole_job(spans: Spans) -> None:
    async with ProviderFake(script) as fake:
        llm = OpenAIChatLLM("fake-model", base_url=fake.openai_url, api_key=KEY, price=Price(1, 2))
        job = await run_job(f"{GOAL} {KEY}", llm, tools=[calculate], mode="dag")
        await llm.aclose()
    assert job.status == "completed"
    assert KEY not in json.dumps(fake.requests)

    count = Counter(span.name for span in spans.all)
    assert count["invoke_workflow dagwright"] == count["plan"] == 1
    assert {name for name in count if name.startswith("invoke_agent")} == {f"invoke_agent {s['id']}" for s in DIAMOND}
    assert count["execute_tool calculate"] == len(DIAMOND)
    assert count["chat fake-model"] == len(fake.views)
    known = {value for name, value in vars(conventions).items() if name.startswith("GEN_AI_")}
    used = {name for span in spans.all for name in attributes(span) if name.startswith("gen_ai.")}
    assert used <= known
    values = {member.value for member in conventions.GenAiOperationNameValues}
    assert {attributes(span)["gen_ai.operation.name"] for span in spans.all} <= values | {"plan"}

    (workflow,) = spans.of("invoke_workflow")
    assert spans.parent(workflow) is None
    assert all(spans.above(span)[-1:] == [workflow.name] for span in spans.all if span is not workflow)
    assert {attributes(span)["gen_ai.conversation.id"] for span in spans.all} == {job.id}
    assert attributes(workflow)["dagwright.job.status"] == "completed"
    assert attributes(workflow)["dagwright.cost"] == pytest.approx(float(job.usage.cost or 0))
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.all)

    for span in [*spans.of("execute_tool"), *spans.of("chat")]:
        step = attributes(span).get("dagwright.step.id")
        agents = [name for name in spans.above(span) if name.startswith("invoke_agent")]
        assert agents == ([f"invoke_agent {step}"] if step else [])
    inside = [span for span in spans.of("chat") if "execute_tool calculate" in spans.above(span)]
    assert len(inside) == len(DIAMOND)
    assert {attributes(span)["dagwright.model.role"] for span in inside} == {"tool"}
    (planned,) = [span for span in spans.of("chat") if "plan" in spans.above(span)]
    assert attributes(planned)["dagwright.model.role"] == "planner"

    used_tokens = sum(attributes(span)["gen_ai.usage.input_tokens"] for span in spans.of("chat"))
    assert used_tokens == fake.billed.input_tokens
    one = next(span for span in spans.of("chat") if attributes(span).get("dagwright.step.id") == "s1")
    seen = attributes(one)
    assert one.kind is SpanKind.CLIENT
    assert seen["gen_ai.provider.name"] == "openai"
    assert (seen["gen_ai.request.model"], seen["gen_ai.response.model"]) == ("fake-model", "fake-model")
    assert (seen["server.address"], seen["server.port"]) == ("127.0.0.1", fake.port)
    assert seen["gen_ai.response.finish_reasons"] == ("tool_calls",)
    run = attributes(spans.of("execute_tool")[0])
    assert (run["gen_ai.tool.name"], run["gen_ai.tool.type"]) == ("calculate", "function")
    assert run["gen_ai.tool.call.id"]

    sent = spans.everything()
    for text in (KEY, GOAL, EXPRESSION, ANSWER, "checked", DIAMOND[0]["task"]):
        assert text not in sent


async def test_parallel_steps_have_overlapping_spans_of_their_own(spans: Spans) -> None:
    async with ProviderFake(script) as fake:
        llm = AnthropicLLM("fake-model", base_url=fake.anthropic_url, api_key=KEY)
        await run_job(GOAL, llm, tools=[calculate], mode="dag")
        await llm.aclose()
    agents = {attributes(span)["gen_ai.agent.name"]: span for span in spans.of("invoke_agent")}
    s2, s3 = agents["s2"], agents["s3"]
    assert max(s2.start_time or 0, s3.start_time or 0) < min(s2.end_time or 0, s3.end_time or 0)
    assert attributes(s2)["gen_ai.agent.id"] != attributes(s3)["gen_ai.agent.id"]
    assert {attributes(span)["gen_ai.provider.name"] for span in spans.of("chat")} == {"anthropic"}


async def test_content_is_captured_when_asked_for_and_redacted(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry._Content, "captured", True)
    async with ProviderFake(script) as fake:
        llm = OpenAIResponsesLLM("fake-model", base_url=fake.openai_url, api_key=KEY)
        await run_job(f"{GOAL} {KEY}", llm, tools=[calculate], mode="react")
        await llm.aclose()
    chats = [attributes(span) for span in spans.of("chat")]
    first = next(seen for seen in chats if seen["dagwright.model.role"] == "agent")
    (asked,) = json.loads(first["gen_ai.input.messages"])
    assert asked["role"] == "user"
    assert f"{GOAL} ***" in asked["parts"][0]["content"]
    (replied,) = json.loads(first["gen_ai.output.messages"])
    assert replied["parts"][0]["type"] == "tool_call"
    assert replied["parts"][0]["arguments"] == {"expression": EXPRESSION}
    assert replied["finish_reason"] == "tool_calls"
    assert json.loads(first["gen_ai.system_instructions"])[0]["type"] == "text"
    run = attributes(spans.of("execute_tool")[0])
    assert json.loads(run["gen_ai.tool.call.arguments"]) == {"expression": EXPRESSION}
    assert run["gen_ai.tool.call.result"].startswith("42, checked")
    assert KEY not in spans.everything()


async def test_an_echoing_provider_puts_no_key_into_a_span(spans: Spans) -> None:
    def refuse(view: View) -> Any:
        return {"status": 401, "error": f"Incorrect API key provided: {KEY}"}

    async with ProviderFake(refuse) as fake:
        llm = OpenAIChatLLM("fake-model", base_url=fake.openai_url, api_key=KEY)
        job = await run_job(GOAL, llm, tools=[calculate], mode="dag")
        await llm.aclose()
    assert job.status == "failed"
    assert {attributes(span)["error.type"] for span in spans.all} == {"auth"}
    assert all(span.status.status_code is StatusCode.ERROR for span in spans.all)
    assert len(spans.of("chat")) == 1
    assert all(not span.events for span in spans.all)
    assert KEY not in spans.everything()


async def test_a_cancelled_job_leaves_no_span_open(spans: Spans) -> None:
    reached = asyncio.Event()

    async def slow(view: View) -> Any:
        if view.tools and view.forced is None:
            reached.set()
            await asyncio.sleep(30)
        return brain(view)

    async with ProviderFake(slow) as fake:
        llm = OpenAIChatLLM("fake-model", base_url=fake.openai_url, api_key=KEY)
        handle = start_job(GOAL, llm, tools=[calculate], mode="dag")
        await asyncio.wait_for(reached.wait(), 30)
        handle.cancel()
        job = await handle.result()
        await llm.aclose()
    assert job.status == "cancelled"
    assert [span.name for span in spans.of("invoke_workflow")] == ["invoke_workflow dagwright"]
    hit = [span for span in spans.all if span.status.status_code is StatusCode.ERROR]
    assert {attributes(span)["error.type"] for span in hit} == {"cancelled"}
    assert Counter(attributes(span)["gen_ai.operation.name"] for span in hit) == {
        "invoke_workflow": 1,
        "invoke_agent": 1,
        "chat": 1,
    }


@asynccontextmanager
async def collector() -> AsyncIterator[tuple[str, list[Any]]]:
    """An OTLP collector on loopback: its address, and the resource spans it was sent."""
    got: list[Any] = []

    async def take(http: web.Request) -> web.Response:
        assert http.path == "/v1/traces"
        got.extend(ExportTraceServiceRequest.FromString(await http.read()).resource_spans)
        return web.Response()

    async with serving(take) as port:
        yield f"http://127.0.0.1:{port}", got


@pytest.mark.parametrize("setting", ["", "true"])
async def test_the_command_sends_spans_by_otlp(tmp_path: Path, setting: str) -> None:
    async with ProviderFake(brain) as fake, collector() as (url, got):
        env = {**openai(fake, KEY), "OTEL_EXPORTER_OTLP_ENDPOINT": url, "DAGWRIGHT_TELEMETRY": setting}
        ended = await command("run", GOAL, home=tmp_path, env=env)
    assert (ended.code, "Traceback" in ended.err) == (0, False)
    names = {
        attribute.value.string_value
        for resource in got
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
    }
    assert names == {"dagwright"}
    seen = [span.name for resource in got for scope in resource.scope_spans for span in scope.spans]
    assert seen.count("invoke_workflow dagwright") == 1
    assert len([name for name in seen if name.startswith("chat ")]) == len(fake.views)
    assert KEY not in str(got)
    assert GOAL not in str(got)


async def test_the_setting_turns_telemetry_off(tmp_path: Path) -> None:
    async with ProviderFake(brain) as fake, collector() as (url, got):
        env = {**openai(fake), "OTEL_EXPORTER_OTLP_ENDPOINT": url, "DAGWRIGHT_TELEMETRY": "false"}
        ended = await command("run", GOAL, home=tmp_path, env=env)
    assert (ended.code, got) == (0, [])


async def test_a_collector_that_is_gone_costs_a_warning(tmp_path: Path) -> None:
    async with ProviderFake(brain) as fake:
        nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        ended = await command("run", GOAL, home=tmp_path, env={**openai(fake), **nowhere})
    assert ended.code == 0
    assert "Traceback" not in ended.err
    assert "Failed to export spans" in ended.err


WITHOUT_OTEL = (
    "-c",
    "import sys; sys.modules['opentelemetry.sdk.trace'] = None; "
    "from executor.cli import main; raise SystemExit(main())",
)


async def test_without_the_extra_it_is_told_what_to_install(tmp_path: Path) -> None:
    async with ProviderFake(brain) as fake:
        asked = {**openai(fake), "DAGWRIGHT_TELEMETRY": "true"}
        refused = await command("run", GOAL, home=tmp_path, env=asked, start=WITHOUT_OTEL)
        named = {**openai(fake), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
        warned = await command("run", GOAL, home=tmp_path, env=named, start=WITHOUT_OTEL)
    assert refused.code == 2
    assert "pip install 'dagwright[otel]'" in refused.err
    assert warned.code == 0
    assert "telemetry_unavailable" in warned.err
