"""The page puts an answer together as the reference client does, whatever comes in whatever order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from playwright.async_api import expect

from tests.support.sse import Answer, Sent

from .chromium import Watched
from .tales import answer, phase, tale
from .works import open_page, serving

pytestmark = pytest.mark.heavy

LETTERS = "aé漢😀\u0301👩‍🚀 \n"
FOLDED = """async ([place, streams]) => {
    const { Answer } = await import(place);
    return streams.map((events) => {
        const made = new Answer();
        return events.map(([data, live]) => (made.take(data, live), [made.part, made.text, made.size]));
    });
}"""
PARSED = """async ([place, text, sizes]) => {
    const { Parser } = await import(place);
    return sizes.map((size) => {
        const parser = new Parser();
        const found = [];
        for (let at = 0; at < text.length; at += size) found.push(...parser.feed(text.slice(at, at + size)));
        return [found, parser.retry];
    });
}"""


def stream(seed: int) -> list[tuple[dict[str, Any], bool]]:
    """Stored deltas in order; live pieces ahead of them, some twice, some never, some wrong."""
    rand = random.Random(seed)
    events: list[tuple[dict[str, Any], bool]] = []
    for part in range(rand.randint(1, 3)):
        text = "".join(rand.choice(LETTERS) for _ in range(rand.randint(1, 40)))
        events.append(({"status": "start" if part == 0 else "reset"}, False))
        at = 0
        while at < len(text):
            size = rand.randint(1, 9)
            stored = {"status": "delta", "part": part, "offset": at, "content": text[at : at + size]}
            for _ in range(rand.randint(0, 4)):
                begin = max(0, min(len(text) - 1, at + rand.randint(-6, 8)))
                piece = text[begin : begin + rand.randint(1, 7)]
                if rand.random() < 0.1:
                    piece = piece[::-1]
                events.append(({"status": "delta", "part": part, "offset": begin, "content": piece}, True))
            events.append((stored, False))
            at += size
    return [*events, ({"status": "done"}, False)]


async def test_it_is_the_reference_s_text_at_every_moment(database_url: str, watched: Watched) -> None:
    page = watched.page
    streams = [stream(seed) for seed in range(400)]
    expected = []
    for events in streams:
        reference, states = Answer(), []
        for seq, (data, live) in enumerate(events, 1):
            reference.take(Sent(None if live else seq, "answer", data))
            states.append([reference.part, reference.text, len(reference.text)])
        expected.append(states)
    async with serving(database_url, watched) as service:
        await open_page(page, service.url)
        place = await page.evaluate("document.querySelector('script').src.replace('main.mjs', 'answer.mjs')")
        found = await page.evaluate(FOLDED, [place, streams])
        for seed, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            assert mine == theirs, (seed, streams[seed])


async def test_events_are_whole_however_they_are_cut(database_url: str, watched: Watched) -> None:
    page = watched.page
    text = (
        'retry: 1000\n\nevent: step\ndata: {"seq":1,"x":"a\\n\\nb"}\nid: 1\n\n: keep-alive\n\n'
        'data: {"y":\ndata: 2}\n\nevent: done\ndata: {"z":"é😀"}\nid: 7\n\nretry: 86400000\n: the job has ended\n\n'
    )
    expected = [
        {"id": 1, "channel": "step", "data": {"seq": 1, "x": "a\n\nb"}},
        {"id": None, "channel": "message", "data": {"y": 2}},
        {"id": 7, "channel": "done", "data": {"z": "é😀"}},
    ]
    async with serving(database_url, watched) as service:
        await open_page(page, service.url)
        place = await page.evaluate("document.querySelector('script').src.replace('main.mjs', 'sse.mjs')")
        for found, retry in await page.evaluate(PARSED, [place, text, [*range(1, 40), len(text)]]):
            assert (found, retry) == (expected, 86_400_000)


async def test_live_pieces_stand_before_they_are_stored(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        job = await tale(service, [phase("synthesizing"), ("answer", {"status": "start"}, None)], status=None)
        await open_page(page, service.url, f"#/jobs/{job.id}")
        await expect(page.locator(".jobhead .status")).to_have_text("running")
        await expect(page.locator("section.answer")).to_have_attribute("aria-busy", "true")
        service.app.state.hub.on_piece(job.id, 0, 0, "Half 😀 of ")
        service.app.state.hub.on_piece(job.id, 0, 10, "**it**")
        await expect(page.locator("#answer")).to_have_text("Half 😀 of it")
        await job.tell(answer("Half 😀 of **it** is stored.")[1:])
        await expect(page.locator("#answer")).to_have_text("Half 😀 of it is stored.")
        await expect(page.locator("#answer strong")).to_have_text("it")
