"""What the adapters send, pinned against what the SDKs' documented calls send."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import anthropic
import openai

from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.adapters.openai_responses import OpenAIResponsesLLM
from registry.llm_types import ToolSpec
from registry.messages import Message, ToolCall
from tests.support.adapters import SCHEMA, TALK, TOOLS, models
from tests.support.http_script import Answer, HttpScript, chat_reply, claude_reply, response_reply


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


def test_warmed_up_in_a_thread_the_first_client_imports_nothing() -> None:
    code = """
import asyncio, sys, threading
from registry import AnthropicLLM, ModelRegistry, OpenAIChatLLM, OpenAIResponsesLLM

models = ModelRegistry()
for kind in (OpenAIChatLLM, OpenAIResponsesLLM, AnthropicLLM):
    models.register(kind.__name__, kind("m", base_url="http://127.0.0.1:9/v1"))
thread = threading.Thread(target=models.warm_up)
thread.start()
thread.join()

async def first() -> None:
    for name in models.names():
        models.get(name)._clients.get()
    await models.aclose()

before = set(sys.modules)
asyncio.run(first())
new = set(sys.modules) - before
print(sorted(name for name in new if name.startswith(("openai", "anthropic", "httpx", "aiohttp"))))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
