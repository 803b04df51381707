"""Reasoning, stop reasons, calls, names and streams, as the adapters read them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.adapters.anthropic_messages import STOP_REASONS as CLAUDE_STOPS
from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.calls import CallAssembler, read_calls, real_name
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.adapters.openai_responses import OpenAIResponsesLLM
from registry.adapters.sse import json_events
from registry.adapters.wire import NAME, arguments_text, tool_names, wire_name
from registry.errors import UsageError
from registry.llm_types import ToolSpec
from registry.messages import Message, ToolCall
from tests.support.adapters import SCHEMA, TALK, TOOLS, models, sent
from tests.support.http_script import Answer, HttpScript, chat_reply, claude_events, claude_reply, response_reply


def test_reasoning_is_switched_off_only_where_there_is_any() -> None:
    chat = OpenAIChatLLM("m", base_url="http://x/v1")
    assert "reasoning_effort" not in sent(chat, TALK, effort=None)
    assert sent(OpenAIChatLLM("m", reasoning_effort="high"), TALK, effort=None)["reasoning_effort"] == "none"
    assert sent(OpenAIResponsesLLM("m"), TALK, effort=None)["reasoning"] == {"effort": "none"}
    assert "reasoning" not in sent(OpenAIResponsesLLM("m"), TALK)
    assert sent(AnthropicLLM("m"), TALK, effort=None)["thinking"] == {"type": "disabled"}
    assert "thinking" not in sent(AnthropicLLM("m"), TALK)


def test_claude_does_not_think_beside_a_forced_tool() -> None:
    llm = AnthropicLLM("m", reasoning_effort="high")
    body = sent(llm, TALK, TOOLS, {"name": "search"}, temperature=0.5)
    assert body["thinking"] == {"type": "disabled"}
    assert body["tool_choice"] == {"type": "tool", "name": "search"}
    assert body["temperature"] == 0.5
    assert sent(llm, TALK, TOOLS, "none")["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in sent(llm, TALK, None, "none")


async def test_claude_learns_to_switch_thinking_off_and_which_kind_the_model_knows() -> None:
    forced = Answer({"error": {"message": "Thinking may not be enabled when tool_choice forces tool use."}}, status=400)
    adaptive = Answer({"error": {"message": "adaptive thinking is not supported on this model"}}, status=400)
    effort = Answer({"error": {"message": "This model does not support the effort parameter."}}, status=400)
    good = Answer(claude_reply())
    async with HttpScript([forced, good, adaptive, effort, good]) as server:
        llm = AnthropicLLM("m", base_url=server.url)
        await llm.chat(TALK, tools=TOOLS, tool_choice="required")
        await llm.chat(TALK, max_tokens=8_000, reasoning_effort="high")
    bodies = server.bodies
    assert ["thinking" in body for body in bodies] == [False, True, True, True, True]
    assert bodies[1]["thinking"] == {"type": "disabled"}
    assert bodies[2]["thinking"] == {"type": "adaptive"}
    assert bodies[-1]["thinking"] == {"type": "enabled", "budget_tokens": 6_000}
    assert "output_config" not in bodies[-1]


THINKING = [
    {"type": "thinking", "thinking": "hmm", "signature": "sig=="},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}},
]


def thinking_events() -> list[Any]:
    """`THINKING` as the events of a stream."""
    events: list[Any] = [
        {
            "type": "message_start",
            "message": {
                "model": "m",
                "usage": {
                    "input_tokens": 5,
                    "output_tokens": 1,
                    "cache_read_input_tokens": 7,
                    "cache_creation_input_tokens": 3,
                },
            },
        }
    ]
    for index, block in enumerate(THINKING):
        start = {
            "thinking": {"type": "thinking", "thinking": "", "signature": ""},
            "text": {"type": "text", "text": ""},
        }
        events.append(
            {
                "type": "content_block_start",
                "index": index,
                "content_block": start.get(block["type"], {**block, "input": {}}),
            }
        )
        deltas: list[dict[str, str]] = {
            "thinking": [
                {"type": "thinking_delta", "thinking": "h"},
                {"type": "thinking_delta", "thinking": "mm"},
                {"type": "signature_delta", "signature": "sig=="},
            ],
            "text": [{"type": "text_delta", "text": "Let me look."}],
            "tool_use": [
                {"type": "input_json_delta", "partial_json": '{"q": '},
                {"type": "input_json_delta", "partial_json": '"x"}'},
            ],
        }[str(block["type"])]
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}})
    events.append({"type": "message_stop"})
    return events


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_blocks_go_back_unchanged_to_their_model_only(stream: bool) -> None:
    whole = {"output_tokens": 9, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3}
    at_once = Answer(claude_reply(*THINKING, stop="tool_use", **whole))
    async with HttpScript([Answer(chunks=claude_events(*thinking_events())) if stream else at_once]) as server:
        llm = AnthropicLLM("m", base_url=server.url)
        if stream:
            pieces = [piece async for piece in llm.stream_chat([Message.user("q")], tools=TOOLS)]
            assert "".join(piece.reasoning for piece in pieces) == "hmm"
            result = pieces[-1].result
            assert result is not None
        else:
            result = await llm.chat([Message.user("q")], tools=TOOLS)
    message = result.message
    assert (message.content, message.reasoning, result.finish_reason) == ("Let me look.", "hmm", "tool_calls")
    assert message.tool_calls == (ToolCall("t1", "search", {"q": "x"}),)
    assert result.usage is not None
    assert (result.usage.input_tokens, result.usage.cached_tokens, result.usage.output_tokens) == (15, 7, 9)
    assert result.usage.cache_write_tokens == 3
    message = Message.from_json(json.loads(json.dumps(message.to_json())))  # as after a restart
    talk = [Message.user("q"), message, Message.tool("t1", "r")]
    assert sent(llm, talk)["messages"][1]["content"] == THINKING
    assert sent(AnthropicLLM("other"), talk)["messages"][1]["content"] == THINKING[1:]
    assert "sig==" not in json.dumps([sent(other, talk) for other in models("http://x")[:2]])


async def test_encrypted_reasoning_goes_back_to_its_model_only() -> None:
    items: list[dict[str, Any]] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hmm"}],
            "encrypted_content": "enc",
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "search", "arguments": '{"q":"x"}'},
    ]
    events = claude_events({"type": "response.completed", "response": response_reply(*items)})
    async with HttpScript([Answer(response_reply(*items)), Answer(chunks=events)]) as server:
        llm = OpenAIResponsesLLM("m", base_url=server.url)
        whole = await llm.chat([Message.user("q")], tools=TOOLS)
        streamed = [piece async for piece in llm.stream_chat([Message.user("q")], tools=TOOLS)][-1].result
    assert streamed == whole
    assert (whole.message.reasoning, whole.finish_reason) == ("hmm", "tool_calls")
    talk = [Message.user("q"), whole.message, Message.tool("c1", "r")]
    assert sent(llm, talk)["input"][1:3] == items
    assert "enc" not in json.dumps(sent(OpenAIResponsesLLM("other"), talk)["input"])
    assert server.bodies[0]["store"] is False


@pytest.mark.parametrize("reason", CLAUDE_STOPS)
async def test_claude_stop_reasons(reason: str) -> None:
    from typing import get_args

    from anthropic.types import StopReason

    assert set(CLAUDE_STOPS) == set(get_args(StopReason))
    call = {"type": "tool_use", "id": "t", "name": "now", "input": {}}
    reply = claude_reply(*([call] if reason == "tool_use" else []), stop=reason)
    llm = AnthropicLLM("m")
    request = llm._request([Message.user("q")], TOOLS, None, None, None, None, None, stream=False)
    assert llm.parse(reply, llm.prepare(request)).finish_reason == CLAUDE_STOPS[reason]


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "completed"}, "stop"),
    ],
)
def test_responses_statuses(reply: dict[str, Any], finish: str) -> None:
    llm = OpenAIResponsesLLM("m")
    request = llm._request([Message.user("q")], None, None, None, None, None, None, stream=False)
    assert llm.parse(response_reply(**reply), llm.prepare(request)).finish_reason == finish


def test_arguments_are_replayed_as_an_object() -> None:
    for raw, text in (("null", "{}"), ('{"a": 1', "{}"), ("[1]", "{}"), ('{"a": NaN}', "{}"), ('{ "a":1}', None)):
        (call,) = read_calls([("i", "t", raw)], {})
        assert arguments_text(call) == (text or raw)
        assert call.decoded is (raw in ("null", '{ "a":1}'))
        if not call.decoded:
            assert (call.arguments, call.raw) == ({}, raw)
    assert arguments_text(ToolCall("i", "t", {"b": 2}, '{"a": 1}')) == '{"b":2}'  # rewritten since by a hook


def test_ids_used_before_are_replaced() -> None:
    calls = read_calls([("x", "a", "{}"), ("x", "b", "{}"), (None, "c", "{}"), ("y", "d", "{}")], {}, taken={"y"})
    assert calls[0].id == "x"
    assert len({call.id for call in calls} | {"y"}) == 5


@settings(deadline=None)
@given(st.lists(st.text(max_size=80), unique=True, max_size=8))
def test_names_are_valid_unique_and_come_back(names: list[str]) -> None:
    table = tool_names(tuple(ToolSpec(name, "", {}) for name in names))
    assert sorted(table.values()) == sorted(names)
    assert all(NAME.match(sent_name) for sent_name in table)
    assert all(real_name(sent_name, table) == name for sent_name, name in table.items())
    assert all(wire_name(name) in table for name in names)


def test_what_sticks_to_names_is_taken_off() -> None:
    names = tool_names((ToolSpec("list_rows", "", {}), ToolSpec("a.b", "", {})))
    for said in ("list_rows<|channel|>commentary", "functions.list_rows", "default_api:list_rows"):
        assert real_name(said, names) == "list_rows"
    assert real_name("a.b", names) == "a.b"
    assert real_name("unknown<|x|>", names) == "unknown"


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_streamed_calls_come_together_however_they_are_cut(data: st.DataObject) -> None:
    texts = data.draw(
        st.lists(st.sampled_from(['{"a": 1}', "{}", '{"b": "x y"}', '{"c": {"d": []}}']), min_size=1, max_size=3)
    )
    together = CallAssembler()
    for index, text in enumerate(texts):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        for number, piece in enumerate(pieces):
            head = {"id": f"c{index}"} if number == 0 else {}
            name = {"name": f"t{index}"} if number == 0 else {}
            together.add({"index": index, **head, "function": {**name, "arguments": piece}})
    assert together.calls() == [(f"c{n}", f"t{n}", text) for n, text in enumerate(texts)]


@settings(deadline=None, max_examples=60)
@given(st.data())
async def test_events_come_whole_however_the_bytes_are_cut(data: st.DataObject) -> None:
    raw = (
        'data: {"a": "ä"}\r\n\r\n: note\n\nevent: x\ndata: {"b":\ndata: 2}\n\ndata: oops\n\n'
        'data: {"c": 3}\n\ndata: [DONE]\n\ndata: {"d": 4}\n\n'
    ).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))

    async def chunks() -> Any:
        for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            yield raw[a:b]

    assert [event async for event in json_events(chunks())] == [{"a": "ä"}, {"b": 2}, {"c": 3}]


async def test_half_surrogates_and_nan_reach_the_wire_as_json() -> None:
    async with HttpScript([Answer(chat_reply())]) as server:
        call = ToolCall("c", "t", {"x": float("nan")})
        talk = [Message.user("a \ud83d b"), Message.assistant("", [call]), Message.tool("c", "\udcff")]
        await OpenAIChatLLM("m", base_url=server.url).chat(talk)
    assert json.loads(server.bodies[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"x": None}


def test_claude_has_no_json_mode() -> None:
    with pytest.raises(UsageError):
        sent(AnthropicLLM("m"), TALK, form={"type": "json_object"})
    with pytest.raises(UsageError, match="quirks"):
        AnthropicLLM("m", server={"odd"})
    body = sent(AnthropicLLM("m"), TALK, form={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}})
    assert body["output_config"]["format"]["schema"]["additionalProperties"] is False
