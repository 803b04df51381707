"""What an agent did before its process ended, out of the job's events.

Two things are recorded: what the loop told, in its order (the *line*), and the calls of tools, which run side by side
and are found by their keys. An agent's records are always a beginning of what it would have told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from registry.errors import DagwrightError
from registry.messages import Event, Usage
from registry.text import load_prompt

from .waits import ApprovalRequest, PendingCall

Key: TypeAlias = tuple[str | None, int, int]
"""An agent of a job: its step, the round of the plan, the attempt."""

ASIDE = ("selection", "compaction")
"""Roles in which an agent calls models beside its own turns."""
OWN_ROLES = ("step", "agent")
"""Roles in which an agent's own turns are made, where its opening does not say another one."""
TURN, CALLS, OPENING, FAILED, WINDOW = "turn", "calls", "note opening", "note failed", "compacted"
WHO = frozenset({"begun", "opening", "failed"})
"""Notes by which an agent says who it is."""
SAID = frozenset(
    {"last_turn", "after_checklist", "reformat", "repeated", "reflect", "continue", "shorter", "empty", "checklist"}
)
"""Notes of what the loop says to the model; those of others are none of its business."""
_NOTHING = Usage.zero()


class EndedThereError(DagwrightError):
    """The agent was ended from outside, by something that its records don't hold."""

    code = "ended_there"


@dataclass(slots=True)
class CallPast:
    """What is recorded of one call of a tool. `begun` is its start and `over` the last word about it (its end, that it
    was not run, or that its effect is uncertain), `asked` what a human was asked, each a payload; `told`: the events
    there are of it; `took_effect`: how an uncertain one was settled; `spent`: what models cost inside it."""

    key: str
    begun: Mapping[str, Any] | None = None
    over: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] | None = None
    took_effect: bool | None = None
    told: set[str] = field(default_factory=set)
    spent: Usage = _NOTHING

    @property
    def iteration(self) -> int:
        """The loop's turn that asked for it."""
        return int(self.key.split("/")[-2])

    def take(self, event: Event) -> None:
        """The next event of this call."""
        told, mark = event.payload, str(event.payload.get("status"))
        if event.channel == "approval":
            if mark == "waiting":
                self.asked = told
            elif mark == "cancelled":
                self.asked = None
            return
        if event.channel == "step":
            self.told.add(f"iteration {mark}")
            return
        self.told.add(mark)
        if mark == "start":
            self.begun = told
        elif mark == "settled":
            self.took_effect = bool(told["took_effect"])
        else:
            self.over = told

    def pending(self, step_id: str | None) -> PendingCall | None:
        """The call as somebody is asked about it who knows whether it took effect; None where that is no question."""
        if self.over is None or self.over["status"] != "uncertain" or self.took_effect is not None:
            return None
        arguments = (self.begun or {}).get("tool_args") or {}
        return uncertain_call(self.key, self.over["tool_name"], arguments, step_id)

    def request(self, step_id: str | None) -> PendingCall | None:
        """The call as it waited for a human's approval; None where it did not."""
        if self.asked is None:
            return None
        request = ApprovalRequest(self.asked["reason"], self.asked["deadline"])
        return PendingCall(self.key, self.asked["tool_name"], self.asked["tool_args"], request, step_id)


def uncertain_call(key: str, name: str, arguments: Mapping[str, Any], step_id: str | None) -> PendingCall:
    """A call whose effect nobody knows, with the question for a human."""
    question = load_prompt("agent", "uncertain_question").substitute()
    return PendingCall(key, name, arguments, ApprovalRequest(question), step_id, uncertain=True)


@dataclass(slots=True)
class AgentPast:
    """One agent's records. `line` is what its loop told, in order, as (mark, payload); `calls` are its calls of tools;
    `answered`: how far its direct answer came (started, done); `superseded`: another agent came after it."""

    step_id: str | None = None
    line: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    calls: dict[str, CallPast] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    superseded: bool = False
    role: str | None = None

    @staticmethod
    def read(events: Iterable[Event]) -> dict[Key, AgentPast]:
        """The agents of a job, out of all its events."""
        reader = _Reader()
        for event in events:
            reader.take(event)
        return reader.agents

    @property
    def uncertain(self) -> tuple[PendingCall, ...]:
        """The calls of which nobody knows yet whether they took effect."""
        found = (call.pending(self.step_id) for call in self.calls.values())
        return tuple(call for call in found if call is not None)


