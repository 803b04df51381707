"""The public failure cases of one agent run and of structured calls, each built from the words of its script."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent import ReActAgent, StructuredOutputError, structured_llm_call
from agent.state import AgentResult
from executor.step_run import outcome_of
from registry import AnthropicLLM, OpenAIChatLLM
from registry.errors import BadRequestError, ContextLengthError
from registry.llm_types import ChatRequest
from registry.messages import LLMResult, Message, ToolCall, Usage
from registry.testing import ScriptedLLM
from registry.tools import Tool
from tests.support.http_script import Answer, HttpScript

FILE = Path(__file__).parent.parent / "cases" / "execution.jsonl"
CASES = {row["id"]: row for row in map(json.loads, FILE.read_text(encoding="utf-8").splitlines())}
HERE: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {}
NO_ARGUMENTS = {"type": "object", "properties": {}}


def case(name: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        HERE[name] = function
        return function

    return register


def named(name: str, run: Callable[..., Any], parameters: Any = None, **declared: Any) -> Tool:
    return Tool(name, f"The tool {name}.", parameters or {"type": "object"}, run, **declared)


def turns(script: list[Any]) -> list[Any]:
    """`model_turns` of a case: lists of calls, then the final text."""
    made = []
    for number, turn in enumerate(script):
        if isinstance(turn, str):
            made.append(turn)
        else:
            made.append([ToolCall(f"c{number}_{at}", call["tool"], call["arguments"]) for at, call in enumerate(turn)])
    return made


def status(result: AgentResult) -> str:
    """What a plan's step would become."""
    return "completed" if outcome_of(result).error_code is None else "failed"


def tool_messages(result: AgentResult) -> list[Message]:
    return [message for message in result.messages if message.role == "tool"]


async def run(case: dict[str, Any], *tools: Tool, **options: Any) -> tuple[AgentResult, ScriptedLLM]:
    llm = ScriptedLLM(turns(case["input"]["model_turns"]))
    return await ReActAgent(llm, tools, **options).run("q"), llm


@case("ex-bytes-output")
async def bytes_output(case: dict[str, Any]) -> None:
    result, _ = await run(case, named("raw", lambda: b"\xff\xfehi"))
    assert "hi" in tool_messages(result)[0].content
    assert status(result) == "completed"


@case("ex-circular")
async def circular(case: dict[str, Any]) -> None:
    def itself() -> dict[str, Any]:
        value: dict[str, Any] = {}
        value["self"] = value
        return value

    result, _ = await run(case, named("q", itself))
    assert tool_messages(result)[0].content
    assert status(result) == "completed"


async def sent(status_code: int, body: Any, adapter: type = OpenAIChatLLM) -> tuple[AgentResult, HttpScript]:
    """One run against a server that always answers like this."""
    async with HttpScript([Answer(body, status_code)]) as server:
        path = "" if adapter is AnthropicLLM else "/v1"
        llm = adapter("m", api_key="k", base_url=server.url + path)
        try:
            return await ReActAgent(llm).run("a question " * 50), server
        finally:
            await llm.aclose()


@case("ex-context-too-long")
async def context_too_long(case: dict[str, Any]) -> None:
    reply = case["input"]["replies"][0]
    for adapter in (OpenAIChatLLM, AnthropicLLM):
        result, server = await sent(reply["status"], reply["body"], adapter)
        assert result.stop_reason == "context_length"
        bodies = [json.dumps(body) for body in server.bodies]
        assert len(bodies) == len(set(bodies))


@case("ex-context-too-long-nobody")
async def context_too_long_nobody(case: dict[str, Any]) -> None:
    result, server = await sent(400, "")
    assert result.error == "bad_request"
    assert len(server.bodies) == 1
    assert BadRequestError().retryable is False


@case("ex-huge-error")
async def huge_error(case: dict[str, Any]) -> None:
    def fail() -> str:
        raise RuntimeError("x" * 500_000)

    result, _ = await run(case, named("fetch", fail))
    message = tool_messages(result)[0]
    assert len(message.content) <= case["input"]["limit_chars"]
    assert message.is_error


