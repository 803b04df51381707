"""Jobs whose events the tests write themselves, as a worker would have: any length, any text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from executor.results import rfc3339
from executor.store.fold import Folded, done_of, fold, job_of
from executor.store.jobs import NewJob, new_id
from planner.plan import Plan, PlanStep
from tests.support.service import Service

Told = tuple[str, dict[str, Any], str | None]
"""Channel, payload, step."""

USAGE = {
    "input_tokens": 1_200, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": 80, "reasoning_tokens": 0,
    "calls": 2, "cost_usd": "0.0123", "partial": False, "unpriced_calls": 0,
}  # fmt: skip
DIAMOND = (("a", ()), ("b", ("a",)), ("c", ("a",)), ("d", ("b", "c")))
INSERT = """
insert into dw_events (job, seq, ts, channel, step_id, public, payload)
select $1, * from unnest($2::bigint[], $3::double precision[], $4::text[], $5::text[], $6::boolean[], $7::jsonb[])
"""
INTERNAL = ("job_started", "turn", "call", "note", "compacted", "verdict", "route", "fallback", "plan_diff", "budget")


def plan(
    steps: Iterable[tuple[str, Sequence[str]]] = DIAMOND,
    *,
    goal: str = "the goal",
    round: int = 1,
    kept: tuple[str, ...] = (),
    task: str = "work out {}",
) -> Told:
    """A plan, as it is told."""
    made = tuple(PlanStep(name, task.format(name), tuple(after)) for name, after in steps)
    return "plan", Plan(goal, made, round=round, kept=kept).to_json(), None


def phase(name: str, **more: Any) -> Told:
    return "phase", {"phase": name, **more}, None


def begun(step: str, model: str = "small") -> Told:
    """A step begins."""
    return "step_progress", {
        "status": "running", "started_at": rfc3339(time.time()), "duration": None, "model": model, "usage": None,
        "cost": None, "result": None, "error": None, "error_code": None, "root_cause": None, "attempts": 0,
        "ended_at": None, "iterations": 0, "tool_calls": 0,
    }, step  # fmt: skip


def ended(step: str, status: str = "completed", result: str | None = "done", **more: Any) -> Told:
    """A step ends."""
    now = rfc3339(time.time())
    return "step_progress", {
        "status": status, "started_at": now, "duration": 1.5, "model": "small", "usage": USAGE,
        "cost": "0.0123", "result": result, "error": None, "error_code": None, "root_cause": None, "attempts": 1,
        "ended_at": now, "iterations": 2, "tool_calls": 1, **more,
    }, step  # fmt: skip


def turn(
    step: str | None, number: int, *, tool: str = "look_up", args: Any = None, result: str = "42", reasoning: str = ""
) -> list[Told]:
    """A turn of an agent's loop with one call of a tool: four public events."""
    call = {"type": "iteration", "iteration": number, "tool_name": tool}
    return [
        ("step", {"type": "thinking", "status": "start", "iteration": number}, step),
        ("step", {"type": "thinking", "status": "done", "iteration": number, "reasoning": reasoning}, step),
        ("step", {**call, "status": "start", "tool_args": {"key": "x"} if args is None else args}, step),
        ("step", {**call, "status": "done", "observation": result, "error": None, "iter_elapsed": 0.25}, step),
    ]


