"""The schedule under random plans, durations, failures, stops, cancellations and waits, on a simulated clock."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from executor.persistent import Vector, pop, push
from executor.schedule import reduce
from executor.schedule_types import (
    ENDED,
    Abort,
    CancelStep,
    Event,
    Finish,
    PlanStarted,
    ResumeStep,
    Shape,
    SkipStep,
    StartStep,
    State,
    StepCancelled,
    StepCompleted,
    StepFailed,
    StepReady,
    StepWaiting,
    Stop,
    StopStep,
)

POLICIES = ("skip_dependents", "continue", "fail_fast")


@dataclass(frozen=True)
class Script:
    """What a step will do: run, wait for a human `waits` times in between, and end like `end`."""

    id: str
    dependencies: tuple[str, ...]
    on_failure: str
    runs: tuple[int, ...]
    wait: int
    end: str
    code: str


@dataclass(frozen=True)
class World:
    steps: tuple[Script, ...]
    max_concurrency: int
    kept: dict[str, str]
    outside: tuple[tuple[int, str, str], ...]
    """(time, kind, step): what users do."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 12))
    steps = []
    for number in range(count):
        below = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        steps.append(
            Script(
                f"s{number}",
                tuple(f"s{place}" for place in below),
                draw(st.sampled_from(POLICIES)),
                tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))),
                draw(st.integers(0, 4)),
                draw(st.sampled_from(("completed", "completed", "completed", "failed"))),
                draw(st.sampled_from(("error", "error", "error", "budget_exceeded", "auth"))),
            )
        )
    order = draw(st.permutations(steps))  # plan order need not be topological
    kept = draw(
        st.dictionaries(st.sampled_from([step.id for step in steps]), st.sampled_from(sorted(ENDED)), max_size=2)
    )
    outside = draw(
        st.lists(
            st.tuples(
                st.integers(0, 12),
                st.sampled_from(("cancel", "cancel", "cancel", "stop", "abort")),
                st.sampled_from([step.id for step in steps]),
            ),
            max_size=3,
        )
    )
    return World(tuple(order), draw(st.integers(1, 4)), kept, tuple(outside))


@dataclass
class Simulation:
    """Runs commands on a simulated clock and checks the rules at each moment."""

    world: World
    now: int = 0
    queue: list[tuple[int, int, Event]] = field(default_factory=list)
    sent: int = 0
    log: list[tuple[int, Any]] = field(default_factory=list)
    interval: Counter[str] = field(default_factory=Counter)
    epoch: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.scripts = {step.id: step for step in self.world.steps}
        self.state = State.initial(Shape.of(self.world.steps), self.world.max_concurrency)

    def later(self, delay: int, event: Event, epoch: int = -1) -> None:
        heapq.heappush(self.queue, (self.now + delay, self.sent, event))
        self.due = getattr(self, "due", {})
        self.due[self.sent] = epoch
        self.sent += 1

    def run(self) -> State:
        self.later(0, PlanStarted(dict(self.world.kept)))  # type: ignore[arg-type]
        for when, kind, step in self.world.outside:
            event = {"cancel": StopStep(step), "stop": Stop("Skipped — stopped"), "abort": Abort()}[kind]
            self.later(when, event)
        while self.queue:
            self.now, number, event = heapq.heappop(self.queue)
            if self.due[number] in (-1, self.epoch[getattr(event, "step", "")]):
                self.happen(event)
        return self.state

    def happen(self, event: Event) -> None:
        before, frozen = self.state, repr(self.state)
        self.state, commands = reduce(before, event)
        assert repr(before) == frozen, "an older state was changed in place"
        self.log.append((self.now, event))
        for command in commands:
            self.log.append((self.now, command))
            self.obey(command)
        self.check(event)

    def obey(self, command: Any) -> None:
        match command:
            case StartStep(step) | ResumeStep(step):
                script, number = self.scripts[step], self.interval[step]
                self.interval[step] += 1
                last = number == len(script.runs) - 1
                end: Event = StepCompleted(step) if script.end == "completed" else StepFailed(step, script.code)
                self.later(script.runs[number], end if last else StepWaiting(step), self.epoch[step])
                if not last:
                    self.later(script.runs[number] + script.wait, StepReady(step), self.epoch[step])
            case CancelStep(step) if self.interval[step]:
                self.epoch[step] += 1  # what it would have done does not happen any more
                self.later(1, StepCancelled(step), self.epoch[step])

    def check(self, event: Event) -> None:
        state, shape = self.state, self.state.shape
        running = [step for step in shape.ids if state.status_of(step) == "running"]
        assert len(running) == state.running <= state.max_concurrency
        if state.running < state.max_concurrency and any(isinstance(e, PlanStarted) for _, e in self.log):
            startable = [step for step in self.world.steps if self.startable(step)]
            assert not startable, "a slot is idle while a step is ready"

    def startable(self, step: Script) -> bool:
        place = self.state.shape.index[step.id]
        if self.state.status_of(step.id) == "waiting" and place not in self.state.condemned:
            return not self.state.missing[place]
        if self.state.status_of(step.id) != "pending" or self.state.stopping:
            return False
        return all(self.lets_go(name) for name in step.dependencies)

    def lets_go(self, name: str) -> bool:
        status = self.state.status_of(name)
        return status == "completed" or (status == "failed" and self.scripts[name].on_failure == "continue")


