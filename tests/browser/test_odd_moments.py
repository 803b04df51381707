"""What comes at an odd moment, or to an odd browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import async_playwright, expect

from executor.store.keys import KeyStore, Limits

from . import chromium
from .chromium import Watched
from .tales import begun, billed, diamond, ended, phase, plan, tale
from .works import open_page, serving

pytestmark = pytest.mark.heavy


def asked(name: str, status: str = "waiting") -> Any:
    """A call of step `a` that waits for a human, or no more."""
    call = {"call_id": name, "tool_name": f"send_{name}", "tool_args": {"to": "x"}, "status": status}
    return "approval", {**call, "reason": "it sends", "deadline": 600, "decided_by": None}, "a"


async def test_it_works_over_plain_http_from_another_machine(database_url: str) -> None:
    """There a browser lets scripts use less than on localhost or over https."""
    async with async_playwright() as playwright:
        browser = await chromium.launched(playwright, "--host-resolver-rules=MAP dagwright.test 127.0.0.1")
        async with await browser.new_context() as context:
            watched = await chromium.watched(context)
            watched.expected += ["401 (Unauthorized)", "Cross-Origin-Opener-Policy header has been ignored"]
            page = watched.page
            async with serving(database_url, watched) as service:
                _, secret = await KeyStore(service.database).create("anna", Limits())
                await open_page(page, service.url.replace("127.0.0.1", "dagwright.test"))
                assert await page.evaluate("isSecureContext") is False
                await page.get_by_label("API key").fill(secret)
                await page.get_by_role("button", name="Sign in").click()
                await page.get_by_label("Goal", exact=True).fill("Work it out")
                await page.get_by_role("button", name="Start").click()
                await expect(page.locator("h1")).to_have_text("Work it out")
                assert await watched.all_faults() == []


async def test_it_works_where_nothing_may_be_stored(database_url: str, watched: Watched) -> None:
    page = watched.page
    await page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    async with serving(database_url, watched) as service:
        await open_page(page, service.url)
        await expect(page.get_by_label("Goal", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Theme: auto").click()
        await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()


async def test_a_job_that_is_left_says_nothing_any_more(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected.append("404 (Not Found)")
    async with serving(database_url, watched) as service:
        await page.add_init_script("""
            const read = Response.prototype.json;
            Response.prototype.json = async function () {
                if (this.status !== 404) return read.call(this);
                await new Promise((done) => (window.held ??= []).push(done));
                throw new TypeError('aborted');
            };
        """)
        await open_page(page, service.url, "#/jobs/job_that_never_was")
        await page.wait_for_function("() => window.held?.length === 2")
        await page.get_by_role("link", name="New job").click()
        await page.get_by_label("Goal", exact=True).fill("what I type")
        await page.evaluate("held.forEach((go) => go()), new Promise((done) => setTimeout(done, 300))")
        await expect(page.get_by_label("Goal", exact=True)).to_have_value("what I type")


async def test_what_comes_in_takes_nobody_s_place(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        first = await tale(service, [phase("planning"), plan(), begun("a"), asked("one")], status=None)
        await first.tell([], "needs_decision")
        await open_page(page, service.url, f"#/jobs/{first.id}")
        reason = page.get_by_label("Reason")
        await reason.fill("because")
        await first.tell([asked("two")], "needs_decision")
        await expect(reason).to_have_count(2)
        await expect(reason.first).to_be_focused()
        await expect(reason.first).to_have_value("because")
        await first.tell([asked("two", "approved")], "needs_decision")
        await expect(reason).to_have_count(1)
        await expect(reason).to_be_focused()
        link = page.locator(".list a")
        await link.focus()
        await tale(service, [], goal="another one", status=None)
        await expect(link).to_have_count(2)
        await expect(link.last).to_be_focused()


async def test_a_long_chain_is_drawn_for_every_screen(database_url: str, watched: Watched) -> None:
    page = watched.page
    names = [f"s{at}" for at in range(64)]
    chain = [(name, names[max(0, at - 1) : at]) for at, name in enumerate(names)]
    width = "document.querySelector('.dag .step rect').getBoundingClientRect().width"
    async with serving(database_url, watched) as service:
        job = await tale(service, [phase("planning"), plan(chain), begun("s0"), ended("s0")], status=None)
        await page.set_viewport_size({"width": 320, "height": 700})
        await open_page(page, service.url, f"#/jobs/{job.id}")
        await expect(page.locator(".dag .step")).to_have_count(64)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 320
        narrow = await page.evaluate(width)
        await page.set_viewport_size({"width": 1280, "height": 700})
        await expect(page.locator("#jobs")).to_be_visible()
        await page.wait_for_timeout(300)
        turned = await page.evaluate(width)
        await page.reload()
        await expect(page.locator(".dag .step")).to_have_count(64)
        assert await page.evaluate(width) == turned
        assert narrow <= 320


async def test_the_focus_goes_on_when_a_call_is_decided(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        told = [phase("planning"), plan(), begun("a"), asked("one"), asked("two")]
        job = await tale(service, told, status=None)
        await job.tell([], "needs_decision")
        await open_page(page, service.url, f"#/jobs/{job.id}")
        card = page.locator(".approval-card")
        await expect(card).to_have_count(2)
        await page.get_by_role("button", name="Approve").first.focus()
        await page.keyboard.press("Enter")
        await expect(card.first).to_be_focused()
        await expect(card.first).to_contain_text("approved")
        await job.tell([asked("one", "approved")], "needs_decision")
        await expect(card).to_have_count(1)
        await expect(card).to_be_focused()
        await job.tell([asked("two", "rejected")], "needs_decision")
        await expect(card).to_have_count(0)
        await expect(page.locator("#main")).to_be_focused()


async def test_a_cost_that_nobody_knows_is_not_zero(database_url: str, watched: Watched) -> None:
    page = watched.page
    unknown = {"cost_usd": None, "partial": True, "unpriced_calls": 1}
    told = billed("a", "small", (1_000, 100), "0")
    told[1]["usage"].update(unknown)
    step = ended("a", usage={**told[1]["usage"]}, cost=None)
    async with serving(database_url, watched) as service:
        job = await tale(service, [phase("planning"), plan(), begun("a"), told, step])
        await open_page(page, service.url, f"#/jobs/{job.id}/steps/a")
        await expect(page.locator(".figures")).to_contain_text(re.compile(r"cost\s*unknown"))
        await expect(page.locator(".panel .facts")).to_contain_text(re.compile(r"cost\s*unknown"))
        await expect(page.locator(".list .facts")).to_contain_text("cost unknown")
        await expect(page.locator("body")).not_to_contain_text("$")


async def test_all_writings_fit_the_narrowest_screen(database_url: str, watched: Watched) -> None:
    page = watched.page
    await page.set_viewport_size({"width": 320, "height": 640})
    async with serving(database_url, watched) as service:
        job = await tale(service, diamond(text="- one\n- \u0623\u0628\u062c"), goal="\u05e9\u05dc\u05d5\u05dd")
        await open_page(page, service.url, f"#/jobs/{job.id}")
        item = page.locator("#answer li").last
        await expect(item).to_have_css("direction", "rtl")
        box = await item.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 320 - 10 - 16  # room for its point
        for part in await page.locator(".bar > :not(.gap):visible").all():
            shape = await part.bounding_box()
            assert shape is not None
            assert shape["height"] <= 30, await part.inner_text()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 320


async def test_who_signs_out_leaves_nothing(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected.append("401 (Unauthorized)")
    async with serving(database_url, watched) as service:
        _, secret = await KeyStore(service.database).create("anna", Limits())
        await open_page(page, service.url)
        for _ in range(2):
            await page.get_by_label("API key").fill(secret)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_label("Goal", exact=True)).to_have_value("")
            await page.get_by_label("Goal", exact=True).fill("nobody's business")
            await page.get_by_role("button", name="Sign out").click()
