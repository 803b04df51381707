"""The rules of the schedule: `reduce(state, event) -> (state, commands)`. No I/O, no tasks, no clock.

A step starts the moment its last dependency lets it, if a slot is free; of those that could, the one with the longest
remaining path goes first, ties by plan order. Waiting for a human is one more dependency: the step gives up its slot
and queues again once the decision is there. Every step that began ends by a report of its own, also when it is
cancelled, and holds its slot until then. What a failure does is the step's `on_failure`.

The state is a frozen value: what never changes during a run is in its `Shape`, what changes is in persistent vectors
and a persistent heap, so that an event costs O(log n) and every older state stays valid. `_Turn` is the scratch pad
of one event; it never leaves `reduce`.
"""

from __future__ import annotations

from .persistent import pop, push
from .schedule_types import (
    UNCERTAIN,
    Abort,
    CancelStep,
    Command,
    Event,
    Finish,
    PlanStarted,
    PlanStatus,
    ResumeStep,
    SkipStep,
    StartStep,
    State,
    StepCancelled,
    StepCompleted,
    StepFailed,
    StepReady,
    StepStatus,
    StepWaiting,
    Stop,
    StopStep,
)

FINAL: dict[str, PlanStatus] = {"budget_exceeded": "budget_exceeded", "auth": "failed", "quota": "failed"}
"""Errors of a step after which no other step can do better: the plan stops with grace and ends like this."""


def reduce(state: State, event: Event) -> tuple[State, tuple[Command, ...]]:
    """The state after the event, and what is to be done. What comes after an end, a step's or the plan's, is void."""
    if state.outcome is not None:
        return state, ()
    turn = _Turn(state)
    match event:
        case PlanStarted():
            turn.start(event)
        case StepCompleted(step):
            turn.report(step, "completed")
        case StepFailed(step, code):
            turn.report(step, "failed", code)
        case StepCancelled(step):
            turn.report(step, "cancelled")
        case StepWaiting(step):
            turn.wait(step)
        case StepReady(step):
            turn.decided(step)
        case StopStep(step):
            turn.cancel(state.shape.index[step])
        case Stop(reason, root_cause):
            turn.stop(reason, root_cause)
        case Abort(reason):
            turn.verdict = "cancelled"
            turn.stop(reason, now=True)
    turn.dispatch()
    turn.finish()
    return turn.result(), tuple(turn.commands)


