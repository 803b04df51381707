"""What one does with jobs: come back to them, lose the connection, speak to them, decide, end, find them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from executor.store.keys import KeyStore, Limits
from registry.tools import tool
from tests.fakes import ProviderFake, View, brain
from tests.fakes.brain import SYNTHESIS

from .chromium import Watched
from .tales import DIAMOND, Tale, answer, begun, diamond, ended, phase, plan, tale, turn
from .wire import wire
from .works import Gate, at_work, open_page, serving

pytestmark = pytest.mark.heavy


@tool(requires_approval=True)
def launch(code: str) -> str:
    """Launches it."""
    return f"launched {code}"


async def started(page: Page, goal: str = "Work out six times seven.", mode: str = "dag") -> str:
    """Submits a goal; the job's id."""
    await page.get_by_label("Goal", exact=True).fill(goal)
    await page.get_by_label("How").select_option(mode)
    await page.get_by_role("button", name="Start").click()
    await expect(page).to_have_url(re.compile(r"#/jobs/job_"))
    return page.url.rpartition("/")[2]


async def shows_the_end(page: Page) -> None:
    await expect(page.locator('.dag .step[data-status="completed"]')).to_have_count(4)
    await expect(page.locator("#answer")).to_have_text(SYNTHESIS)
    await expect(page.locator(".jobhead .status")).to_have_text("completed")


async def test_a_reload_loses_nothing(database_url: str, provider_fake: ProviderFake, watched: Watched) -> None:
    gate, page = Gate(), watched.page
    provider_fake.script = gate.held(brain, lambda view: bool(view.tools) and bool(view.results))
    async with at_work(database_url, provider_fake, watched) as service:
        await open_page(page, service.url)
        await started(page)
        await page.locator('.dag .step[data-id="s1"]').click()
        card = page.locator('.panel .card-call[data-status="completed"]')
        await expect(card).to_have_count(1)
        await page.reload()
        await expect(page.locator('.dag .step[data-id="s1"]')).to_have_attribute("data-status", "running")
        await expect(card).to_have_count(1)
        gate.open()
        await shows_the_end(page)
        await page.reload()
        await shows_the_end(page)
        await expect(page.locator(".panel .status")).to_have_text("completed")
        await expect(card).to_have_count(1)


async def test_a_cut_connection_is_told_and_mended(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected += ["ERR_", "Failed to fetch"]
    async with serving(database_url, watched) as service, wire(service.url) as line:
        job = await tale(service, [phase("planning"), plan(), phase("executing"), begun("a")], status=None)
        await open_page(page, line.url, f"#/jobs/{job.id}")
        await expect(page.locator('.dag .step[data-id="a"]')).to_have_attribute("data-status", "running")
        line.cut()
        await expect(page.locator(".connection")).to_contain_text("cut off")
        await job.tell([*turn("a", 1), ended("a"), begun("b")])
        line.mend()
        await expect(page.locator('.dag .step[data-id="b"]')).to_have_attribute("data-status", "running")
        await expect(page.locator(".connection")).to_be_hidden()
        await expect(page.locator('.dag .step[data-id="a"]')).to_have_attribute("data-status", "completed")
        rest = [told for name, _ in DIAMOND[1:] for told in (begun(name), ended(name))]
        await job.tell([*rest, *answer("Through it all.")])
        await job.end()
        await expect(page.locator("#answer")).to_have_text("Through it all.")
        await page.locator('.dag .step[data-id="a"]').click()
        await expect(page.locator(".panel .card-call")).to_have_count(1)


async def test_a_word_into_a_running_job(database_url: str, provider_fake: ProviderFake, watched: Watched) -> None:
    gate, page = Gate(), watched.page
    provider_fake.script = gate.held(brain)
    async with at_work(database_url, provider_fake, watched) as service:
        await open_page(page, service.url)
        await started(page, mode="react")
        await asyncio.wait_for(gate.reached.wait(), 30)
        await page.get_by_label("Follow-up").fill("And say it in French.")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("Sent; the job takes it in")).to_be_visible()
        await expect(page.get_by_label("Follow-up")).to_have_value("")
        await asyncio.sleep(0.5)  # the letter is on its way to the worker
        gate.open()
        await expect(page.locator(".jobhead .status")).to_have_text("completed")
        await expect(page.locator(".agent .said, .story .said").first).to_contain_text("And say it in French.")
        await expect(page.get_by_label("Follow-up")).to_be_hidden()
    asked = [message.text for view in provider_fake.views for message in view.messages]
    assert any("And say it in French." in text for text in asked)


