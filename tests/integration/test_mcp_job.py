"""Whole jobs that use MCP servers: from the library and from the command, over standard streams and over HTTP."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from executor import run_job
from registry.llm_types import ChatRequest
from registry.mcp import McpServer, mcp_tools
from registry.messages import ToolCall
from registry.testing import ScriptedLLM
from registry.toolbox import default_tools
from tests.fakes import ProviderFake, View, brain
from tests.support.command import command, openai

SUPPORT = Path(__file__).parents[1] / "support"
PLAN = {
    "steps": [
        {"id": "ask", "task": "Ask the server.", "dependencies": []},
        {"id": "tell", "task": "Tell what it said.", "dependencies": ["ask"]},
    ]
}


def script(tool: str, arguments: dict[str, Any]) -> Any:
    """A model that plans two steps, calls the tool in the first and writes up what it said."""

    called: list[str] = []

    def reply(request: ChatRequest) -> Any:
        choice = request.tool_choice
        match choice["name"] if isinstance(choice, dict) else "":
            case "make_plan":
                return [ToolCall("p", "make_plan", PLAN)]
            case "judge_result":
                verdict = {"achieved": True, "confidence": 0.9, "reasoning": "done", "final_answer": "done"}
                return [ToolCall("j", "judge_result", verdict)]
            case "":
                pass
            case name:
                return [ToolCall("s", name, {"tools": [tool], "names": [tool]})]
        if request.stream:
            return "written up"
        if request.tools and not called:
            called.append(tool)
            return [ToolCall("c", tool, arguments)]
        return f"it said: {request.messages[-1].content}"

    return reply


async def job_with(server: McpServer, tool: str, arguments: dict[str, Any]) -> tuple[Any, list[Any]]:
    events: list[Any] = []
    built_in = default_tools()
    async with mcp_tools([server], taken=built_in.names()) as found:
        llm = ScriptedLLM(script(tool, arguments))
        job = await run_job("Ask and tell.", llm, tools=[*built_in, *found.tools], mode="dag", on_event=events.append)
    return job, events


def observations(payloads: Iterable[Mapping[str, Any]], tool: str) -> list[tuple[str, bool]]:
    """What each call of a tool brought, and whether that was an error."""
    return [
        (payload["observation"], payload["error"] is not None)
        for payload in payloads
        if payload.get("type") == "iteration" and payload["status"] == "done" and payload.get("tool_name") == tool
    ]


def observation(events: list[Any], tool: str) -> tuple[str, bool]:
    (found,) = observations((event.payload for event in events if event.channel == "step"), tool)
    return found


async def test_a_step_uses_a_server_s_tool() -> None:
    server = McpServer("plain", sys.executable, (str(SUPPORT / "mcp_plain.py"),), timeout=30.0)
    job, events = await job_with(server, "echo", {"text": "hello from afar"})
    assert (job.status, job.answer) == ("completed", "written up")
    assert observation(events, "echo") == ("hello from afar", False)
    said = re.search(r"\[data (\w+) from mcp:plain\]\nhello from afar\n\[end of data \1\]", job.steps["ask"].output)
    assert said is not None  # the model saw it as a stranger's words


async def test_a_server_that_dies_in_a_step_does_not_end_the_job() -> None:
    server = McpServer("plain", sys.executable, (str(SUPPORT / "mcp_plain.py"),), timeout=30.0)
    job, events = await job_with(server, "die", {})
    assert job.status == "completed"
    text, is_error = observation(events, "die")
    assert is_error
    assert "MCP server 'plain': it ended before it had answered the call of die" in text


# The command


def asks(tool: str, arguments: dict[str, Any]) -> Any:
    """The usual script, with this tool in place of the calculator in the first turn of each step."""

    def reply(view: View) -> Any:
        works = bool(view.tools) and view.choice == "auto" and view.forced is None and not view.results
        return [(tool, arguments)] if works else brain(view)

    return reply


def declare(folder: Path, text: str = "") -> None:
    (folder / "dagwright.toml").write_text(
        f'[mcp.plain]\ncommand = "{sys.executable}"\nargs = ["{SUPPORT / "mcp_plain.py"}"]\n{text}', encoding="utf-8"
    )


async def test_run_uses_the_servers_of_the_settings(tmp_path: Path) -> None:
    declare(tmp_path, 'tools = ["echo"]\nread_only = true\n')
    async with ProviderFake(asks("echo", {"text": "over the pipe"})) as fake:
        result = await command("run", "Ask.", "--events", home=tmp_path, env=openai(fake))
    assert result.code == 0, result.err
    steps = [line["payload"] for line in result.lines if line["channel"] == "step"]
    assert set(observations(steps, "echo")) == {("over the pipe", False)}
    assert list(fake.refusals) == []


async def test_plan_knows_the_servers_tools(tmp_path: Path) -> None:
    declare(tmp_path, 'tools = ["echo"]\n')
    seen: list[str] = []

    def reply(view: View) -> Any:
        seen.extend([view.system, *(message.text for message in view.messages)])
        return brain(view)

    async with ProviderFake(reply) as fake:
        result = await command("plan", "Ask.", "--json", home=tmp_path, env=openai(fake))
    assert result.code == 0, result.err
    assert any("echo" in text and "What echo does." in text for text in seen)


async def test_tools_lists_them_with_their_origin(tmp_path: Path) -> None:
    declare(tmp_path, 'tools = ["echo", "mute"]\nread_only = ["mute"]\n')
    listed = await command("tools", "--json", home=tmp_path)
    rows = {row["name"]: row for row in listed.data["tools"]}
    assert (rows["echo"]["origin"], rows["echo"]["read_only"]) == ("mcp:plain", False)
    assert (rows["mute"]["read_only"], rows["mute"]["server_says"]) == (True, "read-only, idempotent")
    assert rows["calculate"]["origin"] == "built in"
    assert "searxng" in listed.data["missing"]["web_search"]
    shown = await command("tools", home=tmp_path)
    assert re.search(r"^echo \(network; \d+ s; from mcp:plain\)\n  What echo does\.$", shown.out, re.MULTILINE)
    assert "note: web_search is not there: set search" in shown.err
    with_key = await command("tools", home=tmp_path, env={"TAVILY_API_KEY": "tvly-0123456789"})
    assert re.search(r"^web_search \(read_only, idempotent, network", with_key.out, re.MULTILINE)
    assert "web_search is not there" not in with_key.err


async def test_a_missing_server_is_a_warning_or_an_error(tmp_path: Path) -> None:
    async with ProviderFake(brain) as fake:
        (tmp_path / "dagwright.toml").write_text('[mcp.gone]\ncommand = "/nowhere/server"\n')
        result = await command("run", "Ask.", home=tmp_path, env=openai(fake))
        assert result.code == 0, result.err
        assert "warning: MCP server 'gone': it can't be started" in result.err
        (tmp_path / "dagwright.toml").write_text('[mcp.gone]\ncommand = "/nowhere/server"\nrequired = true\n')
        result = await command("run", "Ask.", "--json", home=tmp_path, env=openai(fake))
        assert (result.code, result.data["error"]["code"]) == (2, "configuration")
        assert "([mcp.gone] is required)" in result.data["error"]["message"]
        models = await command("models", home=tmp_path, env=openai(fake))
        assert models.code == 0  # it has no use for tools


@pytest.mark.heavy
async def test_a_server_of_others_in_a_whole_job() -> None:
    """mcp-server-time, as it comes from its authors."""
    if importlib.util.find_spec("mcp_server_time") is None:
        pytest.fail("tests/mcp-server-requirements.txt is not installed: run `make test-heavy`")
    server = McpServer("time", sys.executable, ("-m", "mcp_server_time", "--local-timezone=UTC"), timeout=60.0)
    arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kathmandu"}
    job, events = await job_with(server, "convert_time", arguments)
    assert job.status == "completed"
    text, is_error = observation(events, "convert_time")
    assert not is_error
    assert "17:45:00+05:45" in text
    assert "+5.75h" in job.steps["ask"].output
    _, events = await job_with(server, "convert_time", {**arguments, "target_timezone": "Nowhere/Land"})
    text, is_error = observation(events, "convert_time")
    assert is_error
    assert "Nowhere/Land" in text
    _, events = await job_with(server, "get_current_time", {"timezone": "Asia/Kathmandu"})
    assert "+05:45" in observation(events, "get_current_time")[0]
