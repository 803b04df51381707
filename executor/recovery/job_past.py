"""Where a job stood when its worker died: the fold of its log, from which another worker goes on.

The log is the only source. Every prefix of it is a place from which a job can go on: what a stage has told is not told
again (`Position.told`), what it had not told yet is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from agent.past import AgentPast, Key
from executor.results import StepResult, carried
from executor.routed import Routed, is_choice
from executor.schedule_types import ENDED
from planner.analyzer import Verdict
from planner.plan import Plan
from registry.fallback import Fallback
from registry.messages import Event

from .lost_calls import LostCalls
from .past_talk import Said, TalkFold
from .past_time import PastTime
from .step_past import CHECKS, StepFold, StepPast
from .uncertain import Effects

Stage = Literal["route", "plan", "planned", "execute", "judge", "decide", "write", "change", "agent"]
"""What a job was at: `planned` has a plan that nothing was run of, `decide` a verdict that nothing followed from."""

PIPELINE = frozenset({"planning", "executing", "analyzing", "replanning", "synthesizing"})
"""The phases that the job itself tells of."""

AnswerState = Literal["none", "started", "open", "done"]

PARTS = 1_000
"""What live readers may have seen of void answers is numbered below this, counted from the last one in the log: a
worker stores what it wrote before each call of a model, and a call has far fewer tries."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the pipeline stands. `told` names what the stage has told already. `used`: rounds that count; `executed`:
    whether any plan was; `verdict`: on the last execution; `heard`: the plan is being changed for a message."""

    stage: Stage
    told: frozenset[str] = frozenset()
    used: int = 0
    executed: bool = False
    verdict: Verdict | None = None
    heard: bool = False


@dataclass(frozen=True, slots=True)
class Account:
    """What the job's calls came to. `turns` are all `turn` events, and one for each call that was lost, `pending` those
    whose replies may be asked for again; `retold` the changes of model in the running stage, which may come again.
    `open_calls`: tools whose call was begun and of which no end is known, by key. `cut_by_budget`: a reply was cut by a
    limit that the budget set."""

    rounds: int
    iterations: int
    fallbacks: tuple[Fallback, ...] = ()
    retold: tuple[Fallback, ...] = ()
    turns: tuple[Event, ...] = ()
    pending: tuple[Event, ...] = ()
    open_calls: Mapping[str, str] = field(default_factory=dict)
    cut_by_budget: bool = False


@dataclass(frozen=True, slots=True)
class JobPast:
    """A job as its log has it.

    `steps` are the results of the plan's steps as they stand, `before` those of the last execution that ended, `begun`
    the steps under way, `taint` the untrusted origins of what the running round rests on. `models` and `tools` are the
    names that the job started with. `answer` is what stands of it; `part` the first number that no reader can know.
    `spent`: seconds that it ran. `calls`: the `call` events of single agents, with their attempts; `effects`: what is
    known of the calls that died with a worker. `routed` are the choices of models for steps that have not begun,
    `routes` those of single agents; `checks` are the notes of checks of what they came to, by attempt and kind.
    """

    mode: str
    domain: str | None
    started_at: float
    marker: str
    models: tuple[str, ...]
    tools: tuple[str, ...]
    plan: Plan | None
    steps: Mapping[str, StepResult]
    before: Mapping[str, StepResult]
    begun: Mapping[str, StepPast]
    position: Position
    said: Said
    account: Account
    answer: str
    answer_state: AnswerState
    part: int
    spent: float
    approvals: tuple[Event, ...]
    effects: Effects
    agents: Mapping[Key, AgentPast]
    calls: tuple[tuple[int, Mapping[str, Any]], ...]
    routed: Mapping[str, tuple[Routed, ...]]
    routes: tuple[Routed, ...]
    checks: Mapping[int, Mapping[str, Mapping[str, Any]]]

    @classmethod
    def read(cls, events: Iterable[Event]) -> JobPast:
        """The fold of all events of a job so far, internal channels included."""
        found = _Fold()
        for event in events:
            found.hear(event)
        return found.past()

    @property
    def voided(self) -> bool:
        """Whether what was shown of an answer is none, and readers have not been told."""
        return self.answer_state == "open" or (self.answer_state == "done" and "void" in self.position.told)


class _Fold:
    """What the events come to, one after the other."""

    def __init__(self) -> None:
        self.mode = "auto"
        self.domain: str | None = None
        self.started_at, self.marker = 0.0, ""
        self.models: tuple[str, ...] = ()
        self.tools: tuple[str, ...] = ()
        self.plan: Plan | None = None
        self.steps: dict[str, StepResult] = {}
        self.before: dict[str, StepResult] = {}
        self.folds: dict[str, StepFold] = {}
        self.stage: Stage = "route"
        self.told: set[str] = set()
        self.used = self.rounds = self.iterations = 0
        self.executed = self.heard = self.lowered = self.cut = False
        self.verdict: Verdict | None = None
        self.talk, self.time = TalkFold(), PastTime()
        self.fallbacks: list[Fallback] = []
        self.retold: list[Fallback] = []
        self.attempt = 1
        self.routes: list[Routed] = []
        self.checks: dict[int, dict[str, Mapping[str, Any]]] = {}
        self.calls: list[tuple[int, Mapping[str, Any]]] = []
        self.turns: list[Event] = []
        self.pending: list[Event] = []
        self.lost = LostCalls()
        self.open_calls: dict[str, str] = {}
        self.answer: list[str] = []
        self.answer_state: AnswerState = "none"
        self.part = 0
        self.approvals: list[Event] = []
        self.effects = Effects()
        self.of_agents: list[Event] = []

    def hear(self, event: Event) -> None:
        """The next event."""
        self.time.hear(event)
        self.lost.hear(event)
        if event.channel == "inject":
            self._injected(event)
            return
        self.of_agents.append(event)
        if (take := _TAKES.get(event.channel)) is not None:
            take(self, event)
        if event.step_id is not None:
            self._of_step(event.step_id, event)

    # The pipeline

    def _enter(self, stage: Stage, *told: str) -> None:
        self.stage, self.told, self.pending, self.retold = stage, set(told), [], []

    def _started(self, event: Event) -> None:
        told = event.payload
        self.started_at, self.marker, self.mode = event.ts, told["marker"], told["mode"]
        self.models, self.tools = tuple(told["models"]), tuple(told["tools"])
        stages: dict[str, Stage] = {"react": "agent", "dag": "plan"}
        self._enter(stages.get(self.mode, "route"))

    def _routed(self, event: Event) -> None:
        """The router's word, or the choice of a single agent's model. Where that voids what the agent before gave as
        its answer, readers have to be told."""
        if is_choice(event.payload):
            if event.step_id is None:
                self.routes.append(Routed.from_json(event.payload))
                if self.routes[-1].before is not None and self.answer_state == "done":
                    self.told.add("void")
            return
        self.mode, self.domain = event.payload["mode"], event.payload["domain_hint"]
        self._enter("agent" if self.mode == "react" else "plan")

    def _phase(self, event: Event) -> None:
        phase = event.payload["phase"]
        match phase:
            case "planning":
                self._enter("plan", phase)
            case "executing":
                self.used, self.executed, self.verdict = self.used + 1, True, None
                self._enter("execute", phase)
                self.talk.cancels.clear()
            case "analyzing":
                self._left_execution()
                self._enter("judge", phase)
            case "replanning":
                self.heard = self.heard and self.stage == "change"
                self._enter("change", phase)
            case "synthesizing" if self.stage == "decide":
                self._enter("write", phase)
            case "synthesizing":
                self.told.add(phase)  # a single agent's answer, or the last word of a job without a budget

    def _planned(self, event: Event) -> None:
        """A round's plan: of the steps so far only those that it keeps stay as they are."""
        plan = Plan.from_json(event.payload)
        self.plan, self.steps = plan, carried(plan, self.steps)
        self.folds = {}
        self._enter("planned")

    def _diffed(self, event: Event) -> None:
        self.told.add(event.channel)

    def _judged(self, event: Event) -> None:
        self._left_execution()
        self.verdict = Verdict(**event.payload)
        self._enter("decide")

    def _left_execution(self) -> None:
        """The round is over: it counts if anything was run in it."""
        if self.stage != "execute" or self.plan is None:
            return
        kept = self.plan.kept
        self.rounds += any(name not in kept for name in self.steps)
        self.iterations += sum(step.iterations for name, step in self.steps.items() if name not in kept)
        self.before = dict(self.steps)

    def _injected(self, event: Event) -> None:
        by_agent = self.stage == "agent"
        if not self.talk.injected(event.payload["content"], by_agent=by_agent):
            self.of_agents.append(event)
        elif not by_agent:
            if self.stage in ("execute", "judge", "decide", "write"):
                self._left_execution()
                self.used -= 1
            self.heard = self.executed
            self._enter("change" if self.executed else "plan")

    # Steps, calls, answers

    def _of_step(self, step: str, event: Event) -> None:
        if event.channel == "step_progress" and event.payload["status"] in ENDED:
            self.steps[step] = StepResult.from_progress(step, event.payload)
            if event.payload.get("kept"):
                self.before[step] = self.steps[step]
            self.folds.pop(step, None)
            return
        self.folds.setdefault(step, StepFold(step)).hear(event)
        if event.channel == "step_progress":
            self.steps[step] = self.folds[step].result

    def _noted(self, event: Event) -> None:
        payload = event.payload
        match payload["kind"]:
            case "opening" if event.step_id is None:
                self.attempt = payload["attempt"]
            case kind if kind in CHECKS and event.step_id is None:
                self.checks.setdefault(self.attempt, {})[kind] = payload
            case "letter":
                self.talk.letter(payload["letter"], payload["said"])
            case "round":
                self.talk.goes_further(payload["said"])
                self.told = {"void"}
                self.pending = [turn for turn in self.pending if turn.payload["role"] != "synthesis"]

    def _turn(self, event: Event) -> None:
        payload = event.payload
        self.turns.append(event)
        self.cut |= payload["result"] is not None and payload["result"]["finish_reason"] == "length"
        if event.step_id is None:
            self.pending.append(event)

    def _call(self, event: Event) -> None:
        payload = event.payload
        status, key = payload["status"], payload["key"]
        if event.step_id is None:
            self.calls.append((self.attempt, payload))
        if status == "start":
            self.open_calls[key] = payload["tool_name"]
        elif status in ("end", "settled"):
            self.open_calls.pop(key, None)
        self.effects.hear(payload)

    def _approved(self, event: Event) -> None:
        self.approvals.append(event)
        self.talk.approval(event)

    def _budgeted(self, event: Event) -> None:
        self.lowered |= event.payload["reason"] == "lowered"

    def _fell_back(self, event: Event) -> None:
        self.fallbacks.append(Fallback.from_json(event.payload))
        if event.step_id is None:
            self.retold.append(self.fallbacks[-1])

    def _answered(self, event: Event) -> None:
        payload = event.payload
        if event.step_id is not None:
            return
        match payload["status"]:
            case "start" if self.answer_state != "open":
                self.answer_state = "started"
            case "delta":
                self.answer_state = "open"
                self.answer.append(payload["content"])
            case "done":
                self.answer_state = "done"
            case "reset":
                self.answer_state = "none"
                self.told.discard("void")
        if payload["status"] in ("start", "reset"):
            self.answer.clear()
        self.part = max(self.part, payload.get("part", 0))

    # All of it

    def past(self) -> JobPast:
        for lost in self.lost.turns():
            self._turn(lost)
            if lost.step_id in self.folds:
                self.folds[lost.step_id].hear(lost)
        begun = {
            name: fold.past(self.time.steps.get(name, 0.0), self.talk.waits(name))
            for name, fold in self.folds.items()
            if fold.result.status in ("running", "waiting")
        }
        told = self.told | ({"answer"} if self.answer_state == "started" else set())
        return JobPast(
            self.mode,
            self.domain,
            self.started_at,
            self.marker,
            self.models,
            self.tools,
            self.plan,
            MappingProxyType(self.steps),
            MappingProxyType(dict(self.before)),
            begun,
            Position(self.stage, frozenset(told), self.used, self.executed, self.verdict, self.heard),
            self.talk.said(),
            self._account(begun),
            "".join(self.answer),
            self.answer_state,
            self.part + PARTS,
            self.time.spent,
            tuple(self.approvals),
            self.effects,
            AgentPast.read(event for event in self.of_agents if event.step_id is None or event.step_id in begun),
            tuple(self.calls),
            {name: tuple(fold.routes) for name, fold in self.folds.items() if fold.result.status == "pending"},
            tuple(self.routes),
            self.checks,
        )

    def _account(self, begun: Mapping[str, StepPast]) -> Account:
        pending = [*self.pending, *(turn for name in begun for turn in self.folds[name].pending)]
        return Account(
            self.rounds,
            self.iterations,
            tuple(self.fallbacks),
            tuple(self.retold),
            tuple(self.turns),
            tuple(pending),
            self.open_calls,
            self.lowered and self.cut,
        )


_TAKES: Mapping[str, Callable[[_Fold, Event], None]] = {
    "job_started": _Fold._started,
    "route": _Fold._routed,
    "phase": _Fold._phase,
    "plan": _Fold._planned,
    "plan_diff": _Fold._diffed,
    "verdict": _Fold._judged,
    "answer": _Fold._answered,
    "approval": _Fold._approved,
    "note": _Fold._noted,
    "turn": _Fold._turn,
    "call": _Fold._call,
    "budget": _Fold._budgeted,
    "fallback": _Fold._fell_back,
}
