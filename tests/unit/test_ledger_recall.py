"""Replies that a job had already are given again by their place, and are not paid for again."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from executor.ledger import Ledger
from registry.budget import Budget
from registry.context import calling
from registry.errors import LLMConnectionError, RefusalError
from registry.messages import Event, LLMResult, Message, Usage
from registry.models import as_registry
from registry.prices import Price
from registry.testing import FakeClock, ScriptedLLM

ASK = [Message.user("?")]
PRICE = Price(input=Decimal(1), output=Decimal(1))


class Log:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, channel: str, payload: Mapping[str, Any], step_id: str | None) -> None:
        self.events.append(Event("job_1", len(self.events) + 1, 0.0, channel, step_id, payload))

    @property
    def turns(self) -> list[Event]:
        return [event for event in self.events if event.channel == "turn"]


def job(replies: Any, log: Log, budget: Budget | None = None) -> tuple[ScriptedLLM, Ledger, Any]:
    llm = ScriptedLLM(replies, price=PRICE, clock=FakeClock())
    models = as_registry(llm)
    ledger = Ledger(log.append, budget, models)
    return llm, ledger, models.scoped(ledger).get_default()


async def test_replies_come_back_by_place_and_in_their_order_and_the_rest_is_asked_for() -> None:
    log = Log()
    _, before, model = job(["a1", "a2", "b1", "r2"], log)
    with calling(step_id="a", attempt=1):
        await model.chat(ASK)
        await model.chat(ASK)
    with calling(step_id="b", attempt=2):
        await model.chat(ASK)
    with calling(step_id="a", attempt=1, round=2):
        await model.chat(ASK)
    llm, after, model = job(["new"], log)
    after.restore(log.turns, log.turns)
    assert after.tally == before.tally
    with calling(step_id="b", attempt=2):
        assert (await model.chat(ASK)).message.content == "b1"
    with calling(step_id="a", attempt=1):
        assert [(await model.chat(ASK)).message.content for _ in range(2)] == ["a1", "a2"]
    with calling(step_id="a", attempt=1, round=2):
        pieces = [chunk async for chunk in model.stream_chat(ASK)]
    assert "".join(chunk.text for chunk in pieces) == "r2"
    assert pieces[-1].result.message.content == "r2"
    assert llm.requests == []
    assert len(log.turns) == 4
    assert after.tally == before.tally
    with calling(step_id="a", attempt=1):
        assert (await model.chat(ASK)).message.content == "new"
    assert len(llm.requests) == 1
    assert len(log.turns) == 5


async def test_a_try_that_failed_is_no_reply_and_a_refusal_is_one() -> None:
    log = Log()
    refusal = LLMResult(Message.assistant("no"), Usage(3, 1), "refusal", "scripted")
    _, before, model = job([LLMConnectionError("gone"), refusal], log)
    with pytest.raises(RefusalError):
        await model.chat(ASK)
    _llm, after, model = job([], log)
    after.restore(log.turns, log.turns)
    with pytest.raises(RefusalError):
        await model.chat(ASK)
    assert after.tally == before.tally


async def test_what_was_spent_counts_against_the_budget_and_a_call_of_unknown_cost_as_its_bound() -> None:
    log, budget = Log(), Budget(usd=Decimal("0.5"), tokens=100_000)
    silent = LLMResult(Message.assistant("x"), None, "stop", "scripted")
    _, before, model = job(["one", silent], log, budget)
    await model.chat(ASK)
    await model.chat(ASK)
    _, after, model = job(["two"], log, budget)
    after.restore(log.turns, [])
    assert before.reservations is not None
    assert after.reservations is not None
    assert after.reservations.account == before.reservations.account
    assert after.reservations.account.spent.tokens > 4_096  # the bound of the call that nobody knows the cost of
    assert (await model.chat(ASK)).message.content == "two"
