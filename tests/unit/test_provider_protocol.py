"""Cases from public bug reports on the providers' protocols, as far as an adapter alone decides them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.errors import LLMError
from registry.llm import LLM
from registry.messages import LLMResult, Message, ToolCall
from registry.prices import Price
from registry.testing import FakeClock
from tests.support.http_script import Answer, HttpScript, chat_chunks, chat_reply

FILE = Path(__file__).parent.parent / "cases" / "provider_protocol.jsonl"
CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines() if line.strip()]
LOOP_DECIDES = {"pp-anth-end-turn-empty", "pp-stop-empty", "pp-hidden-length", "pp-length-tool-call"}
"""Here the adapter only hands on what came: the agent's loop judges it (tested there); the finish reason is ours."""


def of(direction: str, *, with_loop: bool = False) -> list[Any]:
    return [
        pytest.param(case, id=case["id"])
        for case in CASES
        if case["context"]["direction"] == direction and (with_loop or case["id"] not in LOOP_DECIDES)
    ]


def model(case: dict[str, Any], url: str, **options: Any) -> LLM:
    if case["context"]["provider"] == "anthropic":
        return AnthropicLLM("m", base_url=url, clock=FakeClock(), **options)
    server = case["context"].get("server")
    return OpenAIChatLLM("m", base_url=f"{url}/v1", server=server, clock=FakeClock(), **options)


def history(messages: list[dict[str, Any]]) -> list[Message]:
    """The wire's messages in our words."""
    out: list[Message] = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            results = [block for block in content if block["type"] == "tool_result"]
            out += [Message.tool(block["tool_use_id"], block["content"]) for block in results]
            calls = [ToolCall(b["id"], b["name"], b["input"]) for b in content if b["type"] == "tool_use"]
            if calls:
                out.append(Message.assistant("", calls))
        elif message["role"] == "tool":
            out.append(Message.tool(message["tool_call_id"], content))
        else:
            calls = [
                ToolCall(call["id"], call["function"]["name"], {}, call["function"]["arguments"])
                for call in message.get("tool_calls") or ()
            ]
            reasoning = message.get("reasoning_content")
            out.append(Message(message["role"], content or "", tuple(calls), reasoning=reasoning))
    return out


