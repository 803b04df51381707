"""A job's log read as a script: what came to the job from outside, and what it told of itself, in order."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent.past import ASIDE, OWN_ROLES, Key
from executor.ledger import Place, place_of
from executor.results import StepResult
from executor.routed import Routed, is_choice
from executor.schedule_types import ENDED, Abort
from registry.errors import AbandonedError
from registry.messages import Event, LLMResult

IN_AGENTS = (*OWN_ROLES, *ASIDE, "tool")
"""Roles of calls that a single agent makes by itself."""
PIPELINE = {
    "route": ("mode", "domain_hint"),
    "phase": ("phase", "reasoning"),
    "plan": ("steps", "round", "kept"),
    "plan_diff": ("kept", "replaced", "added", "dropped"),
    "step_progress": ("status", "result", "error", "error_code", "root_cause", "model"),
    "verdict": ("achieved", "confidence", "reasoning", "final_answer"),
    "inject": ("content",),
    "budget": ("reason",),
    "done": ("status", "answer", "error_code"),
}
"""What the pipeline tells of itself, and the fields that a replay must bring again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a try of a model call came to: a result or an error (its code and text). `model` is a registered name."""

    seq: int
    place: Place
    model: str
    attempt: int
    result: LLMResult | None
    error: tuple[str, str] | None

    @property
    def abandoned(self) -> bool:
        """Whether it was cancelled on its way."""
        return self.error is not None and self.error[0] == AbandonedError.code


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the script. `told`: the pipeline's own word, `reply`: a reply to one of its calls, `letter`: what
    was said to the job, `ready`: a step that waited may go on and has no slot yet, `abort`: its work was cut off."""

    kind: Literal["told", "reply", "letter", "ready", "abort"]
    seq: int
    channel: str = ""
    step_id: str | None = None
    payload: Mapping[str, Any] | None = None
    reply: Reply | None = None

    def same(self, other: Item) -> bool:
        """Whether two words of the pipeline agree in all that counts."""
        return not self.differences(other) and (self.channel, self.step_id) == (other.channel, other.step_id)

    def differences(self, other: Item) -> tuple[str, ...]:
        """The fields in which they don't."""
        mine, others = self.payload or {}, other.payload or {}
        names = PIPELINE.get(self.channel, ())
        if self.cut_off:  # how far it had come, and on which model of a chain, is a matter of moments
            names = tuple(name for name in names if name not in ("result", "model"))
        return tuple(name for name in names if mine.get(name) != others.get(name))

    @property
    def cut_off(self) -> bool:
        """Whether this is the end of a step that was cancelled, or out of time."""
        told = self.payload or {}
        is_end = self.channel == "step_progress" and told.get("status") in ENDED
        return is_end and (told["status"] == "cancelled" or told.get("error_code") == "timeout")

    def ends(self, step_id: str) -> bool:
        """Whether this is the end of a step that ran."""
        return self.is_progress(step_id) and (self.payload or {}).get("status") in ENDED

    def is_progress(self, step_id: str) -> bool:
        """Whether this is a change of a step's status."""
        return self.kind == "told" and self.channel == "step_progress" and self.step_id == step_id