@settings(deadline=None, max_examples=150)
@given(worlds())
def test_every_plan_ends_and_keeps_the_rules(world: World) -> None:
    simulation = Simulation(world)
    state = simulation.run()

    assert state.outcome is not None
    assert all(state.status_of(step.id) in ENDED for step in world.steps)
    finishes = [entry for _, entry in simulation.log if isinstance(entry, Finish)]
    assert finishes == [Finish(state.outcome)]

    begun: set[str] = set()
    ended = set(world.kept)
    for _, entry in simulation.log:
        if isinstance(entry, StartStep):
            assert entry.step not in begun
            assert entry.step not in world.kept
            assert set(simulation.scripts[entry.step].dependencies) <= ended, "started before a dependency ended"
            begun.add(entry.step)
        if isinstance(entry, StepCompleted | StepFailed | StepCancelled):
            ended.add(entry.step)
    for step in world.steps:
        status = state.status_of(step.id)
        if step.id in world.kept:
            assert status == world.kept[step.id]
        elif status in ("completed", "failed"):
            assert status == step.end
            assert step.id in begun
            assert all(simulation.lets_go(name) for name in step.dependencies)
        if status == "skipped" and step.id not in world.kept:
            assert step.id not in begun


@settings(deadline=None, max_examples=100)
@given(worlds())
def test_skipped_steps_name_what_is_to_blame(world: World) -> None:
    simulation = Simulation(world)
    state = simulation.run()
    for _, entry in simulation.log:
        if isinstance(entry, SkipStep) and entry.root_cause is not None:
            assert state.status_of(entry.root_cause) in ("failed", "cancelled", "skipped")
            assert entry.root_cause in entry.reason
            assert entry.reason.startswith("Skipped — ")


@settings(deadline=None, max_examples=100)
@given(worlds())
def test_a_plan_with_a_failed_step_is_no_success(world: World) -> None:
    state = Simulation(world).run()
    statuses = set(state.status)
    assert (state.outcome == "completed") == (statuses <= {"completed"} and state.verdict is None)
    if any(kind == "abort" for _, kind, _ in world.outside) and state.outcome == "cancelled":
        assert state.verdict == "cancelled" or "failed" not in statuses


@settings(deadline=None, max_examples=100)
@given(worlds())
def test_the_same_events_give_the_same_schedule(world: World) -> None:
    one, other = Simulation(world), Simulation(world)
    assert one.run() == other.run()
    assert one.log == other.log
    replayed = State.initial(Shape.of(world.steps), world.max_concurrency)
    for _, entry in one.log:
        if isinstance(entry, Event):
            replayed, _ = reduce(replayed, entry)
    assert replayed == one.state


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(), min_size=1, max_size=3000), st.data())
def test_a_vector_is_a_list_that_keeps_its_past(items: list[int], data: st.DataObject) -> None:
    past = Vector.of(items)
    place = data.draw(st.integers(0, len(items) - 1))
    now = past.set(place, -1)
    assert list(past) == items
    assert [past[i] for i in range(len(items))] == items
    assert list(now) == [*items[:place], -1, *items[place + 1 :]]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 50)))
def test_a_heap_gives_its_items_in_order(items: list[int]) -> None:
    heap = None
    for item in items:
        heap = push(heap, item)
    popped = []
    while heap is not None:
        item, heap = pop(heap)
        popped.append(item)
    assert popped == sorted(items)