@case("ex-loop-empty-args")
async def loop_empty_args(case: dict[str, Any]) -> None:
    runs = []
    todo = named("write_todos", lambda items: runs.append(1) or "ok", {"type": "object", "properties": {"items": {}}})
    llm = ScriptedLLM(lambda request: [ToolCall("c", "write_todos", {"items": []})])
    result = await ReActAgent(llm, [todo], max_iterations=30).run("q")
    assert (status(result), result.stop_reason) == ("failed", "loop_detected")
    assert len(runs) <= case["expect"]["tool_runs_max"]


@case("ex-many-medium-outputs")
async def many_medium_outputs(case: dict[str, Any]) -> None:
    """The server counts four characters a token and refuses what is over its context."""
    bodies: list[str] = []

    def reply(request: ChatRequest) -> Any:
        text = "".join(message.content for message in request.messages)
        bodies.append(json.dumps([(message.role, message.content) for message in request.messages]))
        if len(text) / 4 > 32_000:
            return ContextLengthError("too long", context_size=32_000)
        if not request.tools:
            return "summary"
        done = sum("calls" in message.content or message.role == "tool" for message in request.messages)
        return [ToolCall(f"c{len(bodies)}", "read", {"n": len(bodies)})] if len(bodies) < 45 and done < 99 else "done"

    read = named(
        "read", lambda n: f"{n:05d}" + "y" * 14_995, {"type": "object", "properties": {"n": {"type": "integer"}}}
    )
    llm = ScriptedLLM(reply, context_size=32_000, max_output_tokens=4_000)
    result = await ReActAgent(llm, [read], completion_check=False).run("q")
    assert result.stop_reason in ("final_answer", "context_length")
    assert len(result.tool_calls) >= 30 or result.stop_reason == "context_length"
    assert len(bodies) == len(set(bodies))


@case("ex-max-iterations")
async def max_iterations(case: dict[str, Any]) -> None:
    count = iter(range(100))
    search = named("search", lambda q: f"hit {q}", {"type": "object", "properties": {"q": {"type": "string"}}})
    llm = ScriptedLLM(lambda request: [ToolCall("c", "search", {"q": str(next(count))})])
    result = await ReActAgent(llm, [search], max_iterations=6).run("q")
    assert (len(llm.requests), status(result), result.stop_reason) == (6, "failed", "max_iterations")
    assert "hit 0" in outcome_of(result).output


@case("ex-parallel-one-raises")
async def parallel_one_raises(case: dict[str, Any]) -> None:
    async def good(k: int) -> str:
        await asyncio.sleep(0.05)
        return f"good {k}"

    def bad(k: int) -> str:
        raise ValueError("bad")

    k = {"type": "object", "properties": {"k": {"type": "integer"}}}
    result, _ = await run(case, named("good", good, k), named("bad", bad, k))
    assert status(result) == "completed"
    assert [message.is_error for message in tool_messages(result)] == [False, True]
    assert "\ngood 1\n" in tool_messages(result)[0].content


@case("ex-parallel-unknown-name")
async def parallel_unknown_name(case: dict[str, Any]) -> None:
    result, _ = await run(case, named("good", lambda: "fine"))
    assert [message.is_error for message in tool_messages(result)] == [False, True]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@case("ex-subprocess-latin1")
async def subprocess_latin1(case: dict[str, Any]) -> None:
    def shell(cmd: str) -> dict[str, Any]:
        program = "import sys; sys.stdout.buffer.write(bytes.fromhex('636166e90a')); sys.exit(3)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        return {"exit_status": done.returncode, "output": done.stdout}

    result, _ = await run(case, named("shell", shell, {"type": "object", "properties": {"cmd": {"type": "string"}}}))
    text = tool_messages(result)[0].content
    assert "caf" in text
    assert "3" in text


