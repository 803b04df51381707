"""Histories of all kinds keep the providers' rules; what servers refuse is learned once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.history import paired
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.errors import BadRequestError
from registry.messages import Message, ToolCall
from tests.fakes import ProviderFake
from tests.support.adapters import TALK, TOOLS, models, sent
from tests.support.http_script import Answer, HttpScript, chat_reply, claude_reply

CALL = st.builds(
    lambda n, raw: ToolCall(n, "t.x", {}, raw),
    st.sampled_from(["a", "b", "c", ""]),
    st.sampled_from([None, "{}", "{", "null"]),
)
MESSAGE = st.one_of(
    st.builds(Message.system, st.sampled_from(["", "s"])),
    st.builds(Message.user, st.sampled_from(["", " ", "u"])),
    st.builds(Message.assistant, st.sampled_from(["", "t "]), st.lists(CALL, max_size=3)),
    st.builds(Message.tool, st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["", "r"]), st.booleans()),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(MESSAGE, max_size=10))
def test_paired_answers_each_call_once_directly_after_its_turn(messages: list[Message]) -> None:
    out = paired(messages)
    ids: list[str] = []
    at = 0
    while at < len(out):
        message = out[at]
        assert message.role != "tool"
        at += 1
        for call in message.tool_calls:
            assert out[at].role == "tool"
            assert out[at].tool_call_id == call.id
            ids.append(call.id)
            at += 1
    assert len(ids) == len(set(ids))
    assert "" not in ids
    others = [m for m in messages if m.role != "tool" and not m.tool_calls]
    assert [m for m in out if m.role != "tool" and not m.tool_calls] == others
    assert paired(out) == out


@settings(deadline=None, max_examples=25)
@given(st.lists(MESSAGE, max_size=8))
def test_any_history_keeps_every_providers_rules(messages: list[Message]) -> None:
    async def run() -> None:
        async with ProviderFake() as fake:
            url = fake.anthropic_url.removesuffix("/v1")
            for llm in models(url, model="fake-model", api_key="k", max_output_tokens=500):
                await llm.chat([Message.user("q"), *messages, Message.user("end")], tools=[{"name": "t.x"}])
            assert not fake.refusals

    asyncio.run(run())


def test_alternation_with_tools_between() -> None:
    llm = OpenAIChatLLM("m", base_url="http://x/v1", server="strict_alternation")
    roles = [message["role"] for message in sent(llm, TALK)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]


@pytest.mark.parametrize(
    ("words", "quirk"),
    [
        ("Conversation roles must alternate user/assistant/user/assistant/...", "strict_alternation"),
        ("System message must be at the beginning.", "strict_alternation"),
        ("The `reasoning_content` in the thinking mode must be passed back to the API.", "needs_reasoning_echo"),
    ],
)
async def test_a_servers_quirk_is_learned_from_its_refusal(words: str, quirk: str) -> None:
    refused = Answer({"error": {"message": words}}, status=400)
    async with HttpScript([refused, Answer(chat_reply())]) as server:
        llm = OpenAIChatLLM("m", base_url=server.url)
        await llm.chat(TALK)
        await llm.chat(TALK)
    assert llm.lessons.quirks == {quirk}
    assert len(server.bodies) == 3
    assert server.bodies[0] != server.bodies[1] == server.bodies[2]


async def test_tools_of_the_history_are_described_where_that_is_demanded() -> None:
    words = "Requests which have `tool_use` or `tool_result` blocks in `messages` must define tools"
    refused = Answer({"error": {"message": words}}, status=400)
    async with HttpScript([refused, Answer(claude_reply())]) as server:
        await AnthropicLLM("m", base_url=server.url).chat(TALK)
    assert "tools" not in server.bodies[0]
    assert [tool["name"] for tool in server.bodies[1]["tools"]] == ["search", "now"]
    assert server.bodies[1]["tool_choice"] == {"type": "none"}


async def test_concurrent_calls_all_learn_from_one_refusal_each_at_most() -> None:
    def answer(body: Any) -> Answer:
        if "temperature" in body:
            error = {"code": "unsupported_parameter", "param": "temperature", "message": "Unsupported parameter"}
            return Answer({"error": error}, status=400, delay=0.05)
        return Answer(chat_reply())

    async with HttpScript(answer) as server:
        llm = OpenAIChatLLM("m", base_url=server.url)
        await asyncio.gather(*(llm.chat([Message.user("q")], temperature=0.1) for _ in range(8)))
        assert len(server.bodies) <= 16
        await llm.chat([Message.user("q")], temperature=0.1)
        assert "temperature" not in server.bodies[-1]


async def test_a_wrong_value_is_not_dropped_in_silence() -> None:
    error = {"code": "invalid_value", "param": "temperature", "message": "temperature must be between 0 and 2"}
    async with HttpScript([Answer({"error": error}, status=400)]) as server:
        with pytest.raises(BadRequestError, match="between 0 and 2"):
            await OpenAIChatLLM("m", base_url=server.url).chat([Message.user("q")], temperature=7)
        assert len(server.bodies) == 1


async def test_a_refused_mechanism_is_named_and_not_tried_again() -> None:
    words = {
        "tools are not supported": "tools",
        "tool_choice required is not supported in thinking mode": "tool_choice",
        "response_format of type json_object is not supported with this model": "response_format",
    }
    for text, param in words.items():
        async with HttpScript([Answer({"error": {"message": text}}, status=400)]) as server:
            with pytest.raises(BadRequestError) as caught:
                await OpenAIChatLLM("m", base_url=server.url).chat(
                    [Message.user("q")], tools=TOOLS, tool_choice="required", response_format={"type": "json_object"}
                )
            assert (caught.value.param, len(server.bodies)) == (param, 1)
