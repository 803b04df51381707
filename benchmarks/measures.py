"""One measurement of one contender, in a process of its own. Prints a JSON line. Started by `benchmarks.overhead`."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from benchmarks.fake_model import TOOL

Run = Callable[[str], Awaitable[int]]
"""One agent's run against a scripted model; gives the model calls it made."""

ASK = "What do the keys say?"
ABOUT = "Looks up a key and returns its record."
PARAMETERS = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


class Lookup:
    """The one tool; notes the CPU time at each of its calls."""

    def __init__(self, size: int = 64) -> None:
        self.record = "x" * size
        self.marks: list[float] = []

    async def __call__(self, key: str) -> str:
        self.marks.append(time.process_time())
        return f"{key}: {self.record}"


# The contenders: each gives its run, and what closes it


def ours(url: str, lookup: Lookup, dialect: str = "openai") -> tuple[Run, Callable[[], Awaitable[None]]]:
    """A fresh ReActAgent per run."""
    from agent import ReActAgent
    from registry.tools import Tool, ToolRegistry

    tools = ToolRegistry([Tool(TOOL, ABOUT, PARAMETERS, lookup, read_only=True)])
    models: dict[str, Any] = {}

    async def run(model: str) -> int:
        llm = models.get(model) or models.setdefault(model, adapter(url, model, dialect))
        agent = ReActAgent(llm, tools, max_iterations=100, completion_check=False)
        result = await agent.run(ASK)
        assert result.stop_reason == "final_answer", result
        return result.iterations

    async def close() -> None:
        for llm in models.values():
            await llm.aclose()

    return run, close


def adapter(url: str, model: str, dialect: str = "openai") -> Any:
    """Our adapter for the scripted model."""
    from registry import AnthropicLLM, OpenAIChatLLM

    if dialect == "anthropic":
        return AnthropicLLM(model, base_url=url, api_key="none", max_output_tokens=8_000)
    return OpenAIChatLLM(model, base_url=f"{url}/v1", api_key="none", max_output_tokens=8_000)


def openai_sdk(url: str, lookup: Lookup) -> tuple[Run, Callable[[], Awaitable[None]]]:
    """The loop as the openai SDK's documentation shows it."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    function = {"name": TOOL, "description": ABOUT, "parameters": PARAMETERS}
    tools: Any = [{"type": "function", "function": function}]

    async def run(model: str) -> int:
        messages: list[Any] = [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": ASK}]
        calls = 0
        while True:
            reply = await client.chat.completions.create(model=model, messages=messages, tools=tools)
            message = reply.choices[0].message
            calls += 1
            if not message.tool_calls:
                return calls
            messages.append(message)
            for call in message.tool_calls:
                result = await lookup(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    return run, client.close


def anthropic_sdk(url: str, lookup: Lookup) -> tuple[Run, Callable[[], Awaitable[None]]]:
    """The loop as the anthropic SDK's documentation shows it."""
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(base_url=url, api_key="none")
    tools: Any = [{"name": TOOL, "description": ABOUT, "input_schema": PARAMETERS}]

    async def run(model: str) -> int:
        messages: list[Any] = [{"role": "user", "content": ASK}]
        calls = 0
        while True:
            reply = await client.messages.create(
                model=model, max_tokens=8_000, system="Use the tool.", messages=messages, tools=tools
            )
            calls += 1
            if reply.stop_reason != "tool_use":
                return calls
            messages.append({"role": "assistant", "content": reply.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": await lookup(**block.input)}
                for block in reply.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})

    return run, client.close


CONTENDERS: dict[str, Callable[[str, Lookup], tuple[Run, Callable[[], Awaitable[None]]]]] = {
    "ours": ours,
    "openai": openai_sdk,
    "ours-anthropic": lambda url, lookup: ours(url, lookup, "anthropic"),
    "anthropic": anthropic_sdk,
}


# The measurements


async def cpu(url: str, who: str, repeats: int = 10) -> dict[str, float]:
    """CPU (user and system) per model call, in ms, over runs of 10 tool turns, after some to warm up."""
    run, close = CONTENDERS[who](url, Lookup())
    for _ in range(3):
        await run("turns10")
    start, calls = time.process_time(), 0
    for _ in range(repeats):
        calls += await run("turns10")
    used = time.process_time() - start
    await close()
    return {"cpu_ms": 1_000 * used / calls, "calls": calls / repeats}


