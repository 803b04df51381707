"""Jobs whose right end is known, and a model that works them the same way whenever it is asked.

Each job has a tag; each of its tasks says in turns which tools are to be called with what. A call's argument names job,
task and call, so that whoever finds it outside knows what it was for. The model keeps a book of all it answered.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import Reply, View
from tests.fakes.brain import filled

WORDS = 60
"""Of an answer: its streaming takes a while."""
MORE = "Please do the extra part, too."
UNCERTAIN = "uncertain_effect"

MIXES = (("record",), ("put",), ("look",), ("checked",), ("record", "put"), ("look", "put"))
"""Tools that are called at the same time."""

Call = tuple[str, str]
"""Tool, and what it is told."""


@dataclass(frozen=True)
class Task:
    """What one step does: turns of calls at the same time, then its result."""

    id: str
    turns: tuple[tuple[Call, ...], ...]
    dependencies: tuple[str, ...] = ()


@dataclass
class Work:
    """One job. `kind`: given (its plan comes with it), planned, or react; `extra` is done once a message has asked for
    it; `said` that the message was taken by the service, `cancelled` that a cancel was."""

    tag: str
    kind: str
    tasks: dict[str, Task]
    extra: Task | None = None
    approvals: bool = False
    to_cancel: bool = False
    batch: str | None = None
    job_id: str = ""
    said: bool = False
    cancelled: bool = False

    @property
    def goal(self) -> str:
        return f"Do the job <{self.tag}>."

    def task_text(self, task: str) -> str:
        return f"Do the work <{self.tag}/{task}>."

    def request(self) -> dict[str, Any]:
        """The body that asks for it."""
        body: dict[str, Any] = {"goal": self.goal, "mode": "react" if self.kind == "react" else "dag"}
        if self.kind == "given":
            body["plan"] = {"steps": self.plan()}
        return body

    def plan(self, *, extra: bool = False) -> list[dict[str, Any]]:
        """Its steps as a plan has them; `extra`: with what a message asked for."""
        tasks = [*self.tasks.values(), *([self.extra] if extra and self.extra is not None else ())]
        return [
            {"id": task.id, "task": self.task_text(task.id), "dependencies": list(task.dependencies)} for task in tasks
        ]

    def rest(self, *, extra: bool = False) -> list[dict[str, Any]]:
        """What can be done where a step has failed of which nobody knows what it did: nothing of it again."""
        id = self.extra.id if extra and self.extra is not None else "v"
        return [{"id": id, "task": self.task_text(id), "dependencies": []}]

    @property
    def answer(self) -> str:
        """What is written in the end."""
        return f"Answer of {self.tag}: " + " ".join(f"word{number}" for number in range(WORDS))

    def calls(self) -> list[Call]:
        """All calls that it needs."""
        tasks = [*self.tasks.values(), *([self.extra] if self.extra is not None and self.said else [])]
        return [call for task in tasks for turn in task.turns for call in turn]


@dataclass(frozen=True)
class Answered:
    """One request that was answered, and so paid. `place`: where in its job it stands; `told` seconds since the epoch
    at which the answer began."""

    number: int
    place: tuple[Any, ...]
    asked: float
    told: float


@dataclass
class Model:
    """The script of the provider's fake. `slow` is the longest time that an answer takes, in seconds."""

    seed: int
    slow: float = 0.4
    pace: float = 0.02
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set nothing is answered."""
    works: dict[str, Work] = field(default_factory=dict)
    book: list[Answered] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    """Requests that belong to no job."""

    def __post_init__(self) -> None:
        self.open.set()

    async def __call__(self, view: View) -> Reply:
        asked = time.time()
        await self.open.wait()
        found = self._place(view)
        if found is None:
            self.strange.append(view.last_text[:300])
            return Reply("I don't know what this is about.")
        work, kind, task, heard = found
        place = (work.tag, kind, task, heard, len(view.messages))
        delay = random.Random(f"{self.seed}{place}").random() * self.slow
        self.book.append(Answered(view.number, place, asked, time.time() + delay))
        return self._reply(view, work, kind, task, heard, delay)

    def _place(self, view: View) -> tuple[Work, str, str, bool] | None:
        texts = [message.text for message in view.messages if message.role == "user"]
        tags = [found for text in texts for found in re.findall(r"<(J\w+?)(?:/(\w+))?>", text)]
        work = self.works.get(tags[0][0]) if tags else None
        if work is None:
            return None
        heard = any(MORE in text for text in texts)
        if view.forced is not None:
            return work, view.forced, "", heard
        if view.stream:
            return work, "synthesis", "", heard
        task = "all" if work.kind == "react" else next((name for _, name in tags if name), "")
        return work, "step", task, heard

    def _reply(self, view: View, work: Work, kind: str, task: str, heard: bool, delay: float) -> Reply:
        note = f"reply {view.number}"
        if kind == "synthesis":
            return Reply(work.answer, reasoning=note, delay=delay, pace=self.pace)
        if kind != "step":
            return Reply(calls=[(kind, self._filled(view, work, kind, heard))], reasoning=note, delay=delay)
        turns = self._turns(work, task, heard)
        done = sum(bool(message.calls) for message in view.messages)
        if done < len(turns):
            calls = [(name, {"what": what}) for name, what in turns[done]]
            return Reply(calls=calls, reasoning=note, delay=delay)
        return Reply(f"{work.tag} {task} is done.", reasoning=note, delay=delay)

    def _turns(self, work: Work, task: str, heard: bool) -> list[tuple[Call, ...]]:
        if task != "all":
            found = work.extra if work.extra is not None and task == work.extra.id else work.tasks.get(task)
            return list(found.turns) if found is not None else []
        extra = work.extra.turns if heard and work.extra is not None else ()
        return [*(turn for one in work.tasks.values() for turn in one.turns), *extra]

    def _filled(self, view: View, work: Work, kind: str, heard: bool) -> dict[str, Any]:
        value = filled(view.schema_of(kind), view)
        if kind in ("make_plan", "revise_plan"):
            value.pop("keep", None)  # what is finished and unchanged is kept
            own = ("id", "task", "dependencies")
            rest = {name: given for name, given in value["steps"][0].items() if name not in own}
            known = not any(UNCERTAIN in message.text for message in view.messages)
            value["steps"] = [
                {**rest, **step} for step in (work.plan(extra=heard) if known else work.rest(extra=heard))
            ]
        return value


def works(seed: int, *, batch: int = 0) -> Iterator[Work]:
    """Jobs of all kinds, one after the other, without end; with `batch` items of a batch instead, so many."""
    random_ = random.Random(seed)
    number = 0
    while not batch or number < batch:
        number += 1
        tag = f"J{'b' if batch else ''}{number:03d}"
        if batch:
            yield Work(tag, ("given", "react")[number % 2], _tasks(tag, random_, ("a",)), batch="batch")
            continue
        kind = ("given", "planned", "react")[number % 3]
        names = ("a",) if kind == "react" else ("a", "b", "c", "d")
        work = Work(tag, kind, _tasks(tag, random_, names))
        match number % 8:
            case 1 | 4:
                _with_approval(work, names[-1])
            case 2 | 6:
                work.extra = Task("m", ((("record", f"{tag}.m.1"),),))
            case 7:
                work.to_cancel = True
        yield work


def _tasks(tag: str, random_: random.Random, names: tuple[str, ...]) -> dict[str, Task]:
    """A diamond, or one task that has more to do."""
    before = {"b": ("a",), "c": ("a",), "d": ("b", "c")}
    return {
        name: Task(name, tuple(_turns(tag, name, random_, 1 if len(names) > 1 else 3)), before.get(name, ()))
        for name in names
    }


def _turns(tag: str, name: str, random_: random.Random, least: int) -> Iterator[tuple[Call, ...]]:
    place = 0
    for _ in range(random_.randint(least, least + 1)):
        turn = []
        for tool in random_.choice(MIXES):
            place += 1
            turn.append((tool, f"{tag}.{name}.{place}"))
        yield tuple(turn)


def _with_approval(work: Work, name: str) -> None:
    task = work.tasks[name]
    work.approvals = True
    work.tasks[name] = Task(name, (*task.turns, (("send", f"{work.tag}.{name}.s"),)), task.dependencies)
