"""The main states, light and dark, wide and narrow: nothing that keeps people out, nothing that overlaps or is cut off.

With the variable SCREENSHOTS they are written to that folder (`make screenshots`).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from executor.store.keys import KeyStore, Limits
from tests.support.service import Service

from . import chromium
from .tales import Told, answer, begun, billed, diamond, ended, phase, plan, tale, turn
from .trials import experiment
from .works import open_page, serving

pytestmark = pytest.mark.heavy

State = Callable[[Page, Service], Awaitable[None]]
WIDE = {"width": 1240, "height": 780}
NARROW = {"width": 360, "height": 720}
SERIOUS = ("serious", "critical")
STEPS = (
    ("search_papers", ()),
    ("search_repos", ()),
    ("read_papers", ("search_papers",)),
    ("run_benchmarks", ("search_repos",)),
    ("compare", ("read_papers", "run_benchmarks")),
    ("check_claims", ("compare", "read_papers")),
)
TASKS = {
    "search_papers": "Find papers of the last five years on queues in PostgreSQL.",
    "search_repos": "List maintained libraries that use LISTEN and SKIP LOCKED.",
    "read_papers": "Read the five most cited and note each throughput that they claim.",
    "run_benchmarks": "Run each library's own benchmark on two cores.",
    "compare": "Put claims and measurements side by side.",
    "check_claims": "Check each claim of the comparison against its source.",
}
GOAL = "Which queue library for PostgreSQL keeps up with 1,000 jobs per second on two cores, and who says so?"
ANSWER = """## Two of four keep up

On two cores **pgqueuer** and **graphile-worker** pass 1,000 jobs per second; the others stop at about 600.

| library | claimed | measured | p95 latency |
|---|---:|---:|---:|
| pgqueuer | 18,000/s | 1,430/s | 12 ms |
| graphile-worker | 10,000/s | 1,110/s | 21 ms |
| procrastinate | — | 640/s | 35 ms |

