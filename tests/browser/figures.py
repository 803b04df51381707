"""How long the page takes, and what it holds, as the browser itself counts."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.async_api import Page

OBSERVE = """
window.__tasks = [];
new PerformanceObserver((list) => window.__tasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: 'longtask', buffered: true });
"""
WHOLE = """(steps) => document.querySelectorAll('.dag .step[data-status="completed"]').length === steps
    && document.querySelector('.jobhead[data-status="completed"]') && document.querySelector('#answer').children.length
    && document.querySelector('section.answer').getAttribute('aria-busy') === 'false' && performance.now()"""
"""Milliseconds since the navigation began, once a job is shown whole."""


@dataclass(frozen=True)
class Held:
    """Bytes of JavaScript's heap and nodes of documents after a collection, those no longer shown among them."""

    heap: int
    nodes: int


async def opened(page: Page, url: str, job_id: str, steps: int) -> tuple[float, float]:
    """Opens a job's page: milliseconds until all of it is there, and its longest task."""
    await page.add_init_script(OBSERVE)
    await page.goto(f"{url}/#/jobs/{job_id}")
    shown = await page.wait_for_function(WHOLE, arg=steps, polling="raf", timeout=120_000)
    milliseconds = await shown.json_value()
    return float(milliseconds), max([0.0, *await page.evaluate("window.__tasks")])


async def worked(page: Page, url: str, job_id: str, steps: int) -> tuple[float, float, float]:
    """The same, and the milliseconds of processor time that the page's main thread took for it: what a machine that is
    busy with other things does not change."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    milliseconds, longest = await opened(page, url, job_id, steps)
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    await session.detach()
    return milliseconds, longest, 1_000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")


async def held(page: Page) -> Held:
    """What the page holds at this moment."""
    session = await page.context.new_cdp_session(page)
    for _ in range(3):
        await session.send("HeapProfiler.collectGarbage")
    heap = await session.send("Runtime.getHeapUsage")
    counters = await session.send("Memory.getDOMCounters")
    await session.detach()
    return Held(int(heap["usedSize"]), int(counters["nodes"]))