async def late(url: str, who: str, repeats: int = 4) -> dict[str, float]:
    """CPU of the last ten of 50 turns with 4 KB results, over that of the first ten."""
    lookup = Lookup(4_096)
    run, close = CONTENDERS[who](url, lookup)
    await run("turns10")
    first = last = 0.0
    for _ in range(repeats):
        lookup.marks = []
        await run("turns50")
        marks = lookup.marks
        assert len(marks) == 50
        first += marks[10] - marks[0]
        last += marks[-1] - marks[-11]
    await close()
    return {"late_over_early": last / first, "early_ms": 100 * first / repeats, "late_ms": 100 * last / repeats}


async def agents(url: str, who: str, count: int = 200) -> dict[str, float]:
    """Many agents at once, five tool turns, 500 ms a call: the time of all over the time that the model takes."""
    run, close = CONTENDERS[who](url, Lookup())
    await run("turns1")
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(run("turns5-wait500"))  # type: ignore[arg-type]
    took = time.monotonic() - start
    await close()
    return {"over_ideal": took / (6 * 0.5)}


async def plan(url: str, who: str, width: int = 20) -> dict[str, float]:
    """One step, then many, then one, each of three calls of 200 ms: the time of all over the critical path."""
    from executor import DAGExecutor
    from planner import Plan, PlanStep
    from registry.tools import Tool

    llm = adapter(url, "turns2-wait200")
    middle = [PlanStep(f"s{number}", "Do it.", ("first",)) for number in range(width)]
    last = PlanStep("last", "Do it.", tuple(step.id for step in middle))
    work = Plan("goal", (PlanStep("first", "Do it."), *middle, last))
    warm = Plan("goal", (PlanStep("first", "Do it."),))
    executor = DAGExecutor(llm, [Tool(TOOL, ABOUT, PARAMETERS, Lookup(), read_only=True)], max_concurrency=width)
    await executor.execute(warm)
    start = time.monotonic()
    result = await executor.execute(work)
    took = time.monotonic() - start
    assert result.status == "completed", result
    await llm.aclose()
    return {"over_critical": took / (3 * 3 * 0.2)}


async def first_text(url: str, who: str, repeats: int = 5) -> dict[str, float]:
    """Milliseconds from the model's first token of the streamed answer to the first text that the caller sees."""
    waits = []
    stream, close = _streams(url) if who == "ours" else _openai_streams(url)
    for _ in range(repeats + 1):  # the first one warms up
        first = 0.0
        async for text in stream():
            if not first:
                first = 1_000 * (time.monotonic() - float(text))  # the model's clock stands in its first token
        waits.append(first)
    await close()
    return {"first_text_ms": statistics.median(waits[1:])}


Stream = Callable[[], AsyncIterator[str]]


def _streams(url: str) -> tuple[Stream, Callable[[], Awaitable[None]]]:
    """The synthesis after a run of five tool turns."""
    from agent import ReActAgent
    from registry.tools import Tool

    llm = adapter(url, "turns5-wait20-words20-gap10")

    async def stream() -> AsyncIterator[str]:
        agent = ReActAgent(llm, [Tool(TOOL, ABOUT, PARAMETERS, Lookup(), read_only=True)], completion_check=False)
        result = await agent.run(ASK)
        async with aclosing(agent.stream_answer(ASK, result)) as pieces:
            async for piece in pieces:
                yield piece

    return stream, llm.aclose


def _openai_streams(url: str) -> tuple[Stream, Callable[[], Awaitable[None]]]:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")

    async def stream() -> AsyncIterator[str]:
        messages: Any = [{"role": "user", "content": ASK}]
        model = "turns5-wait20-words20-gap10"
        async for chunk in await client.chat.completions.create(model=model, messages=messages, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content

    return stream, client.close


MEASURES: dict[str, Callable[[str, str], Awaitable[dict[str, float]]]] = {
    "cpu": cpu,
    "late": late,
    "agents": agents,
    "plan": plan,
    "first_text": first_text,
}


def main() -> None:
    """`python -m benchmarks.measures MEASURE CONTENDER URL`; `profile` before it shows where the time goes."""
    import logging

    logging.disable(logging.CRITICAL)
    profiled = sys.argv[1] == "profile"
    measure, who, url = sys.argv[2:] if profiled else sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    work = MEASURES[measure](url, who)
    if profiled:
        import cProfile
        import pstats

        with cProfile.Profile() as profile:
            asyncio.run(work)  # type: ignore[arg-type]
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)
        return
    print(json.dumps(asyncio.run(work)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