class _Reader:
    """Gives each event to its agent. The agents of a step work one after the other, and each says first who it is."""

    def __init__(self) -> None:
        self.agents: dict[Key, AgentPast] = {}
        self._calls: dict[str, CallPast] = {}
        self._now: dict[str | None, AgentPast] = {}
        self._last: dict[str | None, CallPast] = {}
        self._of_turn: dict[tuple[int, int], list[CallPast]] = {}  # by agent and turn

    def take(self, event: Event) -> None:
        told = event.payload
        match event.channel:
            case "turn":
                self._turn(event)
            case "note" if told.get("kind") in WHO:
                agent = self._agent(event.step_id, told["round"], told["attempt"])
                agent.role = told.get("role", agent.role)
                agent.line.append((mark_of("note", told), told))
            case "call" | "approval":
                self._called(event)
            case "step" if told.get("type") == "iteration":
                self._step_of_call(event)
            case "answer" if event.step_id in self._now:
                self._now[event.step_id].answered.add(told["status"])
            case _ if event.step_id in self._now and (mark := mark_of(event.channel, told)):
                self._now[event.step_id].line.append((mark, told))

    def _agent(self, step_id: str | None, round_: int, attempt: int) -> AgentPast:
        key = step_id, round_, attempt
        before = self._now.get(step_id)
        agent = self._now[step_id] = self.agents.setdefault(key, AgentPast(step_id))
        if before is not None and before is not agent:
            before.superseded = True
        return agent

    def _turn(self, event: Event) -> None:
        told = event.payload
        role, call_id = told["role"], told["call_id"]
        if call_id is not None:
            if (call := self._calls.get(call_id)) is not None:
                call.spent += Usage.recorded(told["usage"])
            return
        key = event.step_id, told.get("round", 1), told["step_attempt"]
        agent = self.agents.get(key)
        if told["result"] is None:
            return
        if role in ASIDE and agent is not None:
            agent.line.append((role, {"usage": told["usage"]}))
        elif role in ((agent.role,) if agent is not None and agent.role else OWN_ROLES):
            self._agent(*key).line.append((TURN, {}))

    def _called(self, event: Event) -> None:
        agent, told = self._now.get(event.step_id), event.payload
        key = told["key"] if event.channel == "call" else told["call_id"]
        call = self._calls.get(key)
        if call is None:
            if agent is None:
                return
            call = self._calls[key] = agent.calls[key] = CallPast(key)
            self._of_turn.setdefault((id(agent), call.iteration), []).append(call)
            if not _calls_begun(agent.line):
                agent.line.append((CALLS, {}))
        self._last[event.step_id] = call
        call.take(event)

    def _step_of_call(self, event: Event) -> None:
        """A public event of a call has no key: it belongs to the call that was told last, or else to the first of the
        turn's calls of this tool that misses it."""
        agent, told = self._now.get(event.step_id), event.payload
        if agent is None:
            return
        mark = f"iteration {told['status']}"
        last = self._last.get(event.step_id)
        of_turn = self._of_turn.get((id(agent), told["iteration"]), ())
        for call in chain(() if last is None else (last,), of_turn):
            words = call.begun or call.over or {}
            fits = words.get("tool_name") == told["tool_name"] and call.iteration == told["iteration"]
            if fits and mark not in call.told and (told["status"] == "start" or call.over is not None):
                call.take(event)
                return


def _calls_begun(line: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Whether a call of the last turn is on the line."""
    last = next((mark for mark, _ in reversed(line) if mark in (TURN, CALLS)), TURN)
    return last == CALLS


def mark_of(channel: str, told: Mapping[str, Any]) -> str:
    """What identifies an event on the line; "" for those that are not on it."""
    match channel:
        case "note" if told.get("kind") in WHO or told.get("kind") in SAID:
            return f"note {told['kind']}"
        case "step" if told.get("type") in ("thinking", "answer"):
            return f"{told['type']} {told['status']}"
        case "phase" if told.get("phase") == "selecting_tools":
            return channel
        case "compact" | "compacted" | "inject":
            return channel
    return ""