@case("ex-surrogateescape")
async def surrogateescape(case: dict[str, Any]) -> None:
    text = b"a\xffb".decode("utf-8", "surrogateescape")
    llm = ScriptedLLM([[ToolCall("c", "read", {})], "done"])
    result = await ReActAgent(llm, [named("read", lambda: text)]).run("q")
    tool_messages(result)[0].content.encode("utf-8")
    assert len(llm.requests) == 2


@case("ex-sync-tool-hangs")
async def sync_tool_hangs(case: dict[str, Any]) -> None:
    started = time.monotonic()
    result, _ = await run(case, named("blocked", lambda: time.sleep(60), timeout=case["input"]["tool_timeout_s"]))
    assert time.monotonic() - started < 15  # five times what the case allows
    assert "timed out" in tool_messages(result)[0].content


@case("ex-tool-hangs")
async def tool_hangs(case: dict[str, Any]) -> None:
    async def stuck() -> str:
        await asyncio.Event().wait()
        return ""

    started = time.monotonic()
    result, _ = await run(case, named("stuck", stuck, timeout=1), named("quick", lambda: "quick"))
    assert time.monotonic() - started < 15
    first, second = tool_messages(result)
    assert (first.is_error, second.is_error) == (True, False)
    assert "timed out" in first.content
    assert status(result) == "completed"


@case("ex-tool-raises")
async def tool_raises(case: dict[str, Any]) -> None:
    def fail() -> str:
        raise ValueError("bad date")

    result, _ = await run(case, named("a", fail))
    message = tool_messages(result)[0]
    assert message.is_error
    assert all(part in message.content for part in case["expect"]["tool_message_contains"])
    assert status(result) == "completed"


@case("ex-tool-raises-empty")
async def tool_raises_empty(case: dict[str, Any]) -> None:
    def fail() -> str:
        raise TimeoutError

    result, _ = await run(case, named("a", fail))
    assert "TimeoutError" in tool_messages(result)[0].content


@case("ex-unknown-tool-forever")
async def unknown_tool_forever(case: dict[str, Any]) -> None:
    count = iter(range(100))
    for script in (lambda r: [ToolCall("c", "nope", {})], lambda r: [ToolCall("c", "nope", {"n": next(count)})]):
        llm = ScriptedLLM(script)
        result = await ReActAgent(llm, [named("a", lambda: "x")], max_iterations=20).run("q")
        assert status(result) == "failed"
        assert len(llm.requests) <= case["expect"]["model_calls_max"]


@case("ex-wrong-type")
async def wrong_type(case: dict[str, Any]) -> None:
    runs = []
    search = named(
        "search",
        lambda limit: runs.append(limit) or "found",
        {"type": "object", "properties": {"limit": {"type": "integer"}}, "required": ["limit"]},
    )
    result, _ = await run(case, search)
    assert runs == [10]
    first = tool_messages(result)[0]
    assert first.is_error
    assert "limit" in first.content


@case("ex-retry-growth")
async def retry_growth(case: dict[str, Any]) -> None:
    def cut(request: ChatRequest) -> LLMResult:
        return LLMResult(Message.assistant("x" * 12_000), Usage(1, 3_000), "length", "m")

    llm = ScriptedLLM(cut, abilities={"json_mode": True})
    schema = {"type": "object", "properties": {"steps": {"type": "array"}}, "required": ["steps"]}
    with pytest.raises(StructuredOutputError) as caught:
        await structured_llm_call(llm, [Message.user("Plan the work. " * 20)], schema, "plan")
    assert caught.value.code == case["expect"]["raises"]
    sizes = [sum(len(message.content) for message in request.messages) for request in llm.requests]
    assert sizes[-1] <= case["expect"]["prompt_tokens_max_ratio_last_to_first"] * sizes[0]


@pytest.mark.parametrize("name", sorted(HERE))
async def test_case(name: str) -> None:
    await HERE[name](CASES[name])


def test_no_case_is_forgotten() -> None:
    scopes = ("agent", "structured")
    assert {name for name, row in CASES.items() if row["context"]["scope"] in scopes} == set(HERE)
