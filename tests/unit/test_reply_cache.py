"""The cache of replies: the same question is paid for once, and what is not a whole reply is asked again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from registry.errors import ConfigError, LLMError, OverloadedError
from registry.llm import LLM
from registry.llm_types import ChatRequest
from registry.messages import LLMResult, Message, Usage
from registry.prices import Price
from registry.redaction import know_secret
from registry.reply_cache import ReplyCache
from registry.testing import FakeClock, ScriptedLLM
from tests.support.scopes import Note
from tests.support.spans import attributes, recorded

PRICE = Price(Decimal(1), Decimal(2))


class Model(ScriptedLLM):
    """Answers with a number that counts its calls, unless the test says otherwise."""

    def __init__(self, reply: Callable[[ChatRequest], Any] | None = None, model_id: str = "m", url: str = "u") -> None:
        super().__init__(reply or (lambda request: f"reply {len(self.requests)}"), model_id=model_id, price=PRICE,
                         clock=FakeClock())  # fmt: skip
        self.url = url

    @property
    def endpoint(self) -> str:
        return self.url


@pytest.fixture
async def cache(tmp_path: Path) -> AsyncIterator[ReplyCache]:
    async with ReplyCache.open(tmp_path / "calls.sqlite") as opened:
        yield opened


def job(llm: LLM, cache: ReplyCache, salt: str = "1", seen: tuple[str, ...] = ()) -> tuple[LLM, Note]:
    note = Note()
    return llm.remembering(cache.for_job(salt, seen)).scoped(note), note


async def ask(llm: LLM, text: str = "What?", **more: Any) -> str:
    return (await llm.chat([Message.user(text)], **more)).message.content


async def test_two_jobs_that_ask_the_same_pay_once(cache: ReplyCache) -> None:
    model = Model()
    one, first = job(model, cache)
    two, second = job(model, cache)
    assert await ask(one) == await ask(two) == "reply 1"
    assert len(model.requests) == 1
    assert [record.cached for record in (*first.records, *second.records)] == [False, True]
    assert first.usage.cost == second.usage.cost != 0, "priced as if paid"
    assert second.records[0].elapsed == 0
    assert first.records[0].reply_key == second.records[0].reply_key is not None


async def test_a_job_that_asks_the_same_twice_gets_a_second_reply_and_shares_it_too(cache: ReplyCache) -> None:
    model = Model()
    one, _ = job(model, cache)
    two, _ = job(model, cache)
    assert [await ask(one), await ask(one), await ask(one, "Other?")] == ["reply 1", "reply 2", "reply 3"]
    assert [await ask(two), await ask(two), await ask(two)] == ["reply 1", "reply 2", "reply 4"]


@pytest.mark.parametrize(
    "other",
    [
        lambda cache: (job(Model(model_id="other"), cache)[0], {}),
        lambda cache: (job(Model(url="other"), cache)[0], {}),
        lambda cache: (job(Model(), cache, "2")[0], {}),
        lambda cache: (job(Model(), cache)[0], {"max_tokens": 7}),
    ],
)
async def test_another_model_server_body_or_repeat_is_another_question(other: Any, cache: ReplyCache) -> None:
    first, _ = job(Model(), cache)
    await ask(first)
    llm, more = other(cache)
    await ask(llm, **more)
    assert len(llm.requests) == 1


async def test_who_asks_meanwhile_waits_for_the_one_reply(cache: ReplyCache) -> None:
    go, asked = asyncio.Event(), asyncio.Event()

    async def reply(request: ChatRequest) -> str:
        asked.set()
        await go.wait()
        return "the one"

    model = Model(reply)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(job(model, cache)[0])) for _ in range(5)]
        await asked.wait()
        await asyncio.sleep(0.05)
        go.set()
    assert {task.result() for task in tasks} == {"the one"}
    assert len(model.requests) == 1


async def test_where_the_first_gives_up_the_next_one_asks(cache: ReplyCache) -> None:
    hangs = asyncio.Event()

    async def reply(request: ChatRequest) -> str:
        if len(model.requests) == 1:
            hangs.set()
            await asyncio.Event().wait()
        return "from the second"

    model = Model(reply)
    one, first = job(model, cache)
    async with asyncio.TaskGroup() as group:
        leader = group.create_task(ask(one))
        await hangs.wait()
        follower = group.create_task(ask(job(model, cache)[0]))
        await asyncio.sleep(0.02)
        assert not follower.done()
        leader.cancel()
    assert follower.result() == "from the second"
    assert first.given_up == 1
    assert await ask(one) == "from the second", "a call without a reply does not count as asked"


async def test_a_cancelled_follower_takes_back_what_it_reserved(cache: ReplyCache) -> None:
    go = asyncio.Event()

    async def reply(request: ChatRequest) -> str:
        await go.wait()
        return "x"

    model = Model(reply)
    follower, note = job(model, cache)
    async with asyncio.TaskGroup() as group:
        leader = group.create_task(ask(job(model, cache)[0]))
        await asyncio.sleep(0.02)
        waiting = group.create_task(ask(follower))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.sleep(0.02)
        go.set()
    assert leader.result() == "x"
    assert (note.reserved, note.released_again, note.given_up, note.records) == (1, 1, 0, [])


async def test_a_failed_try_is_asked_again_and_its_reply_is_shared(cache: ReplyCache) -> None:
    def reply(request: ChatRequest) -> Any:
        return OverloadedError("busy") if len(model.requests) == 1 else "at last"

    model = Model(reply)
    one, note = job(model, cache)
    assert await ask(one) == "at last"
    assert [record.cached for record in note.records] == [False, False]
    assert await ask(job(model, cache)[0]) == "at last"
    assert len(model.requests) == 2


@pytest.mark.parametrize("finish", ["length", "content_filter", "refusal"])
async def test_what_is_not_whole_is_not_kept(finish: Any, cache: ReplyCache) -> None:
    model = Model(lambda request: LLMResult(Message.assistant("half"), Usage(1, 1), finish, "m"))
    for _ in range(2):
        llm, _ = job(model, cache)
        if finish == "length":
            assert await ask(llm) == "half"
        else:
            with pytest.raises(LLMError):
                await ask(llm)
    assert len(model.requests) == 2


async def test_what_must_be_masked_is_not_kept(cache: ReplyCache, tmp_path: Path) -> None:
    know_secret("very-secret-value-1234")
    model = Model(lambda request: "very-secret-value-1234")
    for _ in range(2):
        assert await ask(job(model, cache)[0]) == "very-secret-value-1234"
    assert len(model.requests) == 2
    for file in tmp_path.iterdir():  # noqa: ASYNC240
        assert b"very-secret" not in file.read_bytes()


async def test_a_stream_is_given_again_whole(cache: ReplyCache) -> None:
    model = Model(lambda request: "a long enough reply for several pieces")

    async def streamed(llm: LLM) -> tuple[str, LLMResult | None]:
        chunks = [chunk async for chunk in llm.stream_chat([Message.user("What?")])]
        return "".join(chunk.text for chunk in chunks), chunks[-1].result

    text, result = await streamed(job(model, cache)[0])
    again, same = await streamed(job(model, cache)[0])
    assert text == again == "a long enough reply for several pieces"
    assert result == same is not None
    assert len(model.requests) == 1


async def test_a_stream_that_is_left_is_not_kept(cache: ReplyCache) -> None:
    model = Model(lambda request: "a long enough reply for several pieces")
    stream = job(model, cache)[0].stream_chat([Message.user("What?")])
    await anext(stream)
    await stream.aclose()
    async for _ in job(model, cache)[0].stream_chat([Message.user("What?")]):
        pass
    assert len(model.requests) == 2


async def test_a_job_that_goes_on_asks_what_it_has_not_had(cache: ReplyCache) -> None:
    model = Model()
    one, first = job(model, cache)
    assert [await ask(one), await ask(one)] == ["reply 1", "reply 2"]
    keys = tuple(record.reply_key or "" for record in first.records)
    assert await ask(job(model, cache, seen=keys[:1])[0]) == "reply 2"
    assert await ask(job(model, cache, seen=keys)[0]) == "reply 3"


async def test_the_file_keeps_it_and_two_may_have_it_open(tmp_path: Path) -> None:
    path, model = tmp_path / "sub" / "calls.sqlite", Model()
    async with ReplyCache.open(path) as one, ReplyCache.open(path) as two:
        assert await ask(job(model, one)[0]) == await ask(job(model, two)[0]) == "reply 1"
    async with ReplyCache.open(path) as later:
        assert await ask(job(model, later)[0]) == "reply 1"
    assert len(model.requests) == 1


@pytest.mark.parametrize("broken", ["text", "other"])
async def test_a_file_that_is_no_cache_is_refused(broken: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.sqlite"
    if broken == "text":
        path.write_text("this is no database, but long enough for its header" * 20, encoding="utf-8")
    else:
        with sqlite3.connect(path) as other:
            other.execute("create table mine (x int)")
        other.close()
    with pytest.raises(ConfigError, match="call cache"):
        async with ReplyCache.open(path):
            pass


async def test_a_cache_that_fails_costs_no_reply(cache: ReplyCache) -> None:
    model = Model()
    cache._connection.close()
    assert await ask(job(model, cache)[0]) == "reply 1"
    assert await ask(job(model, cache)[0]) == "reply 2"


async def test_provider_state_comes_back(cache: ReplyCache) -> None:
    given = replace(
        Message.assistant("x"), provider={"anthropic": [{"type": "thinking", "signature": "s"}]}, reasoning="r"
    )
    model = Model(lambda request: LLMResult(given, Usage(3, 4, cost=Decimal("0.25")), "stop", "m"))
    first = await job(model, cache)[0].chat([Message.user("What?")])
    again = await job(model, cache)[0].chat([Message.user("What?")])
    assert first == again
    assert again.message.provider == given.provider
    assert len(model.requests) == 1


async def test_a_span_says_that_nothing_was_sent(cache: ReplyCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(monkeypatch) as spans:
        model = Model()
        for _ in range(2):
            await ask(job(model, cache)[0])
    assert [attributes(span).get("dagwright.cached") for span in spans.of("chat")] == [None, True]
