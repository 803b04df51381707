"""Texts of models, tools and strangers stay texts, whatever they hold, and whatever their size the page stays awake."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.async_api import Page, expect

from . import hostile
from .chromium import Watched
from .figures import OBSERVE
from .tales import answer, begun, ended, phase, plan, tale, turn
from .works import open_page, serving

pytestmark = pytest.mark.heavy

ELEMENTS = "script, img, iframe, object, embed, base, meta, form, input, style, link, svg, math, video, audio, source"
"""What no text may become."""
LONGEST_TASK = 1_000
"""Milliseconds of one task, on a machine that is busy with other things as well."""


async def clean(page: Page, *places: str) -> None:
    """In these places stand texts and harmless elements alone."""
    for place in places:
        found = await page.locator(place).evaluate_all(
            """(nodes, elements) => nodes.flatMap((node) => [
                ...[...node.querySelectorAll(elements)].filter((one) => !one.closest('.sign'))
                    .map((one) => one.outerHTML),
                ...[...node.querySelectorAll('*')].flatMap((one) => [...one.attributes].filter((attribute) =>
                    attribute.name.startsWith('on') || attribute.name === 'style' || attribute.name === 'srcdoc')
                    .map((attribute) => `${attribute.name}=${attribute.value}`)),
                ...[...node.querySelectorAll('a')].filter((one) => one.hasAttribute('href')
                    && !/^(https?:|mailto:|#|\\/v1\\/)/.test(one.getAttribute('href'))).map((one) => one.outerHTML),
            ])""",
            ELEMENTS,
        )
        assert found == [], (place, found[:5])


async def test_nothing_of_it_runs(database_url: str, watched: Watched) -> None:
    page, text = watched.page, hostile.EVERYTHING
    ids = [hostile.TAGS[0], hostile.TAGS[1] + "/../%2e#?&", hostile.BIDI, "javascript:canary('id')"]
    approval = {"call_id": text[:300], "tool_name": hostile.TAGS[2], "tool_args": {hostile.TAGS[1]: text},
                "status": "waiting", "reason": text, "deadline": 600}  # fmt: skip
    told: list[Any] = [
        phase("planning"),
        plan([(name, ids[:at]) for at, name in enumerate(ids)], task=text.replace("{", "(").replace("}", ")")),
    ]
    told += [phase("replanning", reasoning=text), phase("executing")]
    for name in ids:
        told += [begun(name, model=hostile.TAGS[1])]
        told += turn(name, 1, tool=hostile.TAGS[0], args={"q": text}, result=text, reasoning=text)
        told += [("inject", {"type": "inject", "content": text}, name)]
    told += [ended(ids[0], result=text), ended(ids[1], "failed", text, error=text, error_code="tool")]
    told += [ended(ids[2], "skipped", None, root_cause=ids[1]), *answer(text), ("approval", approval, ids[3])]
    async with serving(database_url, watched) as service:
        job = await tale(service, told, goal=text, metadata={"note": hostile.TAGS[1]}, status=None)
        artifact = "insert into dw_artifacts (job, name, mime, data) values ($1, $2, $3, $4)"
        async with service.database.connection() as connection:
            await connection.execute(artifact, job.id, f"{hostile.TAGS[1]}.txt", "text/plain", text.encode())
        await job.tell([], "needs_decision")
        await open_page(page, service.url, f"#/jobs/{job.id}")
        await expect(page.locator(".dag .step")).to_have_count(4)
        await expect(page.locator("#answer")).to_contain_text("canary('script')")
        for at, name in enumerate(ids):
            await page.locator(".dag .step").nth(at).click()
            await expect(page.locator(".panel .card-call")).to_have_count(1)
            for box in await page.locator(".panel summary").all():
                if await box.is_visible() and await box.get_attribute("tabindex") != "-1":
                    await box.click()
            shown = page.locator(".panel .part", has_text="Result")
            await expect(shown).to_contain_text("<script>canary('script')</script>")
            await expect(shown).to_contain_text("⟨U+202E⟩txt.exe")
            assert (await page.evaluate("decodeURIComponent(location.hash.split('/steps/')[1])")) == name
            await clean(page, ".panel")
        await page.locator("section.made summary").click()
        await expect(page.locator("section.made pre")).to_contain_text("canary('script')")
        await clean(
            page, "#answer", ".jobhead", ".approval-card .long", "section.story", "section.made", ".list", ".links"
        )
        links = await page.locator("#answer a").evaluate_all("nodes => nodes.map((node) => [node.rel, node.href])")
        assert links
        assert all(rel == "noopener noreferrer nofollow" for rel, _ in links)
        assert not [href for _, href in links if not href.startswith("https://")]
        await expect(page.locator("#answer")).to_contain_text("https://bank.example (evil.example)")
        assert "\u202e" not in await page.locator("body").inner_text()
        assert await page.title() == f"needs decision: {(await page.title()).partition(': ')[2]}"


@pytest.mark.parametrize("kind", hostile.LONG)
async def test_whatever_its_size_the_page_stays_awake(database_url: str, watched: Watched, kind: str) -> None:
    page, text = watched.page, hostile.LONG[kind]
    await page.add_init_script(OBSERVE)
    told: list[Any] = [phase("planning"), plan([("a", ())], task=text[:150_000] + "{}"), phase("executing"), begun("a")]
    told += turn("a", 1, args={"q": text}, result=text, reasoning=text)
    told += [ended("a", result=text), *answer(text)]
    async with serving(database_url, watched) as service:
        job = await tale(service, told, goal=text[:190_000])
        await open_page(page, service.url, f"#/jobs/{job.id}/steps/a")
        await expect(page.locator(".jobhead .status")).to_have_text("completed")
        await expect(page.locator("#answer")).not_to_be_empty()
        for box in await page.locator(".panel summary").all():
            await box.click()
        part = page.locator(".panel .part", has_text="Result")
        before = len(await part.inner_text())
        await part.get_by_role("button", name="Show more").click()
        await expect(part.locator("pre")).to_have_count(2)
        assert len(await part.inner_text()) > before
        if await page.locator("section.answer > .prose > .more").count():
            await page.locator("section.answer > .prose > .more").click()
        began = time.monotonic()
        await page.locator(".jobhead details summary").click()
        await expect(page.locator(".jobhead details")).to_have_attribute("open", "")
        assert time.monotonic() - began < 5
        wide = "document.querySelector('.main').scrollWidth - document.querySelector('.main').clientWidth"
        assert await page.evaluate(wide) <= 0
        tasks = sorted(await page.evaluate("window.__tasks"), reverse=True)
        print(kind, [round(task) for task in tasks[:5]])
        assert not [task for task in tasks if task > LONGEST_TASK], tasks
        assert await page.evaluate("document.querySelectorAll('*').length") < 20_000


async def test_html_artifacts_are_of_another_origin(database_url: str, watched: Watched) -> None:
    page = watched.page
    watched.expected += ["Blocked script execution", "Content Security Policy", "sandboxed"]
    async with serving(database_url, watched) as service:
        job = await tale(service, [phase("planning"), *answer("See the report.")])
        artifact = "insert into dw_artifacts (job, name, mime, data) values ($1, $2, $3, $4)"
        async with service.database.connection() as connection:
            for name, mime, data in (
                ("report.html", "text/html", hostile.PAGE),
                ("a.svg", "image/svg+xml", hostile.DRAWING),
            ):
                await connection.execute(artifact, job.id, name, mime, data.encode())
            summary = (await job.row())["summary"] | {"artifacts": ["a.svg", "report.html"]}
            await connection.execute("update dw_jobs set summary = $2 where id = $1", job.id, summary)
        await open_page(page, service.url, f"#/jobs/{job.id}")
        for name, text in (("report.html", "A report"), ("a.svg", "")):
            row = page.locator("section.made li", has_text=name)
            await row.locator("summary").click()
            frame = row.frame_locator("iframe")
            if text:
                await expect(frame.locator("h1")).to_have_text(text)
                await expect(frame.locator("body")).not_to_contain_text("RAN")
            else:
                await expect(frame.locator("rect")).to_be_visible()
            assert await frame.locator(":root").evaluate("() => self.origin") == "null"
            assert await row.locator("iframe").get_attribute("sandbox") == ""
            assert await row.locator("iframe").evaluate("frame => frame.contentDocument") is None
            response = await page.request.get(f"{service.url}/view/{job.id}/{name}")
            policy = response.headers["content-security-policy"]
            assert policy.startswith("sandbox; default-src 'none'")
            assert "allow-" not in policy
            await row.locator("summary").click()
            await expect(row.locator("iframe")).to_have_count(0)
        assert page.url.startswith(service.url)
