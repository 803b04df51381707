"""Experiments on the page: their plot, their tables, while they run, by keys alone, whatever their names are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from executor.store.experiments import ExperimentStore

from . import hostile
from .chromium import Watched
from .test_hostile import clean
from .trials import CELLS, arm, end_cells, experiment, interval, report
from .works import open_page, serving

pytestmark = pytest.mark.heavy


async def places(page: Page) -> dict[str, tuple[float, float]]:
    """Where the points stand: their names, and the middles of their shapes."""
    found = await page.locator(".plot .point").evaluate_all(
        """(points) => points.map((point) => {
            const box = point.querySelector('.spot').getBoundingClientRect();
            return [point.dataset.name, box.x + box.width / 2, box.y + box.height / 2];
        })"""
    )
    return {name: (x, y) for name, x, y in found}


async def test_the_plot_shows_what_the_report_says(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        told = report()
        made = await experiment(service, told)
        await open_page(page, service.url, f"#/experiments/{made}")
        await expect(page.locator(".plot .point")).to_have_count(8)
        where = await places(page)
        arms = {one["name"]: one for one in told["arms"]}
        scale = _scale(where, arms)
        for name, (x, y) in where.items():
            if name in arms:
                assert x == pytest.approx(scale[0](arms[name]["cost"]["mean"]), abs=1.5)
                assert y == pytest.approx(scale[1](arms[name]["quality"]["mean"]), abs=1.5)
        assert {name for name in where if name not in arms} == {"random of small, large", "oracle of small, large"}
        whiskers = await page.locator('.plot .point[data-name="large"] .whiskers').evaluate(
            "node => ({ width: node.getBBox().width, height: node.getBBox().height })"
        )
        assert whiskers["width"] == pytest.approx(
            scale[0](arms["large"]["cost"]["high"]) - scale[0](arms["large"]["cost"]["low"]), abs=2
        )
        assert whiskers["height"] == pytest.approx(scale[1](0.772) - scale[1](0.832), abs=2)
        pareto = await page.locator(".plot .point[data-pareto]").evaluate_all("nodes => nodes.map(n => n.dataset.name)")
        assert pareto == [one["name"] for one in told["arms"] if one["pareto"]]
        # the axes say where they begin
        await expect(page.locator(".plot")).to_have_attribute("aria-label", re.compile("quality from 50 % to 100 %"))
        await expect(page.locator(".plot .axes")).to_contain_text("quality (begins at 50 %)")
        await expect(page.locator(".plot .axes")).to_contain_text("USD per 1,000 tasks")
        # and the tables the same figures
        row = page.locator("tr", has=page.locator("th", has_text="cascade[threshold=0.7]")).first
        for text in ("78.1 %", "75.1 to 81.1", "$0.00192", "$0.00168 to $0.00216", "Pareto front", "214"):
            await expect(row).to_contain_text(text)
        await expect(page.locator("section", has_text="Differences").last).to_contain_text("−2.1")
        await expect(page.locator("section", has_text="Routers").last).to_contain_text("27 %")
        await expect(page.locator(".conclusion")).to_contain_text(told["conclusion"][:60])


def _scale(where: dict[str, tuple[float, float]], arms: dict[str, Any]) -> tuple[Any, Any]:
    """The scales that two of the points say, for all others to be held to."""
    (x0, y0), (x1, y1) = where["small"], where["large"]
    low, high = arms["small"], arms["large"]

    def along(key: str, first: float, last: float) -> Any:
        begin, end = low[key]["mean"], high[key]["mean"]
        return lambda value: first + (value - begin) / (end - begin) * (last - first)

    return along("cost", x0, x1), along("quality", y0, y1)


@pytest.mark.parametrize(("qualities", "begins"), [((0.04, 0.93), None), ((0.72, 0.78), "60 %"), ((0.0, 0.0), None)])
async def test_an_axis_begins_at_zero_or_says_so(
    database_url: str, watched: Watched, qualities: tuple[float, float], begins: str | None
) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        arms = [arm(f"arm {at}", quality, 0.5 * (at + 1)) for at, quality in enumerate(qualities)]
        made = await experiment(service, report(arms=arms, baselines=[], differences=[], kinds=[], routers=[]))
        await open_page(page, service.url, f"#/experiments/{made}")
        await expect(page.locator(".plot .point")).to_have_count(2)
        axes = page.locator(".plot .axes")
        await expect(axes).to_contain_text("USD per task")
        await expect(axes).to_contain_text("quality" if begins is None else f"quality (begins at {begins})")
        assert await page.locator(".plot .break").count() == (0 if begins is None else 1)
        labels = await axes.locator("text").all_text_contents()
        assert "0.0" in labels or "0" in labels  # of the money, always


async def test_what_is_not_known_is_not_drawn(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        arms = [arm("known", 0.5, 0.5), arm("unpriced", 0.9, None), arm("ungraded", None, 0.5, latency=None)]
        made = await experiment(service, report(arms=arms, baselines=[], differences=[], conclusion="", kinds=[]))
        await open_page(page, service.url, f"#/experiments/{made}")
        await expect(page.locator(".plot .point")).to_have_count(1)
        await expect(page.locator(".plotbox")).to_contain_text("unpriced (cost unknown), ungraded (not graded)")
        await expect(page.locator("tr", has_text="unpriced").first).to_contain_text("unknown")


async def test_by_keys_alone(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        made = await experiment(service, None)
        await open_page(page, service.url, "#/experiments")
        await expect(page.locator(".list.experiments li")).to_have_count(1)
        await page.locator("#main").focus()
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.locator(".plot .point")).to_have_count(8)
        assert made in page.url
        await expect(page.locator('.plot .point[tabindex="0"]')).to_have_count(1)
        for _ in range(12):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.matches('.plot .point')"):
                break
        here = page.locator(".plot .point:focus")
        seen = []
        for _ in range(8):
            seen.append(await here.get_attribute("data-name"))
            await page.keyboard.press("ArrowRight")
        assert seen[0] == "small"
        assert seen[-1] == "large"
        assert len(set(seen)) == 8
        await expect(here).to_have_attribute(
            "aria-label", re.compile(r"^large, quality 80\.2 % \(77\.2 to 83\.2\), cost")
        )
        await expect(page.locator(".told")).to_contain_text("large, quality 80.2 %")
        await expect(page.locator("tr[data-marked]")).to_contain_text("large")
        await page.keyboard.press("Home")
        await expect(here).to_have_attribute("data-name", "small")
        await page.keyboard.press("Shift+Tab")
        await page.keyboard.press("Tab")
        await expect(here).to_have_attribute("data-name", "small")


async def test_it_is_followed_while_it_runs(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected += ["409 (Conflict)", "500 (Internal Server Error)"]  # nothing stands in it to make a report of
    async with serving(database_url, watched) as service:
        made = await experiment(service, None, ended=0)
        await open_page(page, service.url, f"#/experiments/{made}")
        await expect(page.locator(".jobhead .status")).to_have_text("in progress")
        await expect(page.locator(".jobhead .facts")).to_contain_text(f"0 of {CELLS} cells")
        await expect(page.locator("main")).to_contain_text("The report begins with the first cell that ends.")
        summary = page.get_by_text("Cells and their jobs")
        await summary.click()
        rows = page.locator(".experiment details tbody tr")
        await expect(rows).to_have_count(CELLS)
        await rows.first.evaluate("node => { node.dataset.kept = 'yes'; }")
        await end_cells(service, made, 5)
        await expect(page.locator(".jobhead .facts")).to_contain_text(f"5 of {CELLS} cells")
        await expect(rows.first).to_contain_text("completed")
        await expect(rows.first).to_contain_text("$0.0123")
        await expect(rows.first).to_have_attribute("data-kept", "yes")
        await rows.first.get_by_role("link").click()
        await expect(page.locator(".jobhead h1")).to_have_text("Question 0")
        await page.get_by_role("link", name="experiment", exact=True).click()
        await expect(page.locator(".jobhead h1")).to_have_text("steps")
        await end_cells(service, made, CELLS)
        await ExperimentStore(service.database).keep_report(made, json.dumps(report()).encode(), None)
        await expect(page.locator(".jobhead .status")).to_have_text("ended")
        await expect(page.locator(".plot .point")).to_have_count(8)
        await expect(page.locator(".conclusion h2")).to_have_text("Conclusion")
        await page.evaluate("document.querySelector('.main').scrollTop = 500")
        await page.locator(".plot .point").last.focus()
        await page.set_viewport_size({"width": 900, "height": 700})  # drawn anew: the point keeps the focus
        await page.wait_for_timeout(300)
        await expect(page.locator(".plot .point:focus")).to_have_attribute("data-name", "large")


async def test_cancel(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected.append("409 (Conflict)")
    async with serving(database_url, watched) as service:
        made = await experiment(service, None, ended=0)
        await open_page(page, service.url, f"#/experiments/{made}")
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.locator(".jobhead .status")).to_have_text("cancelled")
        await expect(page.locator(".jobhead")).to_contain_text(f"{CELLS} cancelled")
        await expect(page.get_by_role("button", name="Cancel")).to_be_hidden()


async def test_a_new_one_out_of_json(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected += ["422 (Unprocessable", "409 (Conflict)"]
    async with serving(database_url, watched) as service:
        await open_page(page, service.url, "#/experiments")
        await page.get_by_text("New experiment").click()
        field = page.locator("#experiment")
        example = json.loads(await field.get_attribute("placeholder") or "")
        await field.fill("{")
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_role("alert")).to_contain_text("This is no JSON")
        await field.fill(json.dumps({**example, "grader": {"use": "judge"}}))
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_role("alert")).to_contain_text("a judge calls models")
        await field.fill(json.dumps(example))
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator(".jobhead h1")).to_have_text("capitals")
        await expect(page.locator(".jobhead .facts")).to_contain_text("0 of 2 cells")


async def test_names_of_strangers_stay_texts(database_url: str, watched: Watched) -> None:
    page, text = watched.page, hostile.EVERYTHING
    names = [hostile.TAGS[0], hostile.TAGS[1], hostile.BIDI, "javascript:canary('arm')", "constructor", "__proto__"]
    arms = [arm(name, 0.4 + at / 10, 0.1 * (at + 1), routing=text, mode=hostile.TAGS[2], pareto=True)
            for at, name in enumerate(names)]  # fmt: skip
    odd = {"statuses": {hostile.TAGS[3]: 4}, "tokens": {hostile.TAGS[1]: {"input": 1, "output": 2}}}
    told = report(
        arms=[one | odd for one in arms],
        baselines=[{"name": hostile.TAGS[1], "of": names, "quality": interval(0.5), "cost": {"mean": 0.2}}],
        kinds=[{"kind": name, "arms": {names[0]: {"n": 3, "quality": interval(0.5), "cost": 0.1}}} for name in names],
        differences=[], routers=[], conclusion=text, notes=[text] * 3,
    )  # fmt: skip
    async with serving(database_url, watched) as service:
        made = await experiment(service, told, name=hostile.TAGS[1], metadata={hostile.TAGS[1][:60]: hostile.TAGS[2]})
        await open_page(page, service.url, "#/experiments")
        await expect(page.locator(".list.experiments li")).to_contain_text("<img src=x")
        await clean(page, ".list.experiments")
        await page.locator(".list.experiments a").click()
        await expect(page.locator(".plot .point")).to_have_count(7)
        await page.get_by_text("Cells and their jobs").click()
        await expect(page.locator(".experiment details tbody tr")).to_have_count(CELLS)
        for point in await page.locator(".plot .point").all():
            await point.focus()
        assert made in page.url
        await clean(page, ".jobhead h1", ".jobhead .facts", ".conclusion", ".report section:not(:has(.plot))", ".told",
                    ".experiment details", ".plot .labels")  # fmt: skip
        assert "\u202e" not in await page.locator("body").inner_text()
        assert "⟨U+202E⟩" in await page.locator("body").inner_text()


async def test_many_arms_and_kinds(database_url: str, watched: Watched) -> None:
    page = watched.page
    arms = [
        arm(f"arm[threshold={at / 100}]", 0.5 + at / 400, 0.001 * (at + 1), pareto=at % 3 == 0) for at in range(100)
    ]
    part = {"n": 5, "quality": interval(0.5), "cost": None}
    kinds = [{"kind": f"kind {at}", "arms": {one["name"]: part for one in arms}} for at in range(1_000)]
    async with serving(database_url, watched) as service:
        made = await experiment(service, report(arms=arms, kinds=kinds, baselines=[], differences=[]))
        await open_page(page, service.url, f"#/experiments/{made}")
        await expect(page.locator(".plot .point")).to_have_count(100)
        await expect(page.locator("main")).to_contain_text("800 more stand in the files.")
        boxes = await page.locator(".plot .labels text").evaluate_all(
            "nodes => nodes.map((node) => node.getBBox()).map(b => [b.x, b.y, b.x + b.width, b.y + b.height])"
        )
        assert boxes
        for at, (left, top, right, bottom) in enumerate(boxes):  # no name stands on another
            for other in boxes[at + 1 :]:
                apart = right - 1 <= other[0] or other[2] - 1 <= left or bottom - 2 <= other[1] or other[3] - 2 <= top
                assert apart, (boxes[at], other)
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