def body_of(case: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What would be sent for a request case, and the tools' names as sent."""
    given = case["input"]
    if "tool_output" in given:
        call = ToolCall(given["tool_use_id"], "t", {})
        messages = [Message.user("q"), Message.assistant("", [call]), Message.tool(call.id, given["tool_output"])]
    else:
        messages = history(given.get("messages", [{"role": "user", "content": "q"}]))
    if "keep_last" in given:
        messages = [*messages[:1], *messages[-given["keep_last"] :]]
    tools = [{"name": name} for name in given.get("tools", ())]
    llm = model(case, "http://127.0.0.1:1", parallel_tool_calls=given.get("parallel_tool_calls"))
    request = llm._request(messages, tools, None, given.get("response_format"), None, None, None, stream=False)
    prepared = llm.prepare(request)
    return json.loads(prepared.body), dict(prepared.names)


def texts(body: dict[str, Any]) -> list[str]:
    return [
        message["content"] if isinstance(message["content"], str) else json.dumps(message["content"])
        for message in body["messages"]
    ]


def check_facts(expected: dict[str, Any], body: dict[str, Any]) -> None:
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    for fact, value in expected.items():
        if fact == "system":
            assert "system" not in body
        elif fact == "system_contains":
            assert all(text in body["system"] for text in value)
        elif fact in ("roles", "roles_in_messages"):
            assert roles == value
        elif fact == "first_role":
            assert roles[0] == value
        elif fact == "last_role":
            assert roles[-1] == value
        elif fact == "tool_result_ids":
            turn = messages[expected["message_index"]]
            results = {block["tool_use_id"]: block for block in turn["content"]}
            assert turn["role"] == expected["role"]
            assert list(results) == value
            assert {i: bool(results[i].get("is_error")) for i in expected["is_error"]} == expected["is_error"]
        elif fact == "tool_ids":
            assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == value
        elif fact == "arguments":
            calls = [call for message in messages for call in message.get("tool_calls", ())]
            assert {call["id"]: call["function"]["arguments"] for call in calls} == value
        elif fact == "params":
            assert value.items() <= body.items()
        elif fact == "absent":
            assert not set(value) & set(body)
        elif fact == "assistant_has":
            assert value.items() <= next(m for m in messages if m["role"] == "assistant").items()
        elif fact == "assistant_has_key":
            assert all(value in message for message in messages if message["role"] == "assistant")
        elif fact == "user_text_contains":
            assert all(text in next(m for m in messages if m["role"] == "user")["content"] for text in value)
        else:
            assert fact in ("rule", "message_index", "role", "is_error"), f"fact {fact} is not checked"


def rule_empty_tool_output(body: dict[str, Any], given: dict[str, Any]) -> bool:
    block = body["messages"][-1]["content"][0]
    return block["tool_use_id"] == "t1" and all(part["text"].strip() for part in block["content"])


def rule_pairs(body: dict[str, Any], given: dict[str, Any]) -> bool:
    open_ids: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            open_ids.remove(message["tool_call_id"])
        else:
            assert not open_ids
            open_ids = [call["id"] for call in message.get("tool_calls", ())]
    return not open_ids


RULES: dict[str, Any] = {
    "pp-anth-empty-tool-output": rule_empty_tool_output,
    "pp-anth-ends-with-assistant": lambda body, given: "step one done" in texts(body)[1],
    "pp-anth-trailing-space": lambda body, given: body["messages"][-1]["role"] == "user",
    "pp-json-word": lambda body, given: (
        "json" in texts(body)[0].lower() and texts(body)[0].startswith(given["messages"][0]["content"])
    ),
    "pp-json-word-already": lambda body, given: body["messages"] == given["messages"],
    "pp-oai-bad-args-in-history": lambda body, given: isinstance(
        json.loads(body["messages"][1]["tool_calls"][0]["function"]["arguments"]), dict
    ),
    "pp-oai-trim-keeps-pairs": rule_pairs,
    "pp-strict-late-system": lambda body, given: any("s2" in text for text in texts(body)),
}


@pytest.mark.parametrize("case", [c for c in of("request") + of("trim") if "first_error" not in c.values[0]["input"]])
def test_request(case: dict[str, Any]) -> None:
    body, names = body_of(case)
    expected = case["expect"]["request"]
    options = [expected, *(other["request"] for other in case.get("also_ok", ()))]
    for number, facts in enumerate(options):
        try:
            check_facts(facts, body)
            break
        except AssertionError:
            if number == len(options) - 1:
                raise
    if "rule" in expected and case["id"] in RULES:
        assert RULES[case["id"]](body, case["input"])
    elif "rule" in expected:
        assert case["id"] == "pp-tool-name-dot"  # the only rule about replies: the next test
        assert set(names.values()) == set(case["input"]["tools"])


async def test_sanitised_tool_names_come_back_as_the_real_ones() -> None:
    tools = [{"name": name} for name in ("drive.search", "Dockerfile problems scanner", "drive_search")]

    def answer(body: Any) -> Answer:
        sent = [tool["function"]["name"] for tool in body["tools"]]
        assert len(set(sent)) == len(tools)
        calls = [{"id": n, "type": "function", "function": {"name": n, "arguments": "{}"}} for n in sent]
        return Answer(chat_reply(None, tool_calls=calls, finish_reason="tool_calls"))

    async with HttpScript(answer) as server:
        result = await OpenAIChatLLM("m", base_url=server.url).chat([Message.user("q")], tools=tools)
    assert [call.name for call in result.message.tool_calls] == [tool["name"] for tool in tools]


@pytest.mark.parametrize("case", [c for c in of("request") if "first_error" in c.values[0]["input"]])
async def test_learns_from_a_refusal_once(case: dict[str, Any]) -> None:
    error = dict(case["input"]["first_error"])
    refused = Answer({"error": {name: error[name] for name in ("code", "param", "message")}}, status=error["status"])
    async with HttpScript([refused, Answer(chat_reply())]) as server:
        llm = model(case, server.url, max_output_tokens=100)
        await llm.chat([Message.user("q")], temperature=0.5)
        await llm.chat([Message.user("q")], temperature=0.5)
    assert len(server.bodies) == case["expect"]["calls"] + 1
    for body in server.bodies[1:]:
        assert set(case["expect"]["second_request"].get("params_present", ())) <= set(body)
        assert not set(case["expect"]["second_request"]["absent"]) & set(body)


def check_result(expected: dict[str, Any], result: LLMResult, case_id: str) -> None:
    calls = result.message.tool_calls
    for fact, value in expected.items():
        if fact == "text":
            assert result.message.content == value
        elif fact == "thinking":
            assert result.message.reasoning == value
        elif fact == "calls":
            assert [call.name for call in calls] == value
            assert len({call.id for call in calls} - {""}) == len(value)
        elif fact == "tool_calls":
            assert len(calls) == len(value)
            for call, wanted in zip(calls, value, strict=True):
                assert {"id": call.id, "name": call.name, "arguments": call.arguments}.items() >= wanted.items()
        elif fact == "usage" and value is None:
            assert result.usage is None
        elif fact == "usage":
            assert result.usage is not None
            known = result.usage
            counts = {"input": known.input_tokens, "output": known.output_tokens, "cached": known.cached_tokens}
            assert counts.items() >= value.items()
        elif fact == "cost":
            assert result.usage is None or result.usage.cost is None
        else:
            assert fact == "rule", f"fact {fact} is not checked"


@pytest.mark.parametrize("case", of("response"))
async def test_response(case: dict[str, Any]) -> None:
    given = case["input"]
    message = given.get("message") or given["reply"]
    finish = given.get("finish_reason") or message.get("finish_reason")
    reply = chat_reply(**{**message, "finish_reason": finish, "usage": given.get("usage")})
    tools = [{"name": name} for name in given.get("tools", ())]
    async with HttpScript([Answer(reply)]) as server:
        llm = model(case, server.url, price=Price(1, 2))  # type: ignore[arg-type]
        if "raises" in case["expect"]:
            with pytest.raises(LLMError) as caught:
                await llm.chat([Message.user("q")], tools=tools)
            assert (caught.value.code, caught.value.retryable) == (
                case["expect"]["raises"],
                case["expect"]["retryable"],
            )
            assert len(server.bodies) == case["expect"]["calls"]
        else:
            result = await llm.chat([Message.user("q")], tools=tools)
            check_result(case["expect"]["result"], result, case["id"])
            if result.message.tool_calls:  # the next request pairs them, whatever the ids were
                after = [Message.tool(call.id, f"r{n}") for n, call in enumerate(result.message.tool_calls)]
                await llm.chat([Message.user("q"), result.message, *after], tools=tools)
                assert rule_pairs(server.bodies[-1], {})


@pytest.mark.parametrize("case", of("stream"))
async def test_stream(case: dict[str, Any]) -> None:
    given = case["input"]
    if "raw" in given:
        finish = chat_chunks()[0]
        chunks = [given["raw"].replace("data: [DONE]", f"{finish}data: [DONE]")]
    else:
        chunks = chat_chunks(*given["chunks"])
    async with HttpScript([Answer(chunks=chunks)]) as server:
        llm = model(case, server.url)
        pieces = [chunk async for chunk in llm.stream_chat([Message.user("q")], tools=[{"name": "s"}])]
    result = pieces[-1].result
    assert result is not None
    check_result(case["expect"]["result"], result, case["id"])
    assert "".join(piece.text for piece in pieces) == result.message.content


async def test_a_refusal_is_raised_with_its_text_after_one_call() -> None:
    case = next(case for case in CASES if case["id"] == "pp-refusal")
    async with HttpScript([Answer(chat_reply(**case["input"]["message"]))]) as server:
        with pytest.raises(LLMError, match="I cannot help") as caught:
            await model(case, server.url).chat([Message.user("q")])
    assert (caught.value.code, caught.value.retryable, len(server.bodies)) == ("refusal", False, 1)


@pytest.mark.parametrize("case_id", sorted(LOOP_DECIDES))
async def test_what_the_loop_judges_is_handed_on(case_id: str) -> None:
    case = next(case for case in CASES if case["id"] == case_id)
    if case["context"]["provider"] == "anthropic":
        from tests.support.http_script import claude_reply

        reply = {**claude_reply(), "content": []}
    else:
        given = case["input"]
        usage = {"prompt_tokens": 5, "completion_tokens": 2, **given.get("usage", {})}
        reply = chat_reply(**given["message"], finish_reason=given["finish_reason"], usage=usage)
    limit = case["input"].get("request_max_tokens") if isinstance(case["input"], dict) else None
    async with HttpScript([Answer(reply)]) as server:
        result = await model(case, server.url).chat([Message.user("q")], tools=[{"name": "write"}], max_tokens=limit)
    empty = "empty" in case_id
    assert result.finish_reason == ("stop" if empty else "length")
    assert bool(result.message.tool_calls) is not empty
    assert result.message.content == ""