1. Claims were made on 16 cores, see [the paper](https://example.org/queues.pdf).
2. `SKIP LOCKED` costs less than advisory locks above 50 workers.

```sql
select id from jobs where status = 'queued' for update skip locked limit 10;
```
"""


FOUND = "1. Queues in PostgreSQL (2024)\n2. SKIP LOCKED considered (2023)"
QUERY = {"query": "postgres queue skip locked throughput"}
THOUGHT = "Each library has its own benchmark; I start with pgqueuer."


def research() -> list[Told]:
    """A job in the middle of its work."""
    channel, planned, _ = plan(STEPS)
    for step in planned["steps"]:
        step["task"] = TASKS[step["id"]]
    told: list[Told] = [phase("planning"), billed(None, "large", (2_310, 640), "0.0071", "planner")]
    told += [(channel, planned, None), phase("executing")]
    for name, seconds in (("search_papers", 7.4), ("search_repos", 4.1)):
        told += [begun(name), *turn(name, 1, tool="web_search", args=QUERY, result=FOUND)]
        told += [billed(name, "small", (1_200, 80), "0.0004"), ended(name, result="Five were found.", duration=seconds)]
    told += [begun("run_benchmarks", "large")]
    bench = "bench('{}', seconds=30)".format
    told += turn("run_benchmarks", 1, tool="run_python", args={"code": bench("pgqueuer")},
                 result="1430 jobs/s, p95 12 ms", reasoning=THOUGHT)  # fmt: skip
    told += [billed("run_benchmarks", "large", (38_410, 2_904), "0.0382")]
    told += [("compact", {"original_messages": 42, "kept_messages": 11}, "run_benchmarks")]
    return told + turn("run_benchmarks", 2, tool="run_python", args={"code": bench("procrastinate")})[:3]


def finished() -> list[Told]:
    """The same job, all but its end."""
    told = research()
    told += [ended("run_benchmarks", model="large", result="All four were measured.", duration=92.0, cost="0.0382")]
    for name in ("read_papers", "compare", "check_claims"):
        told += [begun(name), *turn(name, 1, tool="fetch_page", args={"url": "https://example.org/queues.pdf"})]
        told += [billed(name, "small", (4_180, 310), "0.0021"), ended(name, cost="0.0021")]
    told += [phase("analyzing"), phase("synthesizing"), billed(None, "large", (6_090, 540), "0.0095", "synthesis")]
    return told + answer(ANSWER)


async def signing_in(page: Page, service: Service) -> None:
    await KeyStore(service.database).create("anna", Limits())
    while not (await service.app.state.keyring.asker(None)).configured:
        await page.wait_for_timeout(20)
    await open_page(page, service.url)
    await expect(page.get_by_label("API key")).to_be_focused()


async def new_job(page: Page, service: Service) -> None:
    for status in ("completed", "failed", "cancelled", "partial", "budget_exceeded"):
        await tale(service, diamond(), goal=f"A job that ended as {status.replace('_', ' ')}", status=status)
    await open_page(page, service.url)
    await page.get_by_label("Goal", exact=True).fill(GOAL)
    await page.get_by_text("More", exact=True).click()
    await expect(page.get_by_label("A plan that is run")).to_be_visible()


async def at_work(page: Page, service: Service) -> None:
    await tale(service, diamond(), goal="Summarise last week's incidents, one line each")
    job = await tale(service, research(), goal=GOAL, status=None, metadata={"team": "platform"})
    await open_page(page, service.url, f"#/jobs/{job.id}/steps/run_benchmarks")
    await expect(page.locator('.dag .step[data-id="run_benchmarks"]')).to_have_attribute("data-status", "running")
    await page.locator(".panel .card-call summary").first.click()
    await expect(page.locator(".panel .part").first).to_be_visible()


async def done(page: Page, service: Service) -> None:
    await tale(service, diamond(), goal="Summarise last week's incidents, one line each", status="partial")
    job = await tale(service, finished(), goal=GOAL)
    await open_page(page, service.url, f"#/jobs/{job.id}")
    await expect(page.locator("#answer pre")).to_be_visible()
    await expect(page.locator(".dag .step")).to_have_count(6)


async def waiting(page: Page, service: Service) -> None:
    asked = {
        "call_id": "k", "tool_name": "send_mail", "tool_args": {"to": "board@example.org", "subject": "Results"},
        "status": "waiting", "reason": "this tool is only called with a human's approval", "deadline": 86_000,
    }  # fmt: skip
    waits = ("step_progress", {**begun("b")[1], "status": "waiting"}, "b")
    told = [
        phase("planning"),
        plan(),
        phase("executing"),
        begun("a"),
        ended("a"),
        begun("b"),
        ("approval", asked, "b"),
        waits,
    ]
    job = await tale(service, told, goal="Send the results to the board", status=None)
    await job.tell([], "needs_decision")
    await open_page(page, service.url, f"#/jobs/{job.id}")
    await expect(page.get_by_role("button", name="Approve")).to_be_visible()
    await expect(page.locator(".dag .step")).to_have_count(4)


async def failed(page: Page, service: Service) -> None:
    told = [phase("planning"), plan(), phase("executing"), begun("a"), *turn("a", 1)[:3]]
    refused = {"observation": "connection refused", "error": "connection refused", "iter_elapsed": 0.1}
    call = {"type": "iteration", "iteration": 1, "status": "done", "tool_name": "look_up", **refused}
    told += [("step", call, "a")]
    told += [ended("a", "failed", None, error="tool: connection refused", error_code="tool")]
    skipped = {
        "error": "Skipped — a failed", "root_cause": "a", "attempts": 0, "started_at": None, "usage": None,
        "cost": None, "model": None, "tool_calls": 0, "iterations": 0,
    }  # fmt: skip
    told += [ended(name, "skipped", None, **skipped) for name in ("b", "c", "d")]
    job = await tale(service, [*told, *answer("The goal was not reached.")], status=None)
    await job.end("failed", "a: connection refused")
    await open_page(page, service.url, f"#/jobs/{job.id}/steps/a")
    await expect(page.locator(".panel .trouble")).to_be_visible()


async def experiments(page: Page, service: Service) -> None:
    await experiment(service, None, name="by-length", ended=3)
    await experiment(service, None)
    await open_page(page, service.url, "#/experiments")
    await expect(page.locator(".list.experiments li")).to_have_count(2)
    await page.get_by_text("New experiment").click()


async def an_experiment(page: Page, service: Service) -> None:
    for goal in ("Compare three queue libraries", "Summarise last week's incidents, one line each"):
        await tale(service, diamond(), goal=goal)
    made = await experiment(service, None, cells=3_000, cost="0.002187")
    await open_page(page, service.url, f"#/experiments/{made}")
    await expect(page.locator(".plot .point")).to_have_count(8)
    await expect(page.locator(".conclusion")).to_contain_text("costs 47 % less")


STATES: dict[str, State] = {
    "sign-in": signing_in, "new": new_job, "running": at_work, "done": done, "waiting": waiting, "failed": failed,
    "experiments": experiments, "experiment": an_experiment,
}  # fmt: skip

PICTURES = ("running", "done", "done-narrow", "waiting", "failed-dark", "new", "experiment")
"""Those that docs/page.md shows, and some more to look at."""
TEXTS = "button, h1, h2, h3, dd, dt, .facts, .status, label, .dag text, .plot text"
OVERFLOWING = """(texts) => [...document.querySelectorAll(texts)].filter((one) => {
    const box = one.getBoundingClientRect();
    if (!box.width || one.closest('.dagbox, .wide') && !one.closest('.step')) return false;
    if (one.closest('.step')) {
        const step = one.closest('.step').querySelector('rect').getBoundingClientRect();
        return box.left < step.left || box.right > step.right + 0.5;
    }
    return box.right > document.documentElement.clientWidth + 0.5 || box.left < -0.5;
}).map((one) => one.outerHTML.slice(0, 200))"""
"""What sticks out: of the screen, or a text of its step's box."""


@pytest.mark.parametrize("state", STATES)
async def test_it_is_open_to_everybody(browser: Browser, database_url: str, state: str) -> None:
    pictures = os.environ.get("SCREENSHOTS")
    async with await browser.new_context(viewport=WIDE, locale="en-GB", color_scheme="light") as context:
        watched = await chromium.watched(context)
        watched.expected.append("401 (Unauthorized)")
        page = watched.page
        async with serving(database_url, watched) as service:
            await STATES[state](page, service)
            for look, size, scheme in (("", WIDE, "light"), ("-dark", WIDE, "dark"), ("-narrow", NARROW, "light")):
                await page.set_viewport_size(size)  # type: ignore[arg-type]
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
                await page.wait_for_timeout(150)
                assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, look
                assert await page.evaluate(OVERFLOWING, TEXTS) == [], look
                await accessible(page, f"{state}{look}")
                if pictures and f"{state}{look}" in PICTURES:
                    await page.screenshot(path=Path(pictures) / f"{state}{look}.png", animations="disabled")
            assert await watched.all_faults() == []


async def accessible(page: Page, name: str) -> None:
    """Raises where the checker finds a serious fault."""
    results: Any = await Axe().run(page)
    faults = [
        (name, fault["id"], fault["help"], [node["html"][:200] for node in fault["nodes"][:4]])
        for fault in results.response["violations"]
        if fault["impact"] in SERIOUS
    ]
    assert faults == []
