"""A batch of 10,000 plans through the service and one worker, at a provider with 200 ms latency and 50 calls a second.

    python -m benchmarks.batches [GOALS]

The service, its worker, the provider and the database are processes of their own, which share the machine. Prints the
share of the limit that was used (at least 80 %), how the server's memory grew (less than 50 MB), how long it took to
accept the batch and to read all its results, and how a batch that is cancelled in the middle ended. A machine that is
busy with other things makes fewer plans: its load stands beside. Ends with status 1 where a limit is missed or
something was seen that must not be: counts that do not fit at any moment, a line lost.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.support import postgres
from tests.support.batch_load import LATENCY, LIMIT, Outcome, measured

GOALS = 10_000
LEAST_SHARE = 0.8
MOST_GROWTH = 50 << 20


def told(outcome: Outcome, before: float) -> list[str]:
    """The outcome in words, what is over a limit marked; and the machine's load `before` it and now."""
    slow = "  UNDER" if outcome.share < LEAST_SHARE else ""
    fat = "  OVER" if outcome.growth >= MOST_GROWTH else ""
    return [
        f"{outcome.goals:,} plans, {LIMIT} calls a second, {1_000 * LATENCY:.0f} ms each",
        f"accepted in {outcome.accepted_in:.2f} s",
        f"done in {outcome.seconds:.1f} s: {outcome.goals / outcome.seconds:.1f} a second, "
        f"{100 * outcome.share:.0f} % of the limit (at least {100 * LEAST_SHARE:.0f} %){slow}",
        f"the server grew by {outcome.growth / (1 << 20):.1f} MB (less than {MOST_GROWTH >> 20} MB){fat}",
        f"{outcome.early:,} results came while it ran; all were read in {outcome.read_in:.2f} s; {outcome.statuses}",
        f"cancelled in the middle: ended {outcome.cancelled_in:.2f} s later; {outcome.cancelled}",
        f"provider: {outcome.provider}; {outcome.looks} looks at the counts",
        f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} processors",
        *(f"WRONG: {fault}" for fault in outcome.faults),
    ]


async def ran(server: str, goals: int) -> Outcome:
    """The outcome on a fresh database."""
    return await measured(await postgres.fresh(server, await postgres.template(server)), goals)


def main() -> int:
    before = os.getloadavg()[0]
    with postgres.server() as server:
        outcome = asyncio.run(ran(server, int(sys.argv[1]) if len(sys.argv) > 1 else GOALS))
    lines = told(outcome, before)
    print("\n".join(lines))
    missed = any(word in line for line in lines for word in ("UNDER", "OVER", "WRONG"))
    print("MISSED" if missed else "PASS")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
