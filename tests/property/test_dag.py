"""Random plans through the asyncio shell: the same rules hold for real tasks, and nothing is left behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.dag import DAGExecutor
from executor.options import RunOptions
from executor.results import PlanResult, StepOutcome
from executor.schedule_types import ENDED
from planner.plan import Plan, PlanStep
from registry.errors import DagwrightError
from registry.messages import Event
from registry.testing import ScriptedLLM

ENDINGS = ("completed", "completed", "completed", "failed", "raises", "blank", "budget_exceeded", "hangs")


@dataclass(frozen=True)
class Script:
    """What a step does: turns of the loop it takes, waits for a human in between, and how it ends."""

    turns: tuple[int, ...]
    wait: int
    end: str


@dataclass(frozen=True)
class World:
    plan: Plan
    scripts: dict[str, Script]
    max_concurrency: int
    retries: int
    outside: tuple[tuple[int, str, str], ...]
    recorded: bool


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 10))
    steps, scripts = [], {}
    for number in range(count):
        below = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        policy: Any = draw(st.sampled_from(("skip_dependents", "continue", "fail_fast")))
        steps.append(PlanStep(f"s{number}", "work", tuple(f"s{n}" for n in below), on_failure=policy))
        scripts[f"s{number}"] = Script(
            tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))),
            draw(st.integers(0, 3)),
            draw(st.sampled_from(ENDINGS)),
        )
    ids = st.sampled_from([step.id for step in steps])
    moves = st.tuples(st.integers(0, 15), st.sampled_from(("cancel", "cancel", "stop", "abort")), ids)
    outside = draw(st.lists(moves, max_size=3))
    order = tuple(draw(st.permutations(steps)))
    return World(
        Plan("goal", order),
        scripts,
        draw(st.integers(1, 4)),
        draw(st.integers(0, 1)),
        tuple(outside),
        draw(st.booleans()),
    )


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class Watch:
    """Does the steps' work and looks at the rules while it is done."""

    world: World
    holding: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    """Rules seen broken while steps ran: a step contains its exceptions, so they are noted here."""
    executor: Any = None

    def model_of(self, step: PlanStep) -> str | None:
        return None

    async def append(self, events: Any) -> None:
        await turns(2)
        told = (event for event in events if event.channel == "step_progress")
        self.log.append("recorded " + " ".join(f"{event.step_id}:{event.payload['status']}" for event in told))

    def observe(self, event: Event) -> None:
        if event.channel != "step_progress":  # that a step may go on and waits for a slot
            return
        self.events.append(event)
        if event.payload["status"] in ENDED:
            self.ended.add(event.step_id or "")

    async def run_step(self, brief: Any, emit: Any, meter: Any) -> StepOutcome:
        step, script = brief.step, self.world.scripts[brief.step.id]
        if not set(step.dependencies) <= self.ended:
            self.broken.append(f"{step.id} started before a dependency ended")
        self.log.append(f"start {step.id}")
        try:
            self.hold(step.id)
            for number, count in enumerate(script.turns):
                if number:
                    await self.wait(step.id, script.wait)
                await turns(count)
            if script.end == "hangs":
                await asyncio.Event().wait()
        finally:
            try:
                await asyncio.sleep(0)  # cleaning up takes its time
            finally:
                self.holding.discard(step.id)
        if script.end == "raises":
            raise DagwrightError("it broke")
        if script.end in ("completed", "blank"):
            return StepOutcome("found" if script.end == "completed" else " ")
        return StepOutcome("half", script.end, script.end)

    async def wait(self, step: str, count: int) -> None:
        async with self.executor.parked():
            self.holding.discard(step)
            await turns(count)
        self.hold(step)

    def hold(self, step: str) -> None:
        self.holding.add(step)
        if len(self.holding) > self.world.max_concurrency:
            self.broken.append(f"{self.holding} hold slots at once")

    async def run(self) -> PlanResult | None:
        self.executor = DAGExecutor(
            ScriptedLLM([]),
            runner=self,
            max_concurrency=self.world.max_concurrency,
            step_timeout=0.05 if any(script.end == "hangs" for script in self.world.scripts.values()) else 60.0,
            options=RunOptions(step_retries=self.world.retries),
            on_event=self.observe,
            recorder=self if self.world.recorded else None,
        )
        task = asyncio.create_task(self.executor.execute(self.world.plan))
        for when, what, step in sorted(self.world.outside):
            await turns(when)
            if what == "abort":
                task.cancel()
            elif what == "stop":
                self.executor.stop()
            elif not task.done():
                self.executor.cancel_step(step)
        try:
            async with asyncio.timeout(10):
                return await task
        except asyncio.CancelledError:
            assert any(what == "abort" for _, what, _ in self.world.outside)
            return None


def watched(world: World) -> tuple[Watch, PlanResult | None]:
    watch = Watch(world)

    async def main() -> PlanResult | None:
        result = await watch.run()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"
        return result

    return watch, asyncio.run(main())


@settings(deadline=None, max_examples=120)
@given(worlds())
def test_every_run_ends_keeps_the_rules_and_leaves_nothing_behind(world: World) -> None:
    watch, result = watched(world)
    assert watch.broken == []
    assert not watch.holding
    last = {event.step_id: event.payload["status"] for event in watch.events}
    if result is None:
        assert set(last.values()) <= ENDED
        return
    assert set(result.steps) == set(world.scripts)
    assert last == {name: step.status for name, step in result.steps.items()}
    for name, step in result.steps.items():
        script, kind = world.scripts[name], step.status
        assert kind in ENDED
        assert (kind == "completed") <= (script.end == "completed" and step.output == "found")
        assert (kind == "failed") <= (script.end != "completed" or step.error_code == "timeout")
        assert (kind != "completed") == (step.error is not None)
        assert (kind == "skipped") <= (f"start {name}" not in watch.log)
    found = {step.status for step in result.steps.values()}
    assert (result.status == "completed") == (found == {"completed"})
    if "failed" in found:
        assert result.status in ("failed", "partial", "budget_exceeded")


@settings(deadline=None, max_examples=60)
@given(worlds().filter(lambda world: all(script.end != "hangs" for script in world.scripts.values())))
def test_the_same_input_gives_the_same_schedule(world: World) -> None:
    (one, first), (other, second) = watched(world), watched(world)
    assert one.log == other.log
    assert [(e.step_id, e.payload["status"]) for e in one.events] == [
        (e.step_id, e.payload["status"]) for e in other.events
    ]
    if first is not None and second is not None:
        assert first.status == second.status


@pytest.mark.parametrize("count", [300, 3_000])
async def test_the_cost_of_a_step_does_not_grow_with_the_plan(count: int) -> None:
    """A generous bound: five times what a step may cost."""

    class Nothing:
        def model_of(self, step: PlanStep) -> str | None:
            return None

        async def run_step(self, brief: Any, emit: Any, meter: Any) -> StepOutcome:
            return StepOutcome("done")

    import time

    chain = Plan("goal", tuple(PlanStep(f"s{n}", "w", (f"s{n - 1}",) if n else ()) for n in range(count)))
    start = time.process_time()
    result = await DAGExecutor(ScriptedLLM([]), runner=Nothing()).execute(chain)
    assert result.status == "completed"
    assert (time.process_time() - start) / count < 500e-6