def launches(view: View) -> Any:
    """An agent that wants to launch, once."""
    if view.tools and view.forced is None and not view.results:
        return [("launch", {"code": "alpha-7"})]
    return brain(view)


@pytest.mark.parametrize("approve", [True, False])
async def test_a_waiting_call_is_decided(
    database_url: str, provider_fake: ProviderFake, watched: Watched, approve: bool
) -> None:
    page = watched.page
    provider_fake.script = launches
    async with at_work(database_url, provider_fake, watched, [launch]) as service:
        await open_page(page, service.url)
        await started(page, mode="react")
        card = page.locator(".approval-card")
        await expect(card).to_contain_text("launch")
        await expect(card).to_contain_text("alpha-7")
        await expect(page.locator(".jobhead .status")).to_have_text("needs decision")
        await page.reload()
        await expect(card).to_contain_text("alpha-7")
        await card.get_by_label("Reason").fill("checked by hand")
        await card.get_by_role("button", name="Approve" if approve else "Reject").click()
        await expect(card).to_have_count(0)
        await expect(page.locator(".jobhead .status")).to_have_text("completed")
        row = page.locator(".agent .card-call").last
        await row.locator("summary").click()
        await expect(row).to_contain_text("launched alpha-7" if approve else "checked by hand")


async def test_a_job_is_cancelled(database_url: str, provider_fake: ProviderFake, watched: Watched) -> None:
    gate, page = Gate(), watched.page
    provider_fake.script = gate.held(brain)
    async with at_work(database_url, provider_fake, watched) as service:
        await open_page(page, service.url)
        await started(page)
        await expect(page.locator('.dag .step[data-id="s1"]')).to_have_attribute("data-status", "running")
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.locator(".jobhead .status")).to_have_text("cancelled")
        await expect(page.locator('.dag .step[data-status="cancelled"]').first).to_be_visible()
        await expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
        await expect(page.locator(".list .facts").first).to_contain_text("cancelled")
        gate.open()


