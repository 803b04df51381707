"""The page in Chromium: how fast a large job opens, and what the page holds after ten times as many events.

    python -m benchmarks.page

A job of 64 steps and 2,000 events is opened five times, each in a fresh browser context; the middle one counts: under
1,000 ms until all of it is shown, no task over 100 ms. Then heap and nodes after 50,000 replayed events against those
after 5,000: 1.2 times at most. Browser, service and database share the machine; on one that is busy with other things
everything waits, so its load stands beside, and the page's own work. Ends with status 1 where a limit is missed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from statistics import median

from tests.browser import chromium, figures
from tests.browser.tales import large, tale
from tests.support import postgres
from tests.support.service import running

STEPS, EVENTS = 64, 2_000
REPLAYED = (5_000, 50_000)
TIMES = 5
OPENS, TASK, GROWS = 1_000, 100, 1.2


async def ran(dsn: str) -> list[str]:
    """The figures in words, what is over a limit marked."""
    async with running(dsn) as service, chromium.browser() as browser:
        job = await tale(service, large(STEPS, EVENTS), goal="A large job")
        found = []
        for _ in range(TIMES):
            async with await browser.new_context() as context:
                found.append(await figures.worked(await context.new_page(), service.url, job.id, STEPS))
        milliseconds, longest, worked = (median(values) for values in zip(*found, strict=True))
        holds = []
        for events in REPLAYED:
            job = await tale(service, large(STEPS, events), goal="A large job")
            async with await browser.new_context() as context:
                page = await context.new_page()
                await figures.opened(page, service.url, job.id, STEPS)
                holds.append(await figures.held(page))
    before, after = holds
    heap, nodes = after.heap / before.heap, after.nodes / before.nodes
    return [
        f"{STEPS} steps, {EVENTS:,} events: open in {milliseconds:.0f} ms (less than {OPENS:,})"
        + ("  OVER" if milliseconds >= OPENS else ""),
        f"of which {worked:.0f} ms are work of the page's main thread",
        f"longest task {longest:.0f} ms (0: none over 50; at most {TASK})" + ("  OVER" if longest > TASK else ""),
        f"heap {before.heap / 1e6:.2f} MB after {REPLAYED[0]:,} events, {after.heap / 1e6:.2f} MB after "
        f"{REPLAYED[1]:,}: {heap:.2f} times (at most {GROWS})" + ("  OVER" if heap > GROWS else ""),
        f"nodes {before.nodes:,} and {after.nodes:,}: {nodes:.2f} times (at most {GROWS})"
        + ("  OVER" if nodes > GROWS else ""),
    ]


async def measured(server: str) -> list[str]:
    """The figures on a fresh database."""
    return await ran(await postgres.fresh(server, await postgres.template(server)))


def main() -> int:
    before = os.getloadavg()[0]
    with postgres.server() as server:
        lines = asyncio.run(measured(server))
    print("\n".join(lines))
    print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} processors")
    missed = any("OVER" in line for line in lines)
    print("MISSED" if missed else "PASS")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
