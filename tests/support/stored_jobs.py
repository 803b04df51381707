"""Whole jobs in a database, on scripted models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

from executor.settings_model import Settings
from executor.store.database import Database, Row
from executor.store.jobs import JobStore, NewJob
from executor.workers.inbox import Inbox
from executor.workers.stored_job import run_stored_job
from executor.workers.workshop import Workshop
from registry import ModelRegistry
from registry.llm_types import ChatRequest
from registry.messages import ToolCall
from registry.models import as_registry
from registry.testing import ScriptedLLM
from registry.tools import ToolRegistry, tool

Answer = Callable[[ChatRequest], Any]

DIAMOND = [
    {"id": "a", "task": "find x", "dependencies": []},
    {"id": "b", "task": "double x", "dependencies": ["a"]},
    {"id": "c", "task": "halve x", "dependencies": ["a"]},
    {"id": "d", "task": "sum up", "dependencies": ["b", "c"]},
]
VERDICT = {"achieved": True, "confidence": 0.9, "reasoning": "fine", "final_answer": "judged"}


class Brain:
    """Answers each kind of call of a job: `step` is a function of the request, the others are fixed. A step's reply may
    also be a list of (tool, arguments). `kinds` are the calls in order."""

    def __init__(self, step: Answer | None = None, steps: list[dict[str, Any]] = DIAMOND, **answers: Any) -> None:
        self.step = step or (lambda request: "step result")
        self.answers: dict[str, Any] = {
            "choose_mode": {"mode": "dag", "domain_hint": None},
            "make_plan": {"steps": steps},
            "judge_result": VERDICT,
            "synthesis": "the written answer",
            **answers,
        }
        self.kinds: list[str] = []

    async def __call__(self, request: ChatRequest) -> Any:
        choice = request.tool_choice
        kind = str(choice["name"]) if isinstance(choice, dict) else "synthesis" if request.stream else "step"
        self.kinds.append(kind)
        answer = self.step if kind == "step" else self.answers[kind]
        if callable(answer):
            answer = answer(request)
        if hasattr(answer, "__await__"):
            answer = await answer
        return [ToolCall("f", kind, answer)] if isinstance(answer, dict) else answer


@tool(read_only=True)
def look_up(key: str) -> str:
    """Looks a key up in the table."""
    return f"value of {key}"


@tool
def note(text: str) -> str:
    """Writes a text down."""
    return f"noted: {text}"


def with_tools(request: ChatRequest) -> Any:
    """A step that looks something up and notes something down at the same time, then notes again, then answers."""
    done = sum(message.role == "tool" for message in request.messages)
    if done == 0:
        return [ToolCall("c1", "look_up", {"key": "x"}), ToolCall("c2", "note", {"text": "y"})]
    return [ToolCall("c3", "note", {"text": "z"})] if done == 2 else "step result"


def workshop(brain: Any, tools: Any = (), inbox: Inbox | None = None, **settings: Any) -> Workshop:
    """A worker's workshop with one scripted model, or with a registry."""
    settings = {"completion_check_min_tools": 0, **settings}
    models = brain if isinstance(brain, ModelRegistry) else as_registry(ScriptedLLM(brain))
    return Workshop(models, ToolRegistry(tools), Settings(**settings), inbox=inbox)


async def new_job(database: Database, goal: str = "sum it up", mode: str = "dag", **more: Any) -> str:
    """A queued job; what `more` names beside NewJob's own fields is its request."""
    fields = {name: more.pop(name) for name in ("kind", "metadata", "parent") if name in more}
    row, _ = await JobStore(database).create("", NewJob(goal, mode, request=more, **fields))
    return str(row["id"])


async def ran(database: Database, work: Workshop, job_id: str, owner: UUID | None = None) -> Row:
    """Runs a job to its end; its row afterwards."""
    await run_stored_job(database, owner or uuid4(), job_id, work)
    return await row_of(database, job_id)


async def row_of(database: Database, job_id: str) -> Row:
    row = await database.row("jobs.get", job_id, "")
    assert row is not None
    return row


async def events_of(database: Database, job_id: str) -> list[dict[str, Any]]:
    return [dict(row) for row in await database.rows("log.read_events", job_id, 0, True, 10_000)]


async def cut(database: Database, job: str, events: int) -> None:
    """As if the job's worker had died when its log had so many events."""
    async with database.transaction() as connection:
        await connection.execute("delete from dw_events where job = $1 and seq > $2", job, events)
        await connection.execute(
            "update dw_jobs set seq = $2, ended_at = null, summary = null, cost_usd = null, status = 'running', "
            "owner = gen_random_uuid() where id = $1",
            job,
            events,
        )


def told(events: list[Mapping[str, Any]] | list[dict[str, Any]], channel: str) -> list[Any]:
    """The payloads of a channel."""
    return [event["payload"] for event in events if event["channel"] == channel]
