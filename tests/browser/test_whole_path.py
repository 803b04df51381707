"""From a goal to its answer, as one sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from executor.store.keys import KeyStore, Limits
from tests.fakes import ProviderFake, View, brain
from tests.fakes.brain import SYNTHESIS
from tests.support.processes import running, worker_env

from .chromium import Watched
from .works import Gate, at_work, open_page

pytestmark = pytest.mark.heavy


async def test_a_diamond_runs_to_its_end_before_one_s_eyes(
    database_url: str, provider_fake: ProviderFake, watched: Watched
) -> None:
    gate = Gate()
    provider_fake.script = gate.held(brain)
    page = watched.page
    async with at_work(database_url, provider_fake, watched) as service:
        await open_page(page, service.url)
        await page.get_by_label("Goal", exact=True).fill("Work out six times seven.")
        await page.get_by_label("How").select_option("dag")
        await page.get_by_role("button", name="Start").click()
        await expect(page).to_have_url(re.compile(r"#/jobs/job_"))
        steps = page.locator(".dag .step")
        await expect(steps).to_have_count(4)
        places = await steps.evaluate_all("nodes => nodes.map(node => node.getAttribute('transform'))")
        await expect(page.locator('.dag .step[data-id="s1"]')).to_have_attribute("data-status", "running")
        await expect(page.locator(".jobhead .status")).to_have_text("running")
        gate.open()
        for name in ("s1", "s2", "s3", "s4"):
            await expect(page.locator(f'.dag .step[data-id="{name}"]')).to_have_attribute("data-status", "completed")
        assert await steps.evaluate_all("nodes => nodes.map(node => node.getAttribute('transform'))") == places
        await expect(page.locator("#answer")).to_have_text(SYNTHESIS)
        await expect(page.locator(".jobhead .status")).to_have_text("completed")

        foot = page.locator(".figures")
        await expect(foot).to_contain_text(re.compile(r"iterations\s*8"))
        await expect(foot).to_contain_text(re.compile(r"tokens\s*[\d.,]+k? in, [\d,]+ out"))
        await expect(foot).to_contain_text(re.compile(r"cost"))
        await expect(foot).to_contain_text(re.compile(r"time\s*[\d.]+ s"))

        await page.locator('.dag .step[data-id="s2"]').click()
        panel = page.locator(".panel")
        await expect(panel.get_by_role("heading", name="s2")).to_be_focused()
        card = panel.locator(".card-call")
        await expect(card).to_have_count(1)
        await expect(card.locator(".part")).to_have_count(0)
        await card.locator("summary").click()
        await expect(card.locator(".part", has_text="Arguments")).to_contain_text('"expression": "6*7"')
        await expect(card.locator(".part", has_text="Result")).to_contain_text("42")
        await card.locator("summary").click()
        await expect(card).not_to_have_attribute("open", "")
        await page.keyboard.press("Escape")
        await expect(panel).to_be_hidden()
        await expect(page.locator('.dag .step[data-id="s2"]')).to_be_focused()


async def test_where_keys_exist_one_signs_in(database_url: str, provider_fake: ProviderFake, watched: Watched) -> None:
    page = watched.page
    watched.expected.append("401 (Unauthorized)")
    async with at_work(database_url, provider_fake, watched) as service:
        _, secret = await KeyStore(service.database).create("anna", Limits())
        await open_page(page, service.url)
        await page.get_by_label("API key").fill("dw_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_have_text("This key is not valid.")
        await page.get_by_label("API key").fill(secret)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_label("Goal", exact=True)).to_be_visible()
        await expect(page.locator(".bar")).to_contain_text("anna")
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_label("Goal", exact=True).fill("Work out six times seven.")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#answer")).to_have_text(SYNTHESIS)
        await page.reload()
        await expect(page.locator("#answer")).to_have_text(SYNTHESIS)
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("API key")).to_be_visible()
        await expect(page.locator("#answer")).to_have_count(0)
        await page.reload()
        await expect(page.get_by_label("API key")).to_be_visible()


async def test_the_answer_streams(database_url: str, provider_fake: ProviderFake, watched: Watched) -> None:
    text = "".join(f"Line {number} of **the answer**.\n\n" for number in range(60))

    def slow(view: View) -> object:
        return {"text": text, "pace": 0.02} if view.stream and not view.tools else brain(view)

    provider_fake.script = slow
    page = watched.page
    async with at_work(database_url, provider_fake, watched) as service:
        await open_page(page, service.url)
        await page.get_by_label("Goal", exact=True).fill("Work out six times seven.")
        await page.keyboard.press("Control+Enter")
        answer = page.locator("#answer")
        await expect(answer).to_contain_text("Line 3 of the answer")
        await expect(page.locator("section.answer")).to_have_attribute("aria-busy", "true")
        assert "Line 59" not in await answer.inner_text()
        await expect(answer).to_contain_text("Line 59 of the answer")
        await expect(page.locator("section.answer")).to_have_attribute("aria-busy", "false")
        await expect(answer.locator("p")).to_have_count(60)
        await expect(answer.locator("strong")).to_have_count(60)


async def test_the_command_serves_it(
    database_url: str, provider_fake: ProviderFake, watched: Watched, tmp_path: Path
) -> None:
    """Server, worker and the pieces between them as processes of their own."""
    page = watched.page
    async with running("serve", "--port", "0", home=tmp_path, env=worker_env(database_url, provider_fake)) as run:
        await run.until(lambda: "\n" in run.out)
        await open_page(page, run.out.split()[-1])
        await page.get_by_label("Goal", exact=True).fill("Work out six times seven.")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator('.dag .step[data-status="completed"]')).to_have_count(4, timeout=60_000)
        await expect(page.locator("#answer")).to_have_text(SYNTHESIS)
        await expect(page.locator(".jobhead .status")).to_have_text("completed")
        await watched.leave()
