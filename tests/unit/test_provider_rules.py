"""The provider fake keeps what its table says: seen from the real SDKs."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from tests.fakes import BAD_KEY, RULES, ProviderFake, Reply, Rule, View, brain
from tests.fakes.breaks import BREAKS, GOOD, chat, claude, responses
from tests.fakes.server import PATHS

PATH_OF = {dialect: path.removeprefix("/v1") for path, dialect in PATHS.items()}
TOOL = {"name": "calculate", "description": "Calculates.", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def fake() -> AsyncIterator[ProviderFake]:
    async with ProviderFake() as server:
        yield server


def openai_client(fake: ProviderFake, key: str = "k") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=fake.openai_url, api_key=key, max_retries=0)


def claude_client(fake: ProviderFake, key: str = "k") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=fake.anthropic_url, api_key=key, max_retries=0)


async def post(fake: ProviderFake, dialect: str, body: dict[str, Any] | bytes) -> Any:
    """Posts a body through the dialect's SDK, past its own types."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    if dialect == "anthropic":
        async with claude_client(fake) as client:
            return await client.post("/v1/messages", cast_to=dict[str, object], content=content)
    async with openai_client(fake) as client:
        return await client.post(PATH_OF[dialect], cast_to=dict[str, object], content=content)


def dialect_of(rule: Rule) -> str:
    return "chat" if rule.dialect == "any" else rule.dialect


def test_every_rule_has_a_row_of_its_own_and_an_example() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert set(BREAKS) == set(ids)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_row_says_where_it_comes_from(rule: Rule) -> None:
    assert rule.says
    assert rule.kind in ("documented", "seen")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", rule.date)
    seen = re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+| server, measured)", rule.source)
    page = re.fullmatch(r"platform\.(openai|claude)\.com/[\w/.-]+", rule.source)
    assert seen if rule.kind == "seen" else page


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
async def test_the_broken_rule_is_refused(rule: Rule, fake: ProviderFake) -> None:
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
        await post(fake, dialect_of(rule), BREAKS[rule.id])
    refused: Any = caught.value
    assert refused.status_code == rule.status
    assert [refusal.rule.id for refusal in fake.refusals] == [rule.id]
    assert not fake.views
    error = refused.body["error"] if rule.dialect == "anthropic" else refused.body
    assert error["message"] == fake.refusals[0].message
    assert error["type"] == ("server_error" if rule.status == 500 else "invalid_request_error")
    if rule.param and rule.dialect != "anthropic":
        assert error["param"] == rule.param


GOOD_CASES = [(dialect, index) for dialect, bodies in GOOD.items() for index in range(len(bodies))]


@pytest.mark.parametrize(("dialect", "index"), GOOD_CASES)
async def test_a_good_conversation_passes(dialect: str, index: int, fake: ProviderFake) -> None:
    await post(fake, dialect, GOOD[dialect][index])
    assert not fake.refusals
    assert [view.dialect for view in fake.views] == [dialect]


async def test_a_bad_key_is_a_401(fake: ProviderFake) -> None:
    async with openai_client(fake, BAD_KEY) as client, claude_client(fake, BAD_KEY) as other:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(**chat())
        with pytest.raises(anthropic.AuthenticationError):
            await other.messages.create(**claude())


async def test_models_are_listed_in_both_shapes(fake: ProviderFake) -> None:
    async with openai_client(fake) as client, claude_client(fake) as other:
        assert [model.id async for model in client.models.list()] == ["fake-model"]
        assert [model.id async for model in other.models.list()] == ["fake-model"]


FULL = Reply("Let me see.", calls=[("add", {"a": 2, "b": "ü"})], reasoning="two and three, hm", cached=3)


async def test_chat_plain_and_streamed_say_the_same() -> None:
    async with ProviderFake(lambda view: FULL) as fake, openai_client(fake) as client:
        plain = await client.chat.completions.create(**chat())
        stream = await client.chat.completions.create(**chat(), stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    message = plain.choices[0].message
    assert message.content == FULL.text
    whole = message.model_dump()["tool_calls"][0]["function"]["arguments"]
    assert json.loads(whole) == {"a": 2, "b": "ü"}
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == FULL.text
    functions = [delta.tool_calls[0].function for delta in deltas if delta.tool_calls]
    assert "".join((function and function.arguments) or "" for function in functions) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    billed = (plain.usage.prompt_tokens + chunks[-1].usage.prompt_tokens, 2 * plain.usage.completion_tokens)  # type: ignore[union-attr]
    assert billed == (fake.billed.input_tokens, fake.billed.output_tokens)


async def test_anthropic_plain_and_streamed_say_the_same() -> None:
    async with ProviderFake(lambda view: FULL) as fake, claude_client(fake) as client:
        plain = await client.messages.create(**claude())
        async with client.messages.stream(**claude()) as stream:
            kinds = [event.type async for event in stream]
            whole = await stream.get_final_message()
        raw = await client.messages.create(**claude(), stream=True)
        events = [event.type async for event in raw]
    strip = {"id", "usage"}
    assert whole.model_dump(exclude=strip, exclude_none=True)["stop_reason"] == "tool_use"
    for one, two in zip(plain.content, whole.content, strict=True):
        assert one.type == two.type
    assert plain.content[2].input == whole.content[2].input == {"a": 2, "b": "ü"}  # type: ignore[union-attr]
    assert plain.content[0].signature == whole.content[0].signature  # type: ignore[union-attr]
    assert plain.usage.cache_read_input_tokens == 3
    assert whole.usage.output_tokens == plain.usage.output_tokens
    assert kinds[0] == "message_start"
    assert events[0] == "message_start"
    assert events[-2:] == ["message_delta", "message_stop"]
    assert events.count("content_block_start") == events.count("content_block_stop") == 3


async def test_responses_plain_and_streamed_say_the_same() -> None:
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter

    asked = responses(include=["reasoning.encrypted_content"])
    async with ProviderFake(lambda view: FULL) as fake, openai_client(fake) as client:
        plain = await client.responses.create(**asked)
        events: list[Any] = [event async for event in await client.responses.create(**asked, stream=True)]
    Response.model_validate(plain.model_dump())  # strictly: the SDK's own reading lets anything pass
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event.model_dump())
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in plain.output] == ["reasoning", "message", "function_call"]
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message", "function_call"]
    assert plain.output_text == FULL.text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == FULL.text


