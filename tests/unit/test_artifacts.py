"""Artifacts: kept whole under a name of their own, told to the model in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import ReActAgent
from agent.services import Services
from executor import start_job
from registry import tool
from registry.artifacts import ArtifactStore, FolderArtifacts, MemoryArtifacts, plain_name
from registry.messages import ToolCall
from registry.result_text import Artifact
from registry.testing import ScriptedLLM


@tool(read_only=True)
def draw(name: str = "chart.svg") -> Artifact:
    """Draws a chart."""
    return Artifact(name, "image/svg+xml", "<svg/>")


@pytest.fixture(params=["memory", "folder"])
def store(request: Any, tmp_path: Path) -> ArtifactStore:
    return MemoryArtifacts() if request.param == "memory" else FolderArtifacts(tmp_path / "artifacts")


async def test_each_has_a_name_of_its_own(store: ArtifactStore) -> None:
    names = [(await store.put(Artifact("a.txt", "text/plain", text))).name for text in ("1", "2", "3")]
    assert names == ["a.txt", "a-2.txt", "a-3.txt"]
    assert store.names() == tuple(names)
    kept = await store.get("a-2.txt")
    assert (kept.data, kept.mime) == (b"2", "text/plain")
    with pytest.raises(KeyError):
        await store.get("b.txt")


async def test_many_at_once_are_all_kept(store: ArtifactStore) -> None:
    import asyncio

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.put(Artifact("x", "text/plain", str(number)))) for number in range(20)]
    data = [(await store.get(task.result().name)).data for task in tasks]
    assert sorted(data) == sorted(str(number).encode() for number in range(20))


async def test_what_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the user's own")
    kept = await FolderArtifacts(tmp_path).put(Artifact("a.txt", "text/plain", "new"))
    assert kept.name == "a-2.txt"
    assert (tmp_path / "a.txt").read_text() == "the user's own"


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "..", ".", "", "a/../../b", "..\\..\\x", ".hidden", "a\0b"]
)
async def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inner"
    await FolderArtifacts(folder).put(Artifact(name, "text/plain", "x"))
    found = [path for path in tmp_path.rglob("*") if path.is_file()]  # noqa: ASYNC240
    assert [path.parent for path in found] == [folder]


@given(st.text())
def test_plain_names_are_file_names(name: str) -> None:
    plain = plain_name(name)
    assert plain
    assert not plain.startswith(".")
    assert len(plain) <= 120
    assert not set(plain) & set('/\\\0\n:*?"<>|')


async def test_the_model_sees_a_line_and_the_reader_a_name() -> None:
    llm = ScriptedLLM([[ToolCall("1", "draw", {}), ToolCall("2", "draw", {})], "done"])
    handle = start_job("draw it", llm, tools=[draw], mode="react", answer_mode="direct")
    job = await handle.result()
    # the two calls run side by side: whichever ends first has the plain name
    told = sorted((message.content for message in llm.requests[-1].messages if message.role == "tool"), reverse=True)
    assert told[0].startswith(
        "[Artifact generated: chart.svg] The content is rendered as a preview in the UI. (image/svg+xml, 6 bytes)"
    )
    assert job.artifacts == ("chart.svg", "chart-2.svg")
    assert "chart-2.svg" in told[1]
    done = [event.payload for event in handle.log.events if event.channel == "step" and "artifact" in event.payload]
    assert [payload["artifact"] for payload in done] == [
        {"name": "chart.svg", "mime": "image/svg+xml", "size": 6},
        {"name": "chart-2.svg", "mime": "image/svg+xml", "size": 6},
    ]
    assert (await handle.artifacts.get("chart-2.svg")).data == b"<svg/>"


async def test_a_store_that_fails_costs_the_artifact_not_the_run() -> None:
    class Full(MemoryArtifacts):
        async def put(self, artifact: Artifact) -> Artifact:
            raise OSError("no space left on device")

    llm = ScriptedLLM([[ToolCall("1", "draw", {})], "done"])
    result = await ReActAgent(llm, [draw], services=Services(artifacts=Full())).run("q")
    assert result.answer == "done"
    assert "could not be kept" in result.tool_calls[0].observation


async def test_any_failure_of_a_store_is_contained() -> None:
    class Broken(MemoryArtifacts):
        async def put(self, artifact: Artifact) -> Artifact:
            raise ValueError("the database is gone")

    llm = ScriptedLLM([[ToolCall("1", "draw", {}), ToolCall("2", "draw", {})], "done"])
    result = await ReActAgent(llm, [draw], services=Services(artifacts=Broken())).run("q")
    assert result.answer == "done"
    assert ["the database is gone" in call.observation for call in result.tool_calls] == [True, True]


async def test_a_known_answer_of_a_pure_tool_is_kept_once() -> None:
    @tool(pure=True)
    def plot(x: int) -> Artifact:
        """Plots."""
        return Artifact("plot.svg", "image/svg+xml", "<svg/>")

    llm = ScriptedLLM([[ToolCall("1", "plot", {"x": 1}), ToolCall("2", "plot", {"x": 1})], "done"])
    handle = start_job("plot it", llm, tools=[plot], mode="react", answer_mode="direct")
    assert (await handle.result()).artifacts == ("plot.svg",)
    told = {message.content for message in llm.requests[-1].messages if message.role == "tool"}
    assert len(told) == 1
    assert told.pop().startswith("[Artifact generated: plot.svg]")
