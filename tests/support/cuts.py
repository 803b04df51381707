"""Jobs that are cut off and go on: a whole run, and one from a prefix of its log, as if its worker had died there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from executor.job import JobRunner
from executor.job_options import JobOptions
from executor.job_state import JobState
from executor.job_types import Job, JobRequest
from executor.letters import act, note_of
from executor.log.front import is_public
from executor.log.memory import MemoryLog
from executor.recovery import JobPast
from executor.routed import is_choice
from registry import ModelRegistry
from registry.llm_types import ChatRequest
from registry.messages import Event, ToolCall, Usage
from registry.models import as_registry
from registry.testing import ScriptedLLM
from registry.tools import Tool, ToolRegistry

Say = Callable[..., None]
"""`say(kind, **said)`: something is said to the job."""
Brain = Callable[[str, ChatRequest, Say], Any]
"""`brain(kind, request, say)` gives the reply; the same one whenever it is asked the same."""


@dataclass
class Scenario:
    """A job to run again and again. `tools` are made anew for each run, with the list that they note their runs in.
    `cuts`: something in it is cut off, so that what it cost differs from run to run."""

    request: JobRequest
    brain: Brain
    tools: Callable[[list[str]], Sequence[Tool]] = lambda runs: ()
    options: JobOptions = field(default_factory=JobOptions)
    models: Callable[[Callable[[ChatRequest], Any]], ModelRegistry] = lambda ask: as_registry(ScriptedLLM(ask))
    approve: Any = None
    cuts: bool = False


@dataclass
class Run:
    """What came of a run: the job, its log, how many model calls it made itself, and what its tools did, by key."""

    job: Job
    events: tuple[Event, ...]
    asked: list[str]
    runs: list[str]


def kind_of(request: ChatRequest) -> str:
    """What a model is asked for."""
    choice = request.tool_choice
    return str(choice["name"]) if isinstance(choice, dict) else "synthesis" if request.stream else "step"


async def run(scenario: Scenario, prefix: Iterable[Event] = ()) -> Run:
    """The job from the beginning, or from what its log had when its worker died."""
    before = tuple(prefix)
    asked: list[str] = []
    runs: list[str] = []
    log = MemoryLog("job_1", events=before)
    runner: JobRunner | None = None

    def say(kind: str, **said: Any) -> None:
        letter = note_of(None, kind, said)
        if any(event.channel == "note" and event.payload == letter for event in log.events):
            return  # it was said: the call during which that happened is made again
        log.append("note", letter)
        assert runner is not None
        act(runner, kind, said)

    def ask(request: ChatRequest) -> Any:
        kind = kind_of(request)
        asked.append(kind)
        reply = scenario.brain(kind, request, say)
        return [ToolCall("f", kind, reply)] if isinstance(reply, dict) else reply

    state = JobState(
        scenario.request,
        scenario.models(ask),
        ToolRegistry(scenario.tools(runs)),
        log=log,
        options=scenario.options,
        approve=scenario.approve,
        past=JobPast.read(before) if before else None,
    )
    runner = JobRunner(state)
    job = await runner.run()
    return Run(job, log.events, asked, runs)


TIMES = ("elapsed", "duration", "started_at", "ended_at", "iter_elapsed", "offset", "part")


def plain(value: Any) -> Any:
    """Data without times."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items() if name not in TIMES}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def history(events: Iterable[Event]) -> dict[str | None, list[Any]]:
    """What readers get, by step: steps run side by side in no fixed order, as do the calls of a turn. The answer is
    `answer_of`'s."""
    told: dict[str | None, list[Any]] = {}
    for event in events:
        if not is_public(event.channel) or event.channel == "answer":
            continue
        of_step = told.setdefault(event.step_id, [[]])
        shown = plain(event.payload)
        if event.channel == "done":
            del shown["usage"], shown["cost"]  # the sum of the turns, some of which only the dead worker had begun
        if event.channel == "approval" or event.payload.get("type") == "iteration":
            of_step[-1].append(json.dumps(shown, sort_keys=True))
        else:
            of_step += [(event.channel, shown), []]
    return {step: [sorted(part) if isinstance(part, list) else part for part in of] for step, of in told.items()}


def answer_of(events: Iterable[Event]) -> str:
    """The text that stands in the end, for one who reads all of it."""
    text = ""
    for event in events:
        if event.channel == "answer":
            status = event.payload["status"]
            text = "" if status in ("start", "reset") else text + event.payload.get("content", "")
    return text


def account(job: Job) -> dict[str, Any]:
    """The job's public shape without times, and without what calls cost that nobody saw the end of."""
    shown: dict[str, Any] = plain(job.to_json())
    return {name: part for name, part in shown.items() if name not in ("created_at", "usage")}


def usage_told(events: Iterable[Event]) -> dict[str, Any]:
    """What the log says that the job's calls came to; a call that the dead worker gave up is not among them."""
    told = (Usage.recorded(event.payload["usage"]) for event in events if event.channel == "turn")
    return sum(told, Usage.zero()).to_json()


def turns(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """The replies that were paid for, by place."""
    paid = [event for event in events if event.channel == "turn" and event.payload["result"] is not None]
    return sorted(
        (str(event.step_id), told.get("round", 1), told["step_attempt"], told["role"], told["usage"]["input_tokens"])
        for event in paid
        if (told := event.payload)
    )


def choices(events: Iterable[Event]) -> list[tuple[str, ...]]:
    """The choices of models, by step."""
    told = (event for event in events if event.channel == "route" and is_choice(event.payload))
    return sorted((str(event.step_id), json.dumps(event.payload, sort_keys=True)) for event in told)


def open_writes(events: Iterable[Event], writing: Iterable[str]) -> set[str]:
    """Keys of calls of writing tools that were begun and have no end: nobody knows what they did."""
    found: set[str] = set()
    for event in events:
        if event.channel == "call" and event.payload["status"] == "start":
            if event.payload["tool_name"] in writing:
                found.add(event.payload["key"])
        elif event.channel == "call" and event.payload["status"] == "end":
            found.discard(event.payload["key"])
    return found
