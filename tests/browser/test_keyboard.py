"""The page without a mouse, and for those who listen to it."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from .chromium import Watched
from .tales import begun, diamond, ended, phase, plan, tale, turn
from .works import open_page, serving

pytestmark = pytest.mark.heavy


async def test_a_job_is_read_by_keys_alone(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        job = await tale(service, diamond())
        await open_page(page, service.url, f"#/jobs/{job.id}")
        steps = page.locator(".dag .step")
        await expect(steps).to_have_count(4)
        await expect(page.locator('.dag .step[tabindex="0"]')).to_have_count(1)
        await page.locator("#main").focus()
        for _ in range(12):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.matches('.dag .step')"):
                break
        here = page.locator(".dag .step:focus")
        await expect(here).to_have_attribute("data-id", "a")
        for key, there in (
            ("ArrowRight", "b"),
            ("ArrowDown", "c"),
            ("ArrowRight", "d"),
            ("ArrowLeft", "b"),
            ("ArrowUp", "b"),
        ):
            await page.keyboard.press(key)
            await expect(here).to_have_attribute("data-id", there)
        await page.keyboard.press("Enter")
        await expect(page.locator(".panel h2")).to_be_focused()
        await expect(page.locator(".panel h2")).to_have_text("b")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        card = page.locator(".panel .card-call")
        await expect(card.locator("summary")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(card.locator(".part").first).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator(".panel")).to_be_hidden()
        await expect(here).to_have_attribute("data-id", "b")
        await page.keyboard.press("n")
        await expect(page.get_by_label("Goal", exact=True)).to_be_focused()
        await page.keyboard.press("n")
        await expect(page.get_by_label("Goal", exact=True)).to_have_value("n")
        assert page.url.endswith("#/")


async def test_what_changes_is_told(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        job = await tale(service, [phase("planning"), plan(), phase("executing"), begun("a")], status=None)
        await open_page(page, service.url, f"#/jobs/{job.id}")
        said = page.get_by_role("status").locator("visible=true").or_(page.locator("#said"))
        await expect(page.locator("#said")).to_contain_text("a running")
        await job.tell([*turn("a", 1), ended("a"), begun("b"), begun("c")])
        await expect(page.locator("#said")).to_contain_text("a completed, b running, c running")
        await expect(said.first).to_be_attached()
        await job.tell([ended("b"), ended("c"), begun("d"), ended("d")])
        await job.end()
        await expect(page.locator("#said")).to_contain_text("job completed")


async def test_the_look_is_kept(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        await page.emulate_media(color_scheme="light")
        await open_page(page, service.url)
        paper = "getComputedStyle(document.body).backgroundColor"
        light = await page.evaluate(paper)
        await page.get_by_role("button", name="Theme: auto").click()
        await page.get_by_role("button", name="Theme: light").click()
        await expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        dark = await page.evaluate(paper)
        assert dark != light
        await page.reload()
        await expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert await page.evaluate(paper) == dark


async def test_it_fits_a_narrow_screen(database_url: str, watched: Watched) -> None:
    page = watched.page
    await page.set_viewport_size({"width": 360, "height": 700})
    async with serving(database_url, watched) as service:
        job = await tale(service, diamond(), goal="A narrow job")
        await open_page(page, service.url, "#/jobs")
        await expect(page.locator(".list li")).to_have_count(1)
        await expect(page.locator("#main")).to_be_hidden()
        await page.locator(".list a").click()
        await expect(page.locator("h1")).to_have_text("A narrow job")
        await expect(page.locator("#jobs")).to_be_hidden()
        boxes = [await node.bounding_box() for node in await page.locator(".dag .step").all()]
        assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)
        await page.locator('.dag .step[data-id="c"]').click()
        await expect(page.locator(".panel h2")).to_be_focused()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        await page.get_by_role("button", name="Close").click()
        await expect(page.locator(".panel")).to_be_hidden()
        await page.get_by_role("link", name="Jobs").click()
        await expect(page.locator(".list li")).to_be_visible()
        assert job.id
