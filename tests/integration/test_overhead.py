"""What the engine costs, loosely: five times the benchmark's targets, and counts where counts will do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent import ReActAgent
from benchmarks import measures, overhead
from benchmarks.fake_model import TOOL, serving
from registry import OpenAIChatLLM
from registry.adapters import openai_chat
from registry.messages import Message
from registry.tools import Tool

pytestmark = pytest.mark.heavy

SLACK = 5


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


def agent_of(llm: OpenAIChatLLM) -> ReActAgent:
    tool = Tool(TOOL, measures.ABOUT, measures.PARAMETERS, measures.Lookup(), read_only=True)
    return ReActAgent(llm, [tool], completion_check=False, max_iterations=100)


async def test_each_message_is_serialised_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Message] = []
    real = openai_chat.encode_message

    def counted(message: Message, echo: bool = False) -> bytes:
        encoded.append(message)
        return real(message, echo)

    monkeypatch.setattr(openai_chat, "encode_message", counted)
    llm = OpenAIChatLLM("turns50", base_url=f"{url}/v1", api_key="none")
    result = await agent_of(llm).run("What do the keys say?")
    await llm.aclose()
    assert result.iterations == 51
    assert len(encoded) == len(result.messages) - 1  # all but the answer, each once in 51 calls


async def test_a_turn_is_one_model_call_and_tools_are_described_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    real = OpenAIChatLLM.encode_tool

    def counted(sent: str, tool: object) -> object:
        described.append(sent)
        return real(sent, tool)  # type: ignore[arg-type]

    monkeypatch.setattr(OpenAIChatLLM, "encode_tool", staticmethod(counted))
    llm = OpenAIChatLLM("turns5", base_url=f"{url}/v1", api_key="none")
    agent = agent_of(llm)
    results = [await agent.run("What do the keys say?") for _ in range(3)]
    await llm.aclose()
    assert [result.usage.calls for result in results] == [6, 6, 6]
    assert described == [TOOL]


async def test_many_agents_wait_together(url: str) -> None:
    """50 agents of 6 calls of 100 ms take 0.6 s together, 30 s one after the other."""
    llm = OpenAIChatLLM("turns5-wait100", base_url=f"{url}/v1", api_key="none")
    agent = agent_of(llm)
    async with asyncio.timeout(SLACK * 0.6), asyncio.TaskGroup() as group:
        tasks = [group.create_task(agent.run("What do the keys say?")) for _ in range(50)]
    await llm.aclose()
    assert {task.result().stop_reason for task in tasks} == {"final_answer"}


def test_cpu_per_call_and_late_turns(url: str) -> None:
    mine, sdk = (overhead.measured(url, "cpu", who)["cpu_ms"] for who in ("ours", "openai"))
    assert mine <= SLACK * 0.5 * sdk
    assert overhead.measured(url, "late", "ours")["late_over_early"] <= SLACK * 1.5


def test_a_bare_import_brings_nothing_heavy() -> None:
    code = f"{overhead.PUBLIC}\nimport sys\nprint(*sorted(set({overhead.SDKS!r}) & set(sys.modules) - {{'rich'}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
