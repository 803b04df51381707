"""What the adapters send and read: pinned against the SDKs' own calls, and under the rules that providers enforce."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.adapters.anthropic_messages import STOP_REASONS as CLAUDE_STOPS
from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.base import SDKAdapter
from registry.adapters.calls import CallAssembler, read_calls, real_name
from registry.adapters.history import paired
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.adapters.openai_responses import OpenAIResponsesLLM
from registry.adapters.sse import json_events
from registry.adapters.wire import NAME, arguments_text, tool_names, wire_name
from registry.errors import BadRequestError, UsageError
from registry.llm import INHERIT, ToolSpec
from registry.messages import Message, ToolCall
from registry.testing import FakeClock
from tests.fakes import ProviderFake
from tests.support.http_script import Answer, HttpScript, chat_reply, claude_events, claude_reply, response_reply

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
TOOLS = [{"name": "search", "description": "Searches.", "parameters": SCHEMA}, {"name": "now", "description": "Time."}]
TALK = [
    Message.system("Be brief."),
    Message.user("Größe? 長さ 😀"),
    Message.assistant("Let me look.", [ToolCall("c1", "search", {"q": "x"}, '{"q": "x"}'), ToolCall("c2", "now")]),
    Message.tool("c1", "found"),
    Message.tool("c2", "failed", is_error=True),
    Message.user("go on"),
]


def models(url: str, model: str = "m", **options: Any) -> list[SDKAdapter]:
    options.setdefault("clock", FakeClock())
    return [
        OpenAIChatLLM(model, base_url=f"{url}/v1", **options),
        OpenAIResponsesLLM(model, base_url=f"{url}/v1", **options),
        AnthropicLLM(model, base_url=url, **options),
    ]


def sent(
    llm: SDKAdapter, messages: list[Message], tools: Any = None, choice: Any = None, **more: Any
) -> dict[str, Any]:
    """The body that would go out."""
    effort = more.get("effort", INHERIT)
    request = llm._request(
        messages, tools, choice, more.get("form"), more.get("temperature"), more.get("limit"), effort, stream=False
    )
    body: dict[str, Any] = json.loads(llm.prepare(request).body)
    return body


# The wire, pinned against the SDKs' documented calls


async def test_chat_body_is_what_create_sends() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}},
        {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    ]
    empty = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"parameters": empty, **tool}} for tool in TOOLS]
    async with HttpScript([Answer(chat_reply())]) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
            await client.chat.completions.create(
                model="m",
                messages=[
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": TALK[1].content},
                    {"role": "assistant", "content": "Let me look.", "tool_calls": calls},  # type: ignore[typeddict-item]
                    {"role": "tool", "tool_call_id": "c1", "content": "found"},
                    {"role": "tool", "tool_call_id": "c2", "content": "failed"},
                    {"role": "user", "content": "go on"},
                ],
                tools=tools,  # type: ignore[arg-type]
                tool_choice={"type": "function", "function": {"name": "search"}},
                parallel_tool_calls=False,
                temperature=0.5,
                max_tokens=99,
                reasoning_effort="low",
                response_format={"type": "json_object"},
            )
        llm = OpenAIChatLLM(
            "m", base_url=f"{server.url}/v1", api_key="k", parallel_tool_calls=False, reasoning_effort="low"
        )
        await llm.chat(
            [*TALK[:-1], Message.user("go on")],
            tools=TOOLS,
            tool_choice={"name": "search"},
            temperature=0.5,
            max_tokens=99,
            response_format={"type": "json_object"},
        )
    theirs, ours = server.bodies
    assert ours["messages"].pop()["content"].startswith(theirs["messages"].pop()["content"])  # the word JSON is added
    assert ours == theirs
    for name in ("Authorization", "Content-Type", "Accept", "User-Agent"):
        assert server.headers[0][name] == server.headers[1][name]


async def test_responses_body_is_what_create_sends() -> None:
    empty = {"type": "object", "properties": {}}
    tools = [{"type": "function", "strict": False, "parameters": empty, **tool} for tool in TOOLS]
    async with HttpScript([Answer(response_reply())]) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
            await client.responses.create(
                model="m",
                input=[
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": TALK[1].content},
                    {"role": "assistant", "content": "Let me look."},
                    {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": "x"}'},
                    {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c1", "output": "found"},
                    {"type": "function_call_output", "call_id": "c2", "output": "failed"},
                    {"role": "user", "content": "go on"},
                ],
                tools=tools,  # type: ignore[arg-type]
                tool_choice={"type": "function", "name": "search"},
                store=False,
                include=["reasoning.encrypted_content"],
                max_output_tokens=99,
                reasoning={"effort": "low"},
                text={"format": {"type": "json_schema", "name": "plan", "schema": SCHEMA, "strict": True}},
            )
        llm = OpenAIResponsesLLM("m", base_url=f"{server.url}/v1", api_key="k", reasoning_effort="low")
        form = {"type": "json_schema", "json_schema": {"name": "plan", "schema": SCHEMA, "strict": True}}
        await llm.chat(TALK, tools=TOOLS, tool_choice={"name": "search"}, max_tokens=99, response_format=form)
    assert server.bodies[0] == server.bodies[1]


async def test_messages_body_is_what_create_sends() -> None:
    tools = [
        {"name": "search", "description": "Searches.", "input_schema": SCHEMA},
        {"name": "now", "description": "Time.", "input_schema": {"type": "object", "properties": {}}},
    ]

    def text(words: str) -> dict[str, str]:
        return {"type": "text", "text": words}

    async with HttpScript([Answer(claude_reply())]) as server:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="k") as client:
            await client.messages.create(
                model="m",
                system="Be brief.",
                max_tokens=99,
                messages=[
                    {"role": "user", "content": [text(TALK[1].content)]},  # type: ignore[list-item]
                    {
                        "role": "assistant",
                        "content": [
                            text("Let me look."),  # type: ignore[list-item]
                            {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "x"}},
                            {"type": "tool_use", "id": "c2", "name": "now", "input": {}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "c1", "content": [text("found")]},  # type: ignore[list-item]
                            {"type": "tool_result", "tool_use_id": "c2", "content": [text("failed")], "is_error": True},  # type: ignore[list-item]
                            text("go on"),  # type: ignore[list-item]
                        ],
                    },
                ],
                tools=tools,  # type: ignore[arg-type]
                tool_choice={"type": "auto", "disable_parallel_tool_use": True},
                cache_control={"type": "ephemeral"},
                thinking={"type": "adaptive"},
                output_config={"effort": "low"},
            )
        llm = AnthropicLLM("m", base_url=server.url, api_key="k", parallel_tool_calls=False, reasoning_effort="low")
        await llm.chat(TALK, tools=TOOLS, tool_choice="auto", temperature=0.5, max_tokens=99)
    assert server.bodies[0] == server.bodies[1]
    for name in ("X-Api-Key", "anthropic-version", "Content-Type"):
        assert server.headers[0].get(name, "") == server.headers[1].get(name, "")


def test_a_message_is_serialised_once_and_tools_once_per_set() -> None:
    for llm in models("http://127.0.0.1:1"):
        specs = tuple(ToolSpec(tool["name"], "", SCHEMA) for tool in TOOLS)
        llm.prepare(llm._request(TALK, None, None, None, None, None, None, stream=False))
        before = [dict(message.wire) for message in TALK if message.role != "system"]
        assert all(before)
        first = llm._blocks.get(specs)
        assert llm._blocks.get(specs) is first
        llm.prepare(llm._request([*TALK, Message.user("more")], None, None, None, None, None, None, stream=False))
        for message, known in zip([m for m in TALK if m.role != "system"], before, strict=True):
            assert all(message.wire[key] is value for key, value in known.items())


def test_importing_and_constructing_imports_no_sdk() -> None:
    code = (
        "import sys\n"
        "from registry.adapters import openai_chat, openai_responses, anthropic_messages as a\n"
        "openai_chat.OpenAIChatLLM('m'); openai_responses.OpenAIResponsesLLM('m'); a.AnthropicLLM('m')\n"
        "print([name for name in ('openai', 'anthropic', 'httpx2', 'aiohttp', 'pydantic') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]", out.stderr


async def test_a_call_costs_at_most_half_of_the_documented_loops_cpu() -> None:
    """Prepared, sent and read against `create` with the same conversation; the server's share is in both."""
    talk = [Message.system("s"), Message.user("q")]
    plain: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    for turn in range(20):
        talk += [
            Message.assistant("", [ToolCall(f"c{turn}", "search", {"q": "x"}, '{"q": "x"}')]),
            Message.tool(f"c{turn}", "r"),
        ]
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
        plain += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": "r"},
        ]
    tools = [ToolSpec(tool["name"], "", SCHEMA) for tool in TOOLS]
    wire_tools: Any = [
        {"type": "function", "function": {"name": "search", "description": "", "parameters": SCHEMA}}
    ] * 2
    async with HttpScript([Answer(chat_reply())]) as server:
        llm = OpenAIChatLLM("m", base_url=f"{server.url}/v1")
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k") as client:

            async def ours() -> None:
                await llm.chat(talk, tools=tools)

            async def theirs() -> None:
                await client.chat.completions.create(model="m", messages=plain, tools=wire_tools)

            async def cpu(call: Any) -> float:
                start = time.process_time()
                for _ in range(20):
                    await call()
                return time.process_time() - start

            await cpu(ours), await cpu(theirs)
            ratios = sorted([await cpu(ours) / await cpu(theirs) for _ in range(5)])
    assert ratios[2] < 0.5


# Histories


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


# Reasoning


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


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_blocks_go_back_unchanged_to_their_model_only(stream: bool) -> None:
    events = [
        {
            "type": "message_start",
            "message": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 7}},
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
        )  # type: ignore[call-overload, dict-item]
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
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]  # type: ignore[dict-item]
        events.append({"type": "content_block_stop", "index": index})  # type: ignore[dict-item]
    events.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}})  # type: ignore[dict-item]
    events.append({"type": "message_stop"})
    answer = (
        Answer(chunks=claude_events(*events))
        if stream
        else Answer(claude_reply(*THINKING, stop="tool_use", output_tokens=9, cache_read_input_tokens=7))
    )
    async with HttpScript([answer]) as server:
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
    assert (result.usage.input_tokens, result.usage.cached_tokens, result.usage.output_tokens) == (12, 7, 9)
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


# Replies


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
