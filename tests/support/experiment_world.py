"""A small world that experiments are run in: models that answer the same whenever they are asked the same, and a tool
that notes what it did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from executor.experiments.experiment_file import experiment_of
from executor.experiments.folder import Folder
from executor.experiments.run.experiment import RunEnd, run_experiment
from executor.experiments.run.stopping import Stop
from executor.experiments.types import Cell, Experiment, Outcome
from executor.log.file import read_log
from executor.settings import load_settings
from registry.llm_types import ChatRequest
from registry.messages import Event, ToolCall
from registry.models import ModelRegistry
from registry.prices import Price
from registry.testing import ScriptedLLM
from registry.tool_context import ToolContext
from registry.tools import ToolRegistry, tool
from tests.support.cuts import kind_of

PLAN = {"steps": [{"id": "a", "task": "find it"}, {"id": "b", "task": "check it", "dependencies": ["a"]}]}
VERDICT = {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": ""}
PRICE = Price(Decimal(1), Decimal(2))
ARMS: dict[str, Any] = {
    "agent": {"mode": "react"},
    "plan": {"mode": "dag"},
    "twin": {"mode": "dag", "options": {"max_concurrency": 1}},
}


def experiment(tasks: int = 3, *, arms: dict[str, Any] | None = None, **head: Any) -> Experiment:
    """Tasks by three arms, two of which ask the same."""
    return experiment_of(
        {
            "experiment": {
                "name": "world",
                "tasks": [{"id": f"t{number}", "input": f"question {number}"} for number in range(tasks)],
                **head,
            },
            "grader": {"use": "exact"},
            "arms": ARMS if arms is None else arms,
        },
        base=Path.cwd(),
    )


@dataclass
class World:
    """One life of a process: `calls` counts what models were asked, `effects` what the tool did, by key. `before` is
    awaited before each reply, and may end the run. `harmless`: the tool may be run again; `during` is called while it
    runs."""

    before: Callable[[int], Awaitable[None]] | None = None
    calls: int = 0
    open: int = 0
    effects: list[str] = field(default_factory=list)
    harmless: bool = True
    during: Callable[[str], None] = lambda key: None

    async def reply(self, request: ChatRequest) -> Any:
        self.calls += 1
        self.open += 1
        try:
            if self.before is not None:
                await self.before(self.calls)
            return answer(request)
        finally:
            self.open -= 1

    def models(self) -> ModelRegistry:
        found = ModelRegistry()
        for name, roles in (("small", ["fast", "general"]), ("large", ["smart"])):
            found.register(name, ScriptedLLM(self.reply, model_id=name, price=PRICE, max_output_tokens=64), roles=roles)
        return found

    def tools(self) -> ToolRegistry:
        @tool(read_only=self.harmless)
        def write(text: str, ctx: ToolContext) -> str:
            """Writes a text down."""
            self.effects.append(ctx.key)
            self.during(ctx.key)
            return f"wrote {text}"

        return ToolRegistry([write])

    async def run(self, asked: Experiment, path: Path, stop: Stop | None = None, **more: Any) -> RunEnd:
        settings = load_settings(env={}, given={"completion_check_min_tools": 0, **more.pop("settings", {})})
        return await run_experiment(asked, Folder(path), self.models(), self.tools(), settings, stop=stop, **more)


def answer(request: ChatRequest) -> Any:
    """A plan, a verdict; a step writes something down, then answers with what it was asked."""
    kind = kind_of(request)
    if kind == "make_plan":
        return [ToolCall("p", kind, PLAN)]
    if kind == "judge_result":
        return [ToolCall("v", kind, VERDICT)]
    if kind == "synthesis":
        return f"in the end: {_question(request)}"
    if request.tools and all(message.role != "tool" for message in request.messages):
        return [ToolCall("w", "write", {"text": _question(request)})]
    return f"answer to {_question(request)}"


def _question(request: ChatRequest) -> str:
    text = "\n".join(message.content for message in request.messages)
    return next((f"question {number}" for number in range(50) if f"question {number}" in text), "?")


def plain(outcome: Outcome) -> Outcome:
    """What must be the same however often the run was interrupted: all but times, and who of those that ask the same
    was the first."""
    return replace(outcome, latency=None, cached_calls=0, job_id=None, spent_usd=None, spent_tokens=0)


def outcomes(path: Path) -> dict[Cell, Outcome]:
    found = Folder(path).outcomes()
    lines = (path / "outcomes.jsonl").read_bytes().count(b"\n")
    assert lines == len(found), "each cell has one outcome"
    return {outcome.cell: plain(outcome) for outcome in found}


def turns(path: Path) -> list[Event]:
    """All calls of models that the logs tell of."""
    found: list[Event] = []
    for log in sorted((path / "jobs").glob("*.jsonl")):
        found += [event for event in read_log(log, log.stem).events if event.channel == "turn"]
    return found


def paid(path: Path) -> int:
    """Replies that were asked for and came."""
    return sum(turn.payload["result"] is not None and not turn.payload.get("cached") for turn in turns(path))


def lost(path: Path) -> int:
    """Calls that were cut off on their way."""
    return sum(turn.payload["result"] is None for turn in turns(path))


def tear(path: Path, tail: bytes = b'{"seq": 9, "ts": 1') -> None:
    """Half a line at the end of every file of lines, as a dying process leaves it."""
    for file in (*path.glob("outcomes.jsonl"), *path.glob("jobs/*.jsonl")):
        with file.open("ab") as lines:
            lines.write(tail)


def whole_lines(path: Path) -> dict[str, list[bytes]]:
    """What the logs have, line by line."""
    return {log.name: log.read_bytes().split(b"\n")[:-1] for log in (path / "jobs").glob("*.jsonl")}