async def test_jobs_are_listed_filtered_and_opened_again(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        for number in range(35):
            failed = number % 5 == 0
            await tale(
                service, diamond(), goal=f"Goal number {number}" + (" of pears" if number == 3 else ""),
                metadata={"team": "blue" if number % 2 else "red"}, status="failed" if failed else "completed",
            )  # fmt: skip
        await open_page(page, service.url)
        rows = page.locator(".list li")
        await expect(rows).to_have_count(30)
        await expect(rows.first).to_contain_text("Goal number 34")
        await page.get_by_role("button", name="Older").click()
        await expect(rows).to_have_count(5)
        await page.get_by_role("button", name="Newer").click()
        await expect(rows).to_have_count(30)
        await page.get_by_label("Status").select_option("failed")
        await expect(rows).to_have_count(7)
        await page.get_by_label("Status").select_option("")
        await page.keyboard.press("Escape")
        await page.locator("body").click(position={"x": 700, "y": 700})
        await page.keyboard.press("/")
        await page.keyboard.type("team=red")
        await expect(rows).to_have_count(18)
        await page.get_by_role("searchbox").fill("PEARS")
        await expect(rows).to_have_count(1)
        await rows.first.locator("a").click()
        await expect(page.locator("h1")).to_have_text("Goal number 3 of pears")
        await expect(page.locator('.dag .step[data-status="completed"]')).to_have_count(4)
        await expect(page.locator("#answer")).to_have_text("The answer is 42.")
        await page.keyboard.press("n")
        await expect(page.get_by_label("Goal", exact=True)).to_be_focused()
        await page.go_back()
        await expect(page.locator("#answer")).to_have_text("The answer is 42.")


async def test_a_compacted_context_shows_a_divider(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        told = [phase("planning"), plan(), phase("executing"), begun("a"), *turn("a", 1)]
        told += [("compact", {"original_messages": 40, "kept_messages": 12}, "a"), *turn("a", 2), ended("a")]
        job = await tale(service, told, status=None)
        await open_page(page, service.url, f"#/jobs/{job.id}/steps/a")
        rows = page.locator(".panel .rows > li")
        await expect(rows).to_have_count(5)
        await expect(rows.nth(2)).to_have_class(re.compile("divider"))
        await expect(rows.nth(2)).to_have_text("Context compacted: 40 → 12 messages")


async def test_a_further_round_keeps_what_was_done_in_its_place(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        told = [phase("planning"), plan(), phase("executing")]
        told += [begun("a"), *turn("a", 1), ended("a"), begun("b"), ended("b"), begun("c")]
        told += [ended("c", "failed", None, error="no such thing", error_code="tool")]
        told += [ended("d", "skipped", None, error="Skipped — c failed", root_cause="c", attempts=0, started_at=None)]
        job = await tale(service, told, status=None)
        await open_page(page, service.url, f"#/jobs/{job.id}")
        await expect(page.locator('.dag .step[data-status="skipped"]')).to_have_count(1)
        place = await page.locator('.dag .step[data-id="a"]').get_attribute("transform")
        again = plan([("c2", ("a",)), ("d", ("b", "c2"))], round=2, kept=("a", "b"))
        await job.tell([phase("replanning", reasoning="c failed"), again, phase("executing"), begun("c2")])
        await expect(page.locator('.dag .step[data-id="c2"]')).to_have_attribute("data-status", "running")
        await expect(page.locator('.dag .step[data-id="a"] .facts')).to_contain_text("kept")
        assert await page.locator('.dag .step[data-id="a"]').get_attribute("transform") == place
        await expect(page.locator('.dag .step[data-id="c"]')).to_have_count(0)
        await expect(page.locator(".jobhead .facts")).to_contain_text("round 2")
        await expect(page.locator("section.story")).to_contain_text("c failed")


async def test_a_restored_job_forgets_the_answer_that_is_void(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        begun_answer = [told for told in answer("Half an answer that its worker", 0) if told[1]["status"] != "done"]
        job = await tale(service, [phase("synthesizing"), *begun_answer], status=None)
        await open_page(page, service.url, f"#/jobs/{job.id}")
        await expect(page.locator("#answer")).to_have_text("Half an answer that its worker")
        await job.tell([("answer", {"status": "reset"}, None)])
        await expect(page.locator("#answer")).to_have_text("")
        service.app.state.hub.on_piece(job.id, 2, 0, "The whole ")
        await expect(page.locator("#answer")).to_have_text("The whole")
        await job.tell(answer("The whole answer.", 2))
        await job.end()
        await expect(page.locator("#answer")).to_have_text("The whole answer.")
        await page.reload()
        await expect(page.locator("#answer")).to_have_text("The whole answer.")


async def test_a_fork_shows_where_it_comes_from_and_what_it_keeps(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        parent = await tale(service, diamond(), goal="The first job")
        told = [plan(kept=("a", "b"))]
        told += [(channel, {**payload, "kept": True}, step) for channel, payload, step in (ended("a"), ended("b"))]
        told += [phase("executing"), begun("c"), ended("c"), begun("d"), ended("d"), *answer("Again.")]
        job = await tale(service, told, goal="The fork", parent=parent.id, status=None)
        await open_page(page, service.url, f"#/jobs/{job.id}")
        await expect(page.locator("#answer")).to_have_text("Again.")
        await expect(page.locator(".dag .step .facts", has_text="kept")).to_have_count(2)
        await expect(page.locator(".figures")).to_contain_text(re.compile(r"iterations\s*4"))
        await job.end()
        await expect(page.locator(".jobhead .status")).to_have_text("completed")
        await page.get_by_role("link", name=parent.id).click()
        await expect(page.locator("h1")).to_have_text("The first job")


async def test_an_uncertain_call_is_asked_about(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        asked = {"call_id": "k1", "tool_name": "send_mail", "tool_args": {"to": "anna"}, "status": "uncertain",
                 "reason": "begun by a process that died", "deadline": 3600}  # fmt: skip
        told = [phase("planning"), plan(), phase("executing"), begun("a"), ("approval", asked, "a")]
        job = await tale(service, told, status=None)
        await job.tell([], "needs_decision")
        await open_page(page, service.url, f"#/jobs/{job.id}")
        card = page.locator(".approval-card")
        await expect(card).to_contain_text("Did it take effect?")
        await expect(card.get_by_role("button", name="It did not")).to_be_visible()
        await expect(page.locator(".jobhead .status")).to_have_text("needs decision")
        decided = {**asked, "status": "approved", "decided_by": "user"}
        await job.tell([("approval", decided, "a")])
        await expect(card).to_have_count(0)


async def test_a_step_that_waits_and_a_batch_s_item_look_right(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        created = await service.http.post(
            "/v1/batches", json={"mode": "run", "requests": [{"custom_id": "one", "goal": "An item"}]}
        )
        batch = created.json()["id"]
        async with service.database.connection() as connection:
            item = await connection.fetchval("select id from dw_jobs where batch = $1", batch)
        waits = ("step_progress", {**begun("a")[1], "status": "waiting"}, "a")
        await Tale(service, item).tell([phase("planning"), plan(), phase("executing"), begun("a"), waits])
        await open_page(page, service.url, f"#/jobs/{item}")
        await expect(page.locator(".links")).to_contain_text(batch)
        await expect(page.locator('.dag .step[data-id="a"]')).to_have_attribute("data-status", "waiting")
        await expect(page.locator('.dag .step[data-id="a"] .sign')).to_have_attribute("data-kind", "waiting")


async def test_a_step_that_a_cascade_took_to_a_stronger_model_says_so(database_url: str, watched: Watched) -> None:
    page = watched.page
    escalated = ended("a", model="large", escalated_from="small")
    async with serving(database_url, watched) as service:
        job = await tale(service, [phase("planning"), plan(), phase("executing"), begun("a"), escalated], status=None)
        await open_page(page, service.url, f"#/jobs/{job.id}/steps/a")
        await expect(page.locator(".facts div").filter(has_text="tried first on")).to_contain_text("small")
        await expect(page.locator(".facts div").filter(has_text="model").first).to_contain_text("large")


async def test_a_job_that_is_not_there_is_told(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected.append("404 (Not Found)")
    async with serving(database_url, watched) as service:
        await open_page(page, service.url, "#/jobs/job_of_nobody")
        await expect(page.locator("#main").get_by_role("alert")).to_have_text("There is no such job.")
        await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        await page.get_by_role("link", name="New job").click()
        await expect(page.get_by_label("Goal", exact=True)).to_be_visible()


async def test_a_server_that_stops_is_followed_by_another(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        job = await tale(service, [phase("planning"), plan(), phase("executing"), begun("a")], status=None)
        await open_page(page, service.url, f"#/jobs/{job.id}")
        await expect(page.locator('.dag .step[data-id="a"]')).to_have_attribute("data-status", "running")
        service.app.state.hub.stop()  # readers get the last word
        await job.tell([ended("a"), begun("b")])
        await asyncio.sleep(0.5)
        service.app.state.hub.stopping = False
        await expect(page.locator('.dag .step[data-id="b"]')).to_have_attribute("data-status", "running")
        await page.locator('.dag .step[data-id="a"]').click()
        await expect(page.locator(".panel .status")).to_have_text("completed")


async def test_a_key_that_is_revoked_ends_what_it_shows(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected.append("401 (Unauthorized)")
    async with serving(database_url, watched) as service:
        keys = KeyStore(service.database)
        key, secret = await keys.create("anna", Limits())
        await open_page(page, service.url)
        await page.get_by_label("API key").fill(secret)
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Goal", exact=True)).to_be_visible()
        async with service.database.connection() as connection:
            job = await tale(service, [phase("planning"), plan(), phase("executing"), begun("a")], status=None)
            await connection.execute("update dw_jobs set tenant = $2 where id = $1", job.id, key.id)
        await page.goto(f"{service.url}/#/jobs/{job.id}")
        await expect(page.locator(".dag .step")).to_have_count(4)
        await keys.revoke(key.id)
        await expect(page.get_by_label("API key")).to_be_visible(timeout=15_000)
        await expect(page.locator(".dag, .jobhead, .list li")).to_have_count(0)


async def test_a_step_is_run_again(database_url: str, provider_fake: ProviderFake, watched: Watched) -> None:
    page = watched.page
    async with at_work(database_url, provider_fake, watched) as service:
        await open_page(page, service.url)
        job = await started(page)
        await shows_the_end(page)
        await page.locator('.dag .step[data-id="s2"]').click()
        await page.get_by_role("button", name="Run again").click()
        await expect(page.get_by_role("link", name=job)).to_be_visible()
        await shows_the_end(page)
        await expect(page.locator(".dag .step .facts", has_text="kept")).to_have_count(2)
        await expect(page.locator(".list li")).to_have_count(2)
        await expect(page.locator(".list .facts").first).to_contain_text("fork")
