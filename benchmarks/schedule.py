"""What scheduling costs: chains and fan-outs of steps that do nothing, through the reducer and the asyncio shell.

    python -m benchmarks.schedule [repeats]

Prints the best of some repeats, as CPU time: on a busy machine the wall clock tells nothing. Limits: 0.1 ms a step,
everywhere; through the shell 1,000 steps in a chain 100 ms, a fan-out of 1,000 50 ms. Ends with status 1 over one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from executor.dag import DAGExecutor
from executor.results import StepOutcome
from executor.schedule import reduce
from executor.schedule_types import PlanStarted, Shape, StartStep, State, StepCompleted
from planner.plan import Plan, PlanStep
from registry.testing import ScriptedLLM


class Nothing:
    """A runner that is done at once, without a prompt."""

    def model_of(self, step: PlanStep) -> str | None:
        return None

    async def run_step(self, brief, emit, meter) -> StepOutcome:  # type: ignore[no-untyped-def]
        return StepOutcome("done")


class Prompted(Nothing):
    """One that makes the step's prompt first."""

    async def run_step(self, brief, emit, meter) -> StepOutcome:  # type: ignore[no-untyped-def]
        return StepOutcome(brief.query()[:10])


def chain(count: int) -> Plan:
    return Plan("goal", tuple(PlanStep(f"s{n}", "work", (f"s{n - 1}",) if n else ()) for n in range(count)))


def fan_out(count: int) -> Plan:
    leaves = tuple(PlanStep(f"s{n}", "work", ("s0",)) for n in range(1, count - 1))
    last = PlanStep("last", "work", tuple(step.id for step in leaves))
    return Plan("goal", (PlanStep("s0", "work"), *leaves, last))


async def pure(plan: Plan) -> None:
    state, commands = reduce(State.initial(Shape.of(plan.steps), 5), PlanStarted())
    queue = [command.step for command in commands if isinstance(command, StartStep)]
    for step in queue:  # grows while we go
        state, commands = reduce(state, StepCompleted(step))
        queue += [command.step for command in commands if isinstance(command, StartStep)]
    assert state.outcome == "completed"


def shell(runner: Nothing) -> Callable[[Plan], Awaitable[None]]:
    async def run(plan: Plan) -> None:
        executor = DAGExecutor(ScriptedLLM([]), runner=runner)
        assert (await executor.execute(plan)).status == "completed"

    return run


async def best(run: Callable[[Plan], Awaitable[None]], plan: Plan, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        await run(plan)
        times.append(time.process_time() - start)
    return min(times)


STEP_LIMIT = 100e-6
"""Seconds a step."""
LIMITS = {("shell", "chain 1000"): 0.100, ("shell", "fan_out 1000"): 0.050}
"""Seconds for a whole plan."""


def main() -> int:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    ways = {"reducer": pure, "shell": shell(Nothing()), "shell with prompts": shell(Prompted())}
    over = False
    print(f"{'':20}{'plan':>16}{'total ms':>12}{'us a step':>12}{'limit ms':>12}")
    for name, run in ways.items():
        for make in (chain, fan_out):
            for count in (1_000, 10_000):
                seconds = asyncio.run(best(run, make(count), repeats))
                shape = f"{make.__name__} {count}"
                limit = LIMITS.get((name, shape), count * STEP_LIMIT)
                mark = "  OVER" if seconds > limit else ""
                line = f"{name:20}{shape:>16}{1e3 * seconds:12.1f}{1e6 * seconds / count:12.1f}{1e3 * limit:12.0f}"
                print(line + mark, flush=True)
                over = over or seconds > limit
    print("OVER" if over else "PASS")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
