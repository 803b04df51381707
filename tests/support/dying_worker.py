"""A worker process that kills itself at one place of a job: at the n-th call of a kind, of a model or of a tool.

python -m tests.support.dying_worker DSN JOB KIND N EFFECTS
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from executor.settings_model import Settings
from executor.store.database import Database
from executor.workers.stored_job import run_stored_job
from executor.workers.workshop import Workshop
from registry.llm_types import ChatRequest, Prepared
from registry.messages import StreamChunk, ToolCall
from registry.models import as_registry
from registry.testing import ScriptedLLM
from registry.tool_context import ToolContext
from registry.tools import Tool, ToolRegistry, tool
from tests.support.cuts import kind_of

STEPS = [{"id": "a", "task": "find x"}, {"id": "b", "task": "double x", "dependencies": ["a"]}]
ANSWER = "the answer that was written at some length"
Die = Callable[[str], None]


def never(kind: str) -> None:
    """Lives."""


class DyingLLM(ScriptedLLM):
    """Tells of each call, and when half of a streamed reply is out."""

    def __init__(self, brain: Callable[[ChatRequest], Any], die: Die) -> None:
        super().__init__(brain, chunk_size=4)
        self.die = die

    async def open_stream(self, prepared: Prepared) -> AsyncGenerator[StreamChunk, None]:
        count = 0
        async for chunk in super().open_stream(prepared):
            yield chunk
            count += 1
            if count == 5:
                await asyncio.sleep(1.2)  # what is merged is stored meanwhile
                self.die("half an answer")


def brain(die: Die, asked: list[str]) -> Callable[[ChatRequest], Any]:
    """A job of two rounds: the second adds a step. Always the same reply to the same request."""

    def reply(request: ChatRequest) -> Any:
        kind, text = kind_of(request), "\n".join(message.content for message in request.messages)
        done = sum(message.role == "tool" for message in request.messages)
        kind = f"{kind} {done}" if kind == "step" else kind
        asked.append(kind)
        die(kind)
        answers: dict[str, Any] = {
            "choose_mode": {"mode": "dag", "domain_hint": None},
            "make_plan": {"steps": STEPS},
            "judge_result": {"achieved": "sum is 6" in text, "confidence": 0.1, "reasoning": "r", "final_answer": ""},
            "revise_plan": {"keep": ["a", "b"], "steps": [{"id": "e", "task": "sum again", "dependencies": ["b"]}]},
            "report_confidence": {"why": "a guess", "confidence": 0.2},
            "synthesis": ANSWER,
            "step 0": [ToolCall("c1", "look", {"key": "x"})],
            "step 1": [ToolCall("c2", "write", {"text": "x"})],
        }
        answer = answers.get(kind, "the sum is 6" if "sum again" in text else "found")
        return [ToolCall("f", kind, answer)] if isinstance(answer, dict) else answer

    return reply


def tools(die: Die, effects: Path) -> Sequence[Tool]:
    """One that reads and one that writes; what they do stands in a file."""

    def note(name: str, ctx: ToolContext) -> None:
        with effects.open("a") as file:
            file.write(f"{name} {ctx.key}\n")

    @tool(read_only=True)
    def look(key: str, ctx: ToolContext) -> str:
        """Looks a key up."""
        note("look", ctx)
        die("look")
        return "41"

    @tool
    def write(text: str, ctx: ToolContext) -> str:
        """Writes a text down."""
        note("write", ctx)
        die("write")
        return "written"

    return [look, write]


def workshop(die: Die, asked: list[str], effects: Path) -> Workshop:
    """What a worker has: a model, and a stronger one for whoever asks for it."""
    models = as_registry(DyingLLM(brain(die, asked), die))
    models.register("strong", DyingLLM(brain(die, asked), die), roles=["reasoning"])
    return Workshop(models, ToolRegistry(tools(die, effects)), Settings(completion_check_min_tools=0))


async def die_in(database_url: str, job: str, kind: str, count: int, effects: Path) -> None:
    """Runs a job in a process of its own, which dies in it."""
    arguments = [database_url, job, kind, str(count), str(effects)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.support.dying_worker", *arguments)
    async with asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL


async def main(dsn: str, job: str, kind: str, count: str, effects: str) -> None:
    left = int(count)

    def die(now: str) -> None:
        nonlocal left
        left -= now == kind
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    async with Database.open(dsn) as database:
        await run_stored_job(database, uuid4(), job, workshop(die, [], Path(effects)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