async def test_what_the_fake_says_may_be_sent_back() -> None:
    """Reasoning, its item and the call go back as they came; without the reasoning they are refused."""
    async with ProviderFake(lambda view: FULL) as fake, openai_client(fake) as client:
        asked = responses(include=["reasoning.encrypted_content"])
        items = [item.model_dump(exclude_none=True) for item in (await client.responses.create(**asked)).output]
        answer = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "5"}
        asked["input"] = [*asked["input"], *items, answer]
        await client.responses.create(**asked)
        assert not fake.refusals
        del asked["input"][1]
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(**asked)
    assert [refusal.rule.id for refusal in fake.refusals] == ["responses-reasoning-before"]


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
async def test_the_output_limit_cuts(dialect: str) -> None:
    limit = {"chat": "max_tokens", "responses": "max_output_tokens", "anthropic": "max_tokens"}[dialect]
    body = {**GOOD[dialect][0], limit: 5}
    async with ProviderFake(lambda view: "x" * 100) as fake:
        reply = json.loads(json.dumps(await post(fake, dialect, body)))
    assert fake.billed.output_tokens == 5
    text = json.dumps(reply)
    assert "x" * 20 in text
    assert "x" * 21 not in text
    assert {"chat": '"length"', "responses": '"incomplete"', "anthropic": '"max_tokens"'}[dialect] in text


async def test_faults() -> None:
    replies = iter(
        [
            {"status": 429, "error": "slow down", "headers": {"retry-after": "7"}},
            {"status": 529, "error": "Overloaded"},
            {"text": "a longer text " * 20, "cut_after": 300},
            {"text": "a longer text " * 20, "stream_error": "Overloaded"},
        ]
    )
    async with ProviderFake(lambda view: next(replies)) as fake, claude_client(fake) as client:
        with pytest.raises(anthropic.RateLimitError) as limited:
            await client.messages.create(**claude())
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(anthropic.APIStatusError) as overloaded:
            await client.messages.create(**claude())
        assert overloaded.value.status_code == 529
        with pytest.raises(Exception, match=r"(?i)clos|peer|incomplete|disconnect|payload"):
            [event async for event in await client.messages.create(**claude(), stream=True)]
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            [event async for event in await client.messages.create(**claude(), stream=True)]
    assert fake.billed.calls == 2


def ask(system: str = "", text: str = "go", **more: Any) -> View:
    from tests.fakes.view import ViewMessage

    return View("chat", "fake-model", system, (ViewMessage("user", text),), **more)


PLAN = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": {"type": "object", "properties": {"id": {}, "task": {}}}}},
    "required": ["steps"],
}


def test_the_brain_knows_the_kinds_of_calls() -> None:
    forced = brain(ask(tools=({**TOOL, "schema": PLAN},), forced="calculate", choice="named"))
    assert [step["id"] for step in forced[0][1]["steps"]] == ["s1", "s2", "s3", "s4"]
    assert "steps" in json.loads(brain(ask(schema=PLAN, wants_json=True)))
    assert "steps" in json.loads(brain(ask(text=f"Plan it. Answer in JSON of this schema: {json.dumps(PLAN)} Go.")))
    verdict = {"type": "object", "properties": {"achieved": {"type": "boolean"}, "confidence": {"type": "number"}}}
    assert json.loads(brain(ask(schema=verdict))) == {"achieved": True, "confidence": 0.95}
    mode = {"type": "object", "properties": {"mode": {"enum": ["react", "dag"]}}, "required": ["mode"]}
    assert json.loads(brain(ask(schema=mode))) == {"mode": "dag"}
    pick = {"type": "object", "properties": {"tools": {"type": "array", "items": {"type": "string"}}}}
    assert json.loads(brain(ask(schema=pick))) == {"tools": ["calculate"]}


def test_the_brain_works_a_step_in_each_mode() -> None:
    schema = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
    assert brain(ask(tools=({**TOOL, "schema": schema},))) == [("calculate", {"expression": "6*7"})]
    said = json.loads(brain(ask('{"type": "tool_call"} or {"type": "final_answer"}; tools: calculate')))
    assert said["tool_name"] == "calculate"
    assert isinstance(brain(ask()), str)
