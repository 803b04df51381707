"""Budgets: what is accepted, what a call may cost, who waits, what is lowered, what is refused."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from executor import run_job, start_job
from executor.budget_end import synthesis_within
from executor.ledger import Ledger
from executor.reservations import Reservations
from planner import Plan, PlanStep
from registry import Budget, ModelRegistry, Price
from registry.budget import (
    HIDDEN_TOKENS,
    MIN_OUTPUT_TOKENS,
    NOTHING,
    Amount,
    BudgetUnpricedError,
    CallBound,
    answer_reserve,
)
from registry.context import calling
from registry.errors import (
    BadRequestError,
    BudgetExceededError,
    LLMTimeoutError,
    OverloadedError,
    RateLimitError,
    UsageError,
)
from registry.llm_types import ChatRequest, Prepared, ToolSpec
from registry.messages import LLMResult, Message, Usage
from registry.testing import FakeClock, ScriptedLLM
from tests.support.virtual_time import virtually

ONE = Price(Decimal(1), Decimal(1))


# What is accepted


@pytest.mark.parametrize(
    ("given", "right"),
    [
        (1, Budget(usd=Decimal(1))),
        (0.1, Budget(usd=Decimal("0.1"))),
        (Decimal("0.50"), Budget(usd=Decimal("0.5"))),
        ({"usd": "0.25", "tokens": 1000}, Budget(usd=Decimal("0.25"), tokens=1000)),
        ({"seconds": 60}, Budget(seconds=60.0)),
        ({"seconds": 1_000_000}, Budget(seconds=1e6)),
        ({"seconds": 123_456.75}, Budget(seconds=123_456.75)),
        ({"seconds": 0.00001}, Budget(seconds=1e-5)),
        (Budget(tokens=5), Budget(tokens=5)),
        ("1.00", Budget(usd=Decimal(1))),
        ("0.50usd", Budget(usd=Decimal("0.5"))),
        ("$0.50", Budget(usd=Decimal("0.5"))),
        ("20000tokens", Budget(tokens=20_000)),
        ("20k tokens", Budget(tokens=20_000)),
        ("1.5M tokens", Budget(tokens=1_500_000)),
        ("10m", Budget(seconds=600.0)),
        ("600s", Budget(seconds=600.0)),
        ("1.5 h", Budget(seconds=5_400.0)),
        ("0.50usd, 20k tokens,10m", Budget(Decimal("0.5"), 20_000, 600.0)),
    ],
)
def test_what_a_budget_may_be_given_as(given: Any, right: Budget) -> None:
    assert Budget.of(given) == right
    assert Budget.of(str(right)) == right


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (0, "budget usd = 0: must be a number, more than 0"),
        (-1.0, "must be a number, more than 0"),
        (float("nan"), "must be a number, more than 0"),
        (True, "must be a Budget, a number of USD"),
        ([], "must be a Budget, a number of USD"),
        ({}, "the budget is empty"),
        ({"euro": 1}, "a budget has no 'euro': there are usd, tokens and seconds"),
        ({"tokens": 1.5}, "must be a whole number"),
        ({"tokens": True}, "must be a number"),
        ("much", "budget 'much': must be an amount such as 0.50usd"),
        ("", "must be an amount such as"),
        ("20,000 tokens", "must be an amount such as"),
        ("1,50", "must be an amount such as"),
        ("1usd, 2usd", "gives usd twice"),
        ("10x", "must be an amount such as"),
        ("0s", "more than 0"),
        ({"usd": "1e999999999999"}, "must be from 0.000000000001 to 1,000,000,000,000,000"),
        ({"tokens": "1e999999999999"}, "must be from"),
        ({"seconds": 1e300}, "must be from"),
        ({"usd": "1e-999999999999"}, "must be from"),
    ],
)
def test_what_a_budget_may_not_be(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("$", r"\$")):
        Budget.of(given)


# What a call may cost


def prepared(llm: ScriptedLLM, text: str = "x", asked: int | None = 1_000, **more: Any) -> Prepared:
    return llm.prepare(ChatRequest((Message.user(text),), max_tokens=asked, **more))


def test_the_input_bound_is_the_bodys_bytes_and_what_a_provider_adds_for_tools() -> None:
    llm = ScriptedLLM([])
    plain = prepared(llm, "äöü")
    assert CallBound.of(plain, None).input_tokens == len(plain.body) > len("äöü".encode())
    described = llm.prepare(replace(plain.request, tools=(ToolSpec("look_up", "", {}),)))
    assert CallBound.of(described, None).input_tokens == len(described.body) + HIDDEN_TOKENS
    form = prepared(llm, response_format={"type": "json_object"})
    assert CallBound.of(form, None).input_tokens == len(form.body) + HIDDEN_TOKENS


def test_money_is_bound_at_the_highest_rate_that_may_apply() -> None:
    price = Price(Decimal(1), Decimal(10), cache_write=Decimal(3))
    assert CallBound(1_000_000, price).amount(100_000) == Amount(Decimal(4), 1_100_000)


def test_the_reserve_for_the_answer_is_what_it_may_cost_but_at_most_a_quarter() -> None:
    price = Price(Decimal(1), Decimal(10))
    assert answer_reserve(Budget(usd=Decimal(10)), price) == Amount(Decimal("0.018432"), 0)
    assert answer_reserve(Budget(usd=Decimal("0.04"), tokens=1_000), price) == Amount(Decimal("0.01"), 250)


# Reserving, waiting, lowering, refusing


class Told(list[dict[str, Any]]):
    def __call__(self, reason: str, **details: Any) -> None:
        self.append({"reason": reason, **details})


def account(tokens: int, told: Told | None = None, kept: int = 0) -> Reservations:
    reservations = Reservations(Budget(tokens=tokens), None, told if told is not None else Told())
    reservations.account = replace(reservations.account, kept=Amount(tokens=kept))
    return reservations


def cost(llm: ScriptedLLM, asked: int = 1_000) -> int:
    return CallBound.of(prepared(llm), None).amount(asked).tokens


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_call_that_does_not_fit_beside_another_waits_for_it() -> None:
    llm = ScriptedLLM([])
    reservations = account(cost(llm) + 100)
    first = await reservations.reserve(llm, prepared(llm))
    second = asyncio.create_task(reservations.reserve(llm, prepared(llm, asked=600)))
    await settled()
    assert not second.done()
    reservations.settle(first, Usage(10, 5, cost=Decimal(0)))
    assert (await second).output_bound == 600
    assert reservations.account.spent.tokens == 15
    assert reservations.open == 1


async def test_a_cancelled_wait_holds_nothing_and_the_next_one_goes_on() -> None:
    llm = ScriptedLLM([])
    reservations = account(cost(llm) * 2)
    first = await reservations.reserve(llm, prepared(llm))
    big = asyncio.create_task(reservations.reserve(llm, prepared(llm, "y" * 700)))
    await settled()
    small = asyncio.create_task(reservations.reserve(llm, prepared(llm, asked=500)))
    await settled()
    assert not big.done()
    assert not small.done()  # it would fit, but it came later
    big.cancel()
    assert (await small).output_bound == 500
    reservations.release(first)
    assert reservations.open == 1


async def test_a_granted_call_whose_task_is_cancelled_is_given_back_by_the_template() -> None:
    llm = ScriptedLLM(lambda request: "x", max_output_tokens=1_000)
    ledger = Ledger(lambda *event: None, Budget(tokens=100_000))
    bound = llm.scoped(ledger)
    task = asyncio.create_task(bound.chat([Message.user("x")]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.reservations is not None
    assert ledger.reservations.open == 0
    assert ledger.reservations.account.held == NOTHING


async def test_the_output_limit_is_lowered_before_a_call_is_refused() -> None:
    llm, told = ScriptedLLM([]), Told()
    reservations = account(cost(llm, 300), told)
    lowered = await reservations.reserve(llm, prepared(llm))
    assert lowered.output_bound is not None
    assert 300 <= lowered.output_bound <= 302  # the shorter limit makes the body a byte shorter
    assert lowered.request.max_tokens == lowered.output_bound
    assert told[0]["reason"] == "lowered"
    assert (told[0]["asked_tokens"], told[0]["max_tokens"]) == (1_000, lowered.output_bound)


@pytest.mark.parametrize(
    ("asked", "left", "fits"), [(1_000, 256, True), (1_000, 250, False), (100, 100, True), (100, 99, False)]
)
async def test_the_limit_is_not_lowered_below_a_minimum(asked: int, left: int, fits: bool) -> None:
    llm, told = ScriptedLLM([]), Told()
    reservations = account(CallBound.of(prepared(llm, asked=asked), None).amount(left).tokens, told)
    if fits:
        assert (await reservations.reserve(llm, prepared(llm, asked=asked))).output_bound in (left, left + 1)
        return
    with pytest.raises(BudgetExceededError, match=r"budget of \d+tokens does not allow this call on 'scripted'"):
        await reservations.reserve(llm, prepared(llm, asked=asked))
    assert [event["reason"] for event in told] == ["refused"]
    assert reservations.open == 0


async def test_a_hopeless_call_is_refused_at_once_also_while_others_run() -> None:
    llm = ScriptedLLM([])
    reservations = account(cost(llm))
    await reservations.reserve(llm, prepared(llm))
    with pytest.raises(BudgetExceededError):
        await asyncio.create_task(reservations.reserve(llm, prepared(llm, "y" * 2_000)))


async def test_only_the_answer_may_use_what_is_kept_for_it() -> None:
    llm = ScriptedLLM([])
    reservations = account(cost(llm) + 100, kept=cost(llm))
    with pytest.raises(BudgetExceededError, match="beside what is kept for the answer"):
        await reservations.reserve(llm, prepared(llm))
    with calling(role="synthesis"):
        assert (await reservations.reserve(llm, prepared(llm))).output_bound == 1_000


async def test_a_limit_is_set_where_none_is_sent() -> None:
    llm = ScriptedLLM([], context_size=1_000_000)
    reservations = account(100_000)
    limited = await reservations.reserve(llm, prepared(llm, asked=None))
    assert limited.output_bound == limited.request.max_tokens == 8_192


async def test_the_largest_reply_a_model_can_give_does_not_bar_every_other_call() -> None:
    llm = ScriptedLLM([], max_output_tokens=64_000)
    reservations = account(80_000)
    held = [await asyncio.create_task(reservations.reserve(llm, prepared(llm, asked=64_000))) for _ in range(3)]
    assert all(4_096 <= (one.output_bound or 0) <= 20_000 for one in held)
    wished = ScriptedLLM([], max_output_tokens=128_000)
    assert (await account(80_000).reserve(wished, prepared(wished, asked=64_000))).output_bound == 64_000


@virtually
async def test_a_call_inside_an_open_stream_does_not_wait_for_itself() -> None:
    llm = ScriptedLLM(lambda request: "a long text in pieces", max_output_tokens=1_000)
    ledger = Ledger(lambda *event: None, Budget(tokens=1_500))
    bound = llm.scoped(ledger)
    with calling(role="synthesis"):
        async with aclosing(bound.stream_chat([Message.user("x")])) as chunks:
            await anext(chunks)
            inner = await bound.chat([Message.user("y")])
            with pytest.raises(BudgetExceededError), calling(role="step"):
                await bound.chat([Message.user("z")])
    assert inner.message.content
    assert MIN_OUTPUT_TOKENS <= (llm.requests[-1].max_tokens or 0) < 500
    assert ledger.reservations is not None
    assert ledger.reservations.open == 0


async def test_a_body_that_grows_when_it_is_made_anew_still_fits() -> None:
    class Growing(ScriptedLLM):
        def prepare(self, request: ChatRequest) -> Prepared:
            made = super().prepare(request)
            return made if request.max_tokens == 1_000 else replace(made, body=made.body + b" " * 50)

    llm = Growing([])
    reservations = account(cost(llm, 700))
    lowered = await reservations.reserve(llm, prepared(llm))
    assert len(lowered.body) + (lowered.output_bound or 0) == cost(llm, 700)
    assert reservations.account.room(final=True).tokens == 0


async def test_a_provider_that_bills_more_than_its_bound_is_settled_as_billed_and_told() -> None:
    llm, told = ScriptedLLM([]), Told()
    reservations = account(10_000, told)
    call = await reservations.reserve(llm, prepared(llm))
    reservations.settle(call, Usage(3_000, 2_000, cost=Decimal(0)))
    reservations.settle(call, Usage(3_000, 2_000, cost=Decimal(0)))  # a second end changes nothing
    assert reservations.account.spent.tokens == 5_000
    assert [(event["reason"], event["billed_tokens"]) for event in told] == [("overbilled", 5_000)]


@pytest.mark.parametrize(
    ("reply", "spent"),
    [
        (LLMResult(Message.assistant("x"), Usage(7, 3), "stop", ""), 10),
        (LLMResult(Message.assistant("x"), None, "stop", ""), None),
        (LLMTimeoutError("late"), None),
        (OverloadedError("full"), 0),
        (OverloadedError("broke off", usage=Usage(5, 5)), 10),
        (RateLimitError("busy"), 0),
    ],
)
async def test_what_an_attempt_is_settled_at(reply: Any, spent: int | None) -> None:
    llm = ScriptedLLM([reply, LLMResult(Message.assistant("x"), Usage(0, 0), "stop", "")], price=ONE, clock=FakeClock())
    ledger = Ledger(lambda *event: None, Budget(tokens=100_000, usd=Decimal(5)))
    await llm.scoped(ledger).chat([Message.user("x")])
    assert ledger.reservations is not None
    done = ledger.reservations.account.spent
    bound = CallBound.of(prepared(llm, asked=4_096), ONE).amount(4_096)
    assert done.tokens == (bound.tokens if spent is None else spent)
    assert done.usd == Decimal(done.tokens) / 1_000_000
    assert ledger.reservations.open == 0


async def test_a_limit_of_ours_that_the_server_refuses_is_learned_from() -> None:
    seen: list[tuple[str, int | None]] = []

    class Picky(ScriptedLLM):
        def learn(self, error: Any, prepared: Prepared) -> bool:
            seen.append((error.code, prepared.output_bound))
            return len(seen) == 2

    llm = Picky([BadRequestError("max_tokens is too large"), "fine"])
    llm.max_output_tokens = None
    await llm.scoped(Ledger(lambda *event: None, Budget(tokens=100_000))).chat([Message.user("x")])
    assert seen[0] == ("bad_request", 8_192)


# Models without a price


def two_models(first: Price | None, second: Price | None) -> ModelRegistry:
    models = ModelRegistry()
    models.register("main", ScriptedLLM(["x"], price=first), roles=["general"], fallbacks=["spare"])
    models.register("spare", ScriptedLLM(["x"], price=second, model_id="spare-1"))
    return models


async def test_a_budget_in_money_needs_the_price_of_every_model_also_of_a_fallback() -> None:
    models = two_models(ONE, None)
    with pytest.raises(BudgetUnpricedError, match=r"'spare' \(spare-1\).*\[models.spare\] price = .*budget in tokens"):
        await run_job("goal", models, budget=1)
    with pytest.raises(UsageError) as caught:
        start_job("goal", models, budget="$1")
    assert caught.value.code == "budget_unpriced"
    spare = models.get("spare")
    assert isinstance(spare, ScriptedLLM)
    assert spare.requests == []


async def test_a_budget_in_tokens_needs_no_price() -> None:
    plan = Plan("goal", (PlanStep("a", "do it", ()),))
    models = ScriptedLLM(lambda request: "text")
    assert (await run_job(plan, models, budget={"tokens": 100_000})).answer


# The answer that fits


def test_the_work_is_cut_to_the_room_there_is() -> None:
    llm = ScriptedLLM([])
    whole = synthesis_within(llm, "the question", "work " * 4_000, None)
    assert whole is not None
    for room in (3_000, 5_000, 12_000):
        messages = synthesis_within(llm, "the question", "wörk\n" * 4_000, room)
        assert messages is not None
        size = len(llm.prepare(ChatRequest(tuple(messages), max_tokens=4_096, stream=True)).body)
        assert room * 0.8 <= size <= room
    assert synthesis_within(llm, "the question " * 1_000, "work " * 4_000, 3_000) is not None
    assert synthesis_within(llm, "the question", "work", 300) is None