class Script:
    """What a log says. `items` is the order of the pipeline, `replies` holds all replies by place, `opening` is the
    payload of `job_started`, `ending` that of `done`. `plan` is the one that was given, `kept` the results that came
    with it; `deaths` are the places at which another worker went on, `uncertain` the `call` events of agents that say
    so, `routes` the choices of models by step and round. Raises ValueError for a log that is not an ended job's."""

    def __init__(self, events: Sequence[Event]) -> None:
        if not events or events[0].channel != "job_started" or events[-1].channel != "done":
            raise ValueError("the log does not go from the start of a job to its end")
        self.events = tuple(events)
        self.job_id, self.started_at = events[0].job_id, events[0].ts
        self.opening, self.ending = events[0].payload, events[-1].payload
        self.plan: Mapping[str, Any] | None = None
        self.kept: list[StepResult] = []
        self.replies: dict[Place, deque[Reply]] = defaultdict(deque)
        self.cut_off: set[tuple[int, str]] = set()
        self.deaths: list[int] = []
        self.uncertain: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
        self.routes: dict[tuple[str | None, int], list[Routed]] = defaultdict(list)
        self.items: list[Item] = []
        self._results: dict[Place, list[LLMResult]] = defaultdict(list)
        self._letters: dict[int, Item] = {}
        self._status: dict[str, str] = {}
        self._attempts: dict[str | None, int] = {}
        self._round, self._mode = 1, str(self.opening["mode"])
        self._read(events[1:])
        heard = self._heard_by_agents() if self.single else set()
        self.items = self._with_abort([item for item in self.items if item.kind != "letter" or item.seq not in heard])

    @property
    def single(self) -> bool:
        """Whether one agent did it all."""
        return self._mode == "react"

    @property
    def aborted(self) -> bool:
        """Whether the job's work was cut off from outside."""
        return any(item.kind == "abort" for item in self.items)

    @property
    def cut_by_budget(self) -> bool:
        """Whether a reply was cut by a limit that the budget set."""
        lowered = {
            (event.step_id, event.payload.get("role"))
            for event in self.events
            if event.channel == "budget" and event.payload["reason"] == "lowered"
        }
        given = (reply for replies in self.replies.values() for reply in replies)
        cut = (reply for reply in given if reply.result is not None and reply.result.finish_reason == "length")
        return any((reply.place[0], reply.place[3]) in lowered for reply in cut)

    def of_agents(self) -> list[Event]:
        """The events as agents go through them: what their job did for them, it does again."""
        return [
            event
            for at, event in enumerate(self.events)
            if not self._settled(event)
            and (event.channel != "inject" or event.step_id is not None or not self._of_a_round(self.events, at))
        ]

    @staticmethod
    def _settled(event: Event) -> bool:
        """What became of an uncertain call: it is asked for again."""
        return event.channel == "call" and event.payload["status"] == "settled"

    def turns(self, step_id: str | None, round_: int, attempt: int, role: str) -> list[LLMResult]:
        """An agent's own turns."""
        place: Place = (step_id, round_, attempt, role, None)
        return self._results[place]

    # Reading

    def _read(self, events: Sequence[Event]) -> None:
        for at, event in enumerate(events):
            told = event.payload
            match event.channel:
                case "turn":
                    self._turn(event)
                case "fallback" if event.step_id is None:
                    self._unsent(event)
                case "note":
                    self._note(event)
                case "budget":
                    self._budget(event)
                case "call" if told["status"] == "uncertain":
                    self._uncertain(event)
                case "inject":
                    if event.step_id is None and (not self.single or self._of_a_round(events, at)):
                        self._tell(event)
                case "step_progress":
                    self._progress(event)
                case "plan" if all(item.kind != "told" for item in self.items):
                    self.plan = told
                    self._tell(event)
                case "phase" if told.get("phase") == "selecting_tools":
                    pass
                case channel if channel in PIPELINE:
                    self._tell(event)

    def _note(self, event: Event) -> None:
        told = event.payload
        match told.get("kind"):
            case "letter":
                letter = Item("letter", event.seq, str(told["letter"]), payload=told["said"])
                if told["id"] is None:  # said to the process itself
                    self.items.append(letter)
                else:
                    self._letters[told["id"]] = letter
            case "acted" if told["id"] in self._letters:
                self.items.append(self._letters.pop(told["id"]))
            case "ready":
                self.items.append(Item("ready", event.seq, step_id=event.step_id))
            case "restored":
                self._died(event.seq)

    def _uncertain(self, event: Event) -> None:
        """A call of which nobody knew whether it took effect; its agent's record does not tell it again."""
        step = event.step_id
        self.uncertain[step, 1 if step is None else self._round, self._attempts[step]].append(event.payload)

    def _tell(self, event: Event) -> None:
        if event.channel == "route" and is_choice(event.payload):
            round_ = 1 if event.step_id is None else self._round
            self.routes[event.step_id, round_].append(Routed.from_json(event.payload))
            return
        if event.channel == "plan":
            self._round = event.payload["round"]
        elif event.channel == "route":
            self._mode = event.payload["mode"]
        self.items.append(told_item(event))

    def _progress(self, event: Event) -> None:
        told, step = event.payload, event.step_id or ""
        if told.get("kept"):
            self.kept.append(StepResult.from_progress(step, told))
            return
        ran = self._status.get(step) in ("running", "waiting")
        if ran and (told["status"] == "cancelled" or told.get("error_code") == "timeout"):
            self.cut_off.add((self._round, step))
        self._status[step] = told["status"]
        self._tell(event)

    def _turn(self, event: Event) -> None:
        told = event.payload
        place = place_of(event)
        self._attempts[event.step_id] = told["step_attempt"]
        result = None if told["result"] is None else LLMResult.from_json(told["result"])
        error = None if told["error"] is None else (told["error"]["code"], told["error"]["message"])
        reply = Reply(event.seq, place, told["model"], told["attempt"], result, error)
        if result is not None:
            self._results[place].append(result)
        self._reply(reply)

    def _reply(self, reply: Reply) -> None:
        self.replies[reply.place].append(reply)
        step, _, _, role, call = reply.place
        if step is not None or call is not None or (self.single and role in ASIDE):
            return
        if role not in OWN_ROLES or reply.result is not None:  # what an agent made of errors stands in its own record
            self.items.append(Item("reply", reply.seq, reply=reply))

    def _unsent(self, event: Event) -> None:
        """A change of model without a try before it: the call never left the house."""
        told = event.payload
        place: Place = (None, 1, 1, told["where"], None)
        known = self.replies[place]
        if told["where"] not in OWN_ROLES and not (known and known[-1].error and known[-1].model == told["from"]):
            self._reply(Reply(event.seq, place, told["from"], 1, None, (told["error"], "")))

    def _act(self) -> None:
        """What was said and had not taken effect does so now."""
        self.items += self._letters.values()
        self._letters.clear()

    def _died(self, seq: int) -> None:
        """A worker died, and another one went on: what was being asked for was asked for anew, errors came again."""
        self.deaths.append(seq)
        self._act()
        told = next((item.seq for item in reversed(self.items) if item.kind == "told"), 0)
        for place, known in self.replies.items():
            while known and known[-1].result is None and (place[0] is not None or known[-1].seq > told):
                known.pop()
        left = {reply.seq for known in self.replies.values() for reply in known}
        self.items = [item for item in self.items if item.reply is None or item.seq in left or item.seq <= told]

    def _budget(self, event: Event) -> None:
        """A call that the budget refused; for the answer the job did not even ask."""
        told = event.payload
        if told.get("final"):
            self._tell(event)
        elif told["reason"] == "refused" and told["role"] not in IN_AGENTS:
            error = ("budget_exceeded", str(self.ending.get("error") or ""))
            where = (
                (None, 1, 1) if event.step_id is None else (event.step_id, self._round, self._attempts[event.step_id])
            )
            self._reply(Reply(event.seq, (*where, told["role"], None), told["model"], 1, None, error))

    @staticmethod
    def _of_a_round(events: Sequence[Event], at: int) -> bool:
        """Whether the job itself took a message in, not the agent that works for it."""
        notes = (event for event in reversed(events[:at]) if event.payload.get("kind") != "restored")
        before = next(notes, None)
        return before is not None and before.channel == "note" and before.payload.get("kind") == "round"

    def _heard_by_agents(self) -> set[int]:
        """The letters whose messages a single agent took in by itself, which its own record has."""
        waiting: list[tuple[int, str]] = []
        heard: set[int] = set()
        for at, event in enumerate(self.events):
            told = event.payload
            if event.channel == "note" and told.get("letter") == "message" and told["said"]["text"].strip():
                waiting.append((event.seq, told["said"]["text"]))
            elif event.channel == "inject" and event.step_id is None:
                count = next(
                    (size for size in range(len(waiting) + 1) if _joined(waiting[:size]) == told["content"]), 0
                )
                if not self._of_a_round(self.events, at):
                    heard |= {seq for seq, _ in waiting[:count]}
                del waiting[:count]
        return heard

    # Where the work was cut off

    def _with_abort(self, items: list[Item]) -> list[Item]:
        """The script with the place at which the work as a whole was cancelled, if it was."""
        code, error = self.ending.get("error_code"), str(self.ending.get("error") or "")
        cancelled = self.ending["status"] == "cancelled" and code == "cancelled"
        late = code == "budget_exceeded" and "seconds is used up" in error
        if not cancelled and not late and code != "interrupted":
            return items
        at = self._before_the_answer(items) if late else len(items) - 1
        while at and (items[at - 1].kind == "letter" or _of_an_abort(items[at - 1])):
            at -= 1
        cut = Item("abort", items[at].seq, "time" if late else str(code), payload=self.ending)
        return [*items[:at], cut, *items[at:]]

    def _before_the_answer(self, items: list[Item]) -> int:
        """Where the time was over: before what was still written, unless that is what it was over in."""
        phases = [at for at, item in enumerate(items) if item.channel == "phase"]
        last = phases[-1] if phases else 0
        if not phases or (items[last].payload or {}).get("phase") != "synthesizing":
            return len(items) - 1
        after = items[last + 1 :]
        broken = any(item.reply is not None and item.reply.abandoned for item in after)
        return len(items) - 1 if broken else last


def _joined(messages: Sequence[tuple[int, str]]) -> str:
    return "\n\n".join(text for _, text in messages)


def told_item(event: Event) -> Item:
    """A word of the pipeline as an entry of the script."""
    return Item("told", event.seq, event.channel, event.step_id, event.payload)


def of_the_pipeline(event: Event) -> bool:
    """Whether an event of a replay belongs to what is compared."""
    told = event.payload
    if event.channel == "phase":
        return told.get("phase") != "selecting_tools"
    if event.channel == "route":
        return not is_choice(told)
    if event.channel == "budget":
        return bool(told.get("final"))
    if event.channel == "inject":
        return event.step_id is None
    if event.channel == "step_progress":
        return not told.get("kept")
    return event.channel in PIPELINE


def _of_an_abort(item: Item) -> bool:
    told = item.payload or {}
    if item.channel != "step_progress":
        return False
    return told.get("error") == Abort().reason or (told["status"] == "cancelled" and told.get("error") == "Cancelled")