def answer(text: str, part: int = 0) -> list[Told]:
    """An answer that is told in pieces."""
    size = max(1, -(-len(text) // 3))
    pieces = [
        ("answer", {"status": "delta", "content": text[at : at + size], "offset": at, "part": part}, None)
        for at in range(0, len(text), size)
    ]
    return [("answer", {"status": "start"}, None), *pieces, ("answer", {"status": "done"}, None)]


def diamond(result: str = "done", text: str = "The **answer** is 42.") -> list[Told]:
    """A whole job but its end."""
    told = [phase("planning"), plan(), phase("executing")]
    for name, _ in DIAMOND:
        told += [begun(name), *turn(name, 1, result=result), ended(name, result=result)]
    return [*told, phase("analyzing"), phase("synthesizing"), *answer(text)]


def large(steps: int, events: int) -> Iterator[Told]:
    """About so many events of a job of so many steps, in four rows."""
    names = [f"step{number}" for number in range(steps)]
    yield phase("planning")
    yield plan([(name, names[max(0, at - 4) : max(0, at - 3)]) for at, name in enumerate(names)])
    yield phase("executing")
    turns = max(1, (events - 2 * steps - 10) // (4 * steps))
    for name in names:
        yield begun(name)
        for number in range(1, turns + 1):
            yield from turn(name, number, result=f"observation {number} of {name} " * 8, reasoning="I look it up. " * 5)
        yield ended(name)
    yield from answer("# The answer\n\n" + "It is **42**, see [the source](https://example.org/).\n\n" * 40)


def is_turn(event: Mapping[str, Any]) -> bool:
    """Whether an event is a turn of the job's single agent; a step counts its own."""
    payload = event["payload"]
    return event["step_id"] is None and payload["type"] == "thinking" and payload["status"] == "start"


def billed(step: str | None, model: str, tokens: tuple[int, int], usd: str, role: str = "step") -> Told:
    """What a call of a model has cost."""
    usage = {**USAGE, "input_tokens": tokens[0], "output_tokens": tokens[1], "cost_usd": usd, "calls": 1}
    return "turn", {"usage": usage, "role": role, "model": model}, step


@dataclass
class Tale:
    """One such job."""

    service: Service
    id: str
    events: list[dict[str, Any]] = field(default_factory=list)

    async def tell(self, told: Iterable[Told], status: str = "running") -> None:
        """Adds events and lets the readers know."""
        first = len(self.events)
        now = time.time()
        for channel, payload, step in told:
            self.events.append({"channel": channel, "payload": payload, "step_id": step, "ts": now})
        new = self.events[first:]
        async with self.service.database.transaction() as connection:
            await connection.execute(
                INSERT, self.id, [first + at + 1 for at in range(len(new))], [event["ts"] for event in new],
                [event["channel"] for event in new], [event["step_id"] for event in new],
                [event["channel"] not in INTERNAL for event in new], [event["payload"] for event in new],
            )  # fmt: skip
            await connection.execute(
                "update dw_jobs set seq = $2, status = $3, started_at = coalesce(started_at, now()) where id = $1",
                self.id, len(self.events), status,
            )  # fmt: skip
            await connection.execute("select pg_notify('dw_events', $1)", self.id)

    async def end(self, status: str = "completed", error: str | None = None) -> None:
        """Tells the end."""
        row = await self.row()
        own = [event for event in self.events if event["channel"] != "step" or is_turn(event)]
        folded: Folded = fold(row, own)
        job = replace(job_of(row, folded), status=status, ended_at=time.time(), elapsed=12.5, error=error)
        await self.tell([("done", done_of(job), None)], status)
        async with self.service.database.connection() as connection:
            await connection.execute(
                "update dw_jobs set summary = $2, ended_at = now() where id = $1", self.id, job.to_json()
            )
            await connection.execute("select pg_notify('dw_events', $1)", self.id)

    async def row(self) -> Any:
        async with self.service.database.connection() as connection:
            return await connection.fetchrow("select * from dw_jobs where id = $1", self.id)


async def tale(
    service: Service,
    told: Iterable[Told] = (),
    *,
    goal: str = "Work it out",
    metadata: Mapping[str, Any] | None = None,
    mode: str = "dag",
    parent: str | None = None,
    status: str | None = "completed",
    **more: Any,
) -> Tale:
    """A job with these events; `status` None: it goes on."""
    async with service.database.connection() as connection:
        job_id = new_id()
        job = NewJob(goal, mode, metadata=metadata or {}, parent=parent)
        await connection.execute(
            "insert into dw_jobs (id, tenant, kind, goal, mode, request, metadata, parent) "
            "values ($1, '', $2, $3, $4, $5, $6, $7)",
            job_id, job.kind, job.goal, job.mode, more, dict(job.metadata), job.parent,
        )  # fmt: skip
    made = Tale(service, job_id)
    events = list(told)
    if events:
        await made.tell(events)
    if status is not None:
        await made.end(status)
    return made