class _Turn:
    def __init__(self, state: State) -> None:
        self.before, self.shape = state, state.shape
        self.status, self.missing, self.ready = state.status, state.missing, state.ready
        self.running, self.unfinished, self.condemned = state.running, state.unfinished, state.condemned
        self.stopping, self.verdict, self.outcome = state.stopping, state.verdict, state.outcome
        self.commands: list[Command] = []

    def result(self) -> State:
        return State(
            self.shape, self.before.max_concurrency, self.status, self.missing, self.ready, self.running,
            self.unfinished, self.condemned, self.stopping, self.verdict, self.outcome,
        )  # fmt: skip

    def start(self, event: PlanStarted) -> None:
        kept = [(place, event.kept[step]) for place, step in enumerate(self.shape.ids) if step in event.kept]
        for place, status in kept:
            self.end(place, status)
        for step in event.begun:
            self.begin(self.shape.index[step])
        for place, status in kept:
            self.pass_on(place)
            if status == "failed":
                self.give_up(self.shape.ids[place], event.codes.get(self.shape.ids[place], ""))
        if event.stop is not None:
            self.stop(event.stop.reason, event.stop.root_cause)
        for place, missing in enumerate(self.shape.missing):
            if not missing:
                self.ready = push(self.ready, self.shape.rank[place])

    def dispatch(self) -> None:
        while self.ready is not None and self.running < self.before.max_concurrency:
            rank, self.ready = pop(self.ready)
            place = self.shape.order[rank]
            if self.status[place] in ("pending", "waiting") and place not in self.condemned:
                self.begin(place)

    def begin(self, place: int) -> None:
        step, was = self.shape.ids[place], self.status[place]
        self.status = self.status.set(place, "running")
        self.running += 1
        self.commands.append(StartStep(step) if was == "pending" else ResumeStep(step))

    def wait(self, step: str) -> None:
        place = self.shape.index[step]
        if self.status[place] != "running" or place in self.condemned:
            return
        self.status, self.missing = self.status.set(place, "waiting"), self.missing.set(place, 1)
        self.running -= 1
        if self.stopping:
            self.cancel(place)

    def decided(self, step: str) -> None:
        place = self.shape.index[step]
        if self.status[place] == "waiting" and self.missing[place]:
            self.release(place)

    def report(self, step: str, status: StepStatus, code: str = "") -> None:
        place = self.shape.index[step]
        if self.status[place] not in ("running", "waiting"):
            return
        if place in self.condemned and (code != UNCERTAIN or self.verdict == "cancelled"):
            status = "cancelled"
        self.end(place, status)
        self.pass_on(place)
        if status == "failed":
            self.give_up(step, code)

    def give_up(self, step: str, code: str) -> None:
        if code in FINAL:
            self.verdict = self.verdict or FINAL[code]
            self.stop(f"Skipped — {step} failed: {code}", step)

    def end(self, place: int, status: StepStatus) -> None:
        self.running -= self.status[place] == "running"
        self.status = self.status.set(place, status)
        self.unfinished -= 1
        if place in self.condemned:
            self.condemned -= {place}

    def pass_on(self, place: int) -> None:
        """What the end of a step means for the others."""
        status, policy = self.status[place], self.shape.on_failure[place]
        if status == "completed" or (status == "failed" and policy == "continue"):
            for dependent in self.shape.dependents[place]:
                self.release(dependent)
            return
        step = self.shape.ids[place]
        reason = f"Skipped — {step} {status if status == 'failed' else f'was {status}'}"
        below = list(self.shape.dependents[place])
        for dependent in below:  # grows while we go: all the way down
            if self.status[dependent] == "pending":
                self.skip(dependent, reason, step)
                below += self.shape.dependents[dependent]
        if status == "failed" and policy == "fail_fast":
            self.stop(reason, step)

    def release(self, place: int) -> None:
        missing = self.missing[place] - 1
        self.missing = self.missing.set(place, missing)
        if not missing:
            self.ready = push(self.ready, self.shape.rank[place])

    def skip(self, place: int, reason: str, root_cause: str | None) -> None:
        self.end(place, "skipped")
        self.commands.append(SkipStep(self.shape.ids[place], reason, root_cause))

    def cancel(self, place: int) -> None:
        if self.status[place] == "pending":
            self.end(place, "cancelled")
            self.commands.append(CancelStep(self.shape.ids[place]))
            self.pass_on(place)
        elif self.status[place] in ("running", "waiting") and place not in self.condemned:
            self.condemned |= {place}
            self.commands.append(CancelStep(self.shape.ids[place]))

    def stop(self, reason: str, root_cause: str | None = None, *, now: bool = False) -> None:
        """With grace, running steps finish, those with a decision too; nothing else begins, no human is waited for."""
        if self.stopping and not now:
            return
        self.stopping = True
        for place, status in enumerate(self.status):
            if status == "pending":
                self.skip(place, reason, root_cause)
            elif now or (status == "waiting" and self.missing[place]):
                self.cancel(place)

    def finish(self) -> None:
        if not self.unfinished:
            self.outcome = self.verdict or _outcome(set(self.status))
            self.commands.append(Finish(self.outcome))


def _outcome(found: set[StepStatus]) -> PlanStatus:
    """Some work done, or a step cancelled: partial. Nothing done: failed if a step was, else a stop came first."""
    if found <= {"completed"}:
        return "completed"
    if "completed" in found or ("cancelled" in found and "failed" not in found):
        return "partial"
    return "failed" if "failed" in found else "cancelled"
