"""Budgets under random plans, prices, providers and cancellations: what was billed never passes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from executor import JobOptions, RunOptions, run_job, start_job
from executor.ledger import Ledger
from executor.recovery import JobPast
from executor.reservations import Reservations
from planner import Plan, PlanStep
from registry import Budget, ModelRegistry, Price, tool
from registry.budget import Account, Amount, CallBound, Room, answer_reserve, input_within
from registry.context import calling
from registry.errors import (
    BudgetExceededError,
    LLMConnectionError,
    LLMError,
    LLMTimeoutError,
    OverloadedError,
    RateLimitError,
)
from registry.llm import LLM
from registry.llm_types import ChatRequest, Prepared
from registry.messages import Event, LLMResult, Message, ToolCall, Usage
from registry.retry import Tries
from registry.testing import FakeClock, ScriptedLLM
from tests.support.virtual_time import virtually

MILLION = 1_000_000
HIDDEN = 900
"""Tokens that the provider adds unseen to a request with tools."""
PATIENCE = 60.0
"""Seconds, of a loop whose time jumps, after which a wait counts as one without end."""

RATES = st.decimals(0, 40, places=3)
PRICES = st.builds(Price, RATES, RATES, st.none() | RATES, st.none() | RATES)
USD = st.decimals("0.0001", "2", places=4)
TOKENS = st.integers(100, 300_000)
BUDGETS = st.one_of(
    st.builds(Budget, usd=USD), st.builds(Budget, tokens=TOKENS), st.builds(Budget, usd=USD, tokens=TOKENS)
)


@dataclass
class Bill:
    """What the provider charges, by its own count and in its own way."""

    usd: Decimal = Decimal(0)
    tokens: int = 0

    def add(self, price: Price, given: int, cached: int, written: int, made: int) -> None:
        rates = (
            (given - cached - written, price.input),
            (cached, price.input if price.cached_input is None else price.cached_input),
            (written, price.input if price.cache_write is None else price.cache_write),
            (made, price.output),
        )
        self.usd += sum((tokens * rate for tokens, rate in rates), Decimal(0)) / MILLION
        self.tokens += given + made

    def within(self, budget: Budget) -> bool:
        fits_money = budget.usd is None or self.usd <= budget.usd
        return fits_money and (budget.tokens is None or self.tokens <= budget.tokens)


class Provider(ScriptedLLM):
    """Answers as it likes, and bills from the bytes it was sent and the limit that stands in them."""

    def __init__(self, rng: Random, bill: Bill, reply: Callable[[ChatRequest], Any], **options: Any) -> None:
        super().__init__(reply, **options)
        self.rng, self.bill, self.faults = rng, bill, options.get("price") is not None

    async def send(self, prepared: Prepared) -> Any:
        rng, price = self.rng, self.price
        assert price is not None
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            raise rng.choice([RateLimitError("busy", retry_after=0.01), OverloadedError("full")])
        usage = self._billed(prepared, price)
        for _ in range(rng.randrange(4)):  # a caller may be cancelled here: paid for all the same
            await asyncio.sleep(0)
        fault = rng.random()
        if fault < 0.08:
            raise rng.choice([LLMTimeoutError("too late"), LLMConnectionError("gone")])
        if fault < 0.12:
            raise OverloadedError("broke off", usage=usage)
        message = await super().send(prepared)
        message = [ToolCall(*call) for call in message] if isinstance(message, list) else message
        content = Message.assistant(message) if isinstance(message, str) else Message.assistant(tool_calls=message)
        finish = "stop" if isinstance(message, str) else "tool_calls"
        return LLMResult(content, usage if fault < 0.9 else None, finish, self.model_id)  # type: ignore[arg-type]

    def _billed(self, prepared: Prepared, price: Price) -> Usage:
        sent = json.loads(prepared.body)
        bound = sent["max_tokens"]  # a call without a limit has no bound: that would be a KeyError
        given = self.rng.choice([len(prepared.body), self.rng.randint(1, len(prepared.body))])
        given += self.rng.randint(0, HIDDEN) if "tools" in sent else 0
        made = self.rng.choice([bound, self.rng.randint(0, bound)])
        cached = self.rng.randint(0, given)
        written = self.rng.randint(0, given - cached)
        self.bill.add(price, given, cached, written, made)
        return Usage(given, made, cached_tokens=cached, cache_write_tokens=written)


class Narrow:
    """A gate that lets in a few calls at a time: a call can be cancelled before it is sent."""

    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)

    @asynccontextmanager
    async def enter(self, llm: LLM, prepared: Prepared, tries: Tries) -> AsyncIterator[Narrow]:
        async with self.places:
            yield self

    def used(self, usage: Usage | None) -> None: ...

    def hold(self, error: LLMError, wait: float) -> float:
        return wait


class Watched(Ledger):
    """A ledger that checks after every call that the account adds up."""

    def check(self) -> None:
        reservations = self.reservations
        assert reservations is not None
        account = reservations.account
        held = sum((one.amount for one in reservations._open), Amount())
        assert account.held == held
        rest = account.room(final=True)
        assert rest.usd is None or rest.usd >= 0
        assert rest.tokens is None or rest.tokens >= 0


def scoped(budget: Budget, *models: ScriptedLLM, smart: int = 0) -> tuple[Watched, ModelRegistry]:
    registry = ModelRegistry()
    for place, llm in enumerate(models):
        registry.register(f"m{place}", llm, roles=["smart"] if place == smart else ["general"])
    ledger = Watched(lambda *event: None, budget, registry)
    return ledger, registry.scoped(ledger)


# Calls side by side


async def all_called(callers: Sequence[Coroutine[Any, Any, None]], rng: Random) -> None:
    """All callers at once, some of them cancelled in the middle; none raises."""
    async with asyncio.timeout(PATIENCE):
        tasks = [asyncio.create_task(caller) for caller in callers]
        for _ in range(rng.randint(0, len(tasks))):
            for _ in range(rng.randrange(20)):
                await asyncio.sleep(0)
            rng.choice(tasks).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results


@settings(deadline=None, max_examples=80)
@given(BUDGETS, st.lists(PRICES, min_size=1, max_size=3), st.integers(1, 12), st.integers(0, 2**32))
@virtually
async def test_no_crowd_of_callers_passes_the_budget(
    budget: Budget, prices: Sequence[Price], callers: int, seed: int
) -> None:
    rng, bill, clock = Random(seed), Bill(), FakeClock()
    sizes = [None, 64, 512, 4_096, 64_000]
    llms = [
        Provider(rng, bill, lambda request: "text", price=price, clock=clock, max_output_tokens=rng.choice(sizes))
        for price in prices
    ]
    for llm in llms:
        llm.gate = Narrow(rng.randint(1, 4))
    ledger, models = scoped(budget, *llms)
    outcomes: list[str] = []

    async def caller_of(number: int) -> None:
        llm = models.get(rng.choice(models.names()))
        for _ in range(rng.randint(1, 5)):
            asked = rng.choice([None, 1, 100, 2_000, 30_000])
            tools = [{"name": "f", "description": "x"}] if rng.random() < 0.5 else None
            messages = [Message.user("ü" * rng.randint(1, 3_000))]
            try:
                with calling(role=rng.choice(["step", "step", "planner", "synthesis"])):
                    if rng.random() < 0.3:
                        async for _chunk in llm.stream_chat(messages, tools=tools, max_tokens=asked):
                            if rng.random() < 0.05:
                                break
                    else:
                        await llm.chat(messages, tools=tools, max_tokens=asked)
                outcomes.append("answered")
            except LLMError as error:
                outcomes.append(error.code)
            ledger.check()
            assert bill.within(budget)

    await all_called([caller_of(number) for number in range(callers)], rng)
    for _ in range(20):  # streams that were left are closed by the loop
        await asyncio.sleep(0)
    reservations = ledger.reservations
    assert reservations is not None
    assert bill.within(budget)
    assert reservations.open == 0
    assert reservations.account.held == Amount()
    assert not reservations._queue
    spent = reservations.account.spent
    assert budget.usd is None or bill.usd <= spent.usd  # never reported as less than it was
    assert budget.tokens is None or bill.tokens <= spent.tokens


class Kept:
    """A log that is stored a little later, up to whatever was appended then; and what the provider had charged."""

    def __init__(self, rng: Random, check: Callable[[Sequence[Event]], None]) -> None:
        self.rng, self.check = rng, check
        self.events: list[Event] = []
        self.stored = 0

    def append(self, channel: str, payload: Mapping[str, Any], step_id: str | None) -> None:
        self.check(self.events[: self.stored])
        payload = json.loads(json.dumps(payload))
        self.events.append(Event("job_1", len(self.events) + 1, 0.0, channel, step_id, payload))

    async def barrier(self) -> None:
        length = len(self.events)
        for _ in range(self.rng.randrange(5)):
            await asyncio.sleep(0)
        self.stored = max(self.stored, length)
        self.check(self.events[: self.stored])


@settings(deadline=None, max_examples=60)
@given(BUDGETS, PRICES, st.integers(1, 6), st.integers(0, 2**32))
@virtually
async def test_whatever_is_stored_counts_at_least_what_was_charged(
    budget: Budget, price: Price, callers: int, seed: int
) -> None:
    """Whenever its process dies: calls that nobody knows the end of count as their bounds, each of them once."""
    rng, bill = Random(seed), Bill()

    def check(events: Sequence[Event]) -> None:
        past = JobPast.read(events).account
        ledger = Ledger(lambda *event: None, budget, registry)
        ledger.restore(past.turns, past.pending)
        assert ledger.reservations is not None
        spent = ledger.reservations.account.spent
        assert budget.usd is None or bill.usd <= spent.usd
        assert budget.tokens is None or bill.tokens <= spent.tokens
        told = [event.payload for event in events]
        unsent = sum(payload.get("reason") == "released" for payload in told)
        sent = sum(payload.get("reason") == "reserved" for payload in told) - unsent
        assert len(past.turns) == sent
        unknown = any(turn.payload["usage"] is None for turn in past.turns)
        assert ledger.tally.usage.partial == unknown
        numbers = [turn.payload["reserved"] for turn in past.turns]
        assert len(numbers) == len(set(numbers))

    log = Kept(rng, check)
    llm = Provider(rng, bill, lambda request: "text", price=price, clock=FakeClock(), max_output_tokens=512)
    llm.gate = Narrow(rng.randint(1, 4))
    registry = ModelRegistry()
    registry.register("m0", llm, roles=["smart"])
    model = registry.scoped(Ledger(log.append, budget, registry, barrier=log.barrier)).get("m0")

    async def caller_of(number: int) -> None:
        with calling(step_id=f"s{number}"):
            for _ in range(rng.randint(1, 4)):
                try:
                    await model.chat([Message.user("x" * rng.randint(1, 500))])
                except LLMError as error:
                    if isinstance(error, BudgetExceededError):
                        return

    await all_called([caller_of(number) for number in range(callers)], rng)
    await log.barrier()
    check(log.events)


@settings(deadline=None, max_examples=100)
@given(BUDGETS, PRICES, st.integers(0, 2**32))
@virtually
async def test_the_answer_fits_whatever_was_spent_before(budget: Budget, price: Price, seed: int) -> None:
    rng, bill = Random(seed), Bill()
    llm = Provider(rng, bill, lambda request: "text", price=price, clock=FakeClock(), max_output_tokens=4_096)
    ledger, models = scoped(budget, llm)
    reservations = ledger.reservations
    assert reservations is not None
    bound = reservations.answer_bytes(llm)

    async def spend() -> None:
        for _ in range(50):
            try:
                await models.get("m0").chat([Message.user("x" * rng.randint(1, 500))])
            except LLMError as error:
                if isinstance(error, BudgetExceededError):
                    return

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(spend(), spend(), spend())
    left, kept = reservations.account.room(final=True), reservations.account.kept
    assert kept == answer_reserve(budget, price)
    assert left.holds(kept)  # nothing but the answer touches it
    room = reservations.answer_bytes(llm)
    if room is None:  # neither input nor output costs anything
        assert bound is None
        return
    text = "x" * (room - len(llm.prepare(ChatRequest((Message.user(""),), max_tokens=4_096)).body))
    if not text:
        return
    prepared = llm.prepare(ChatRequest((Message.user(text),), max_tokens=4_096))
    with calling(role="synthesis"):
        held = await reservations.reserve(llm, prepared)
    assert 1 <= (held.output_bound or 0) <= 4_096


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 8), st.integers(0, 2**32))
@virtually
async def test_waiting_calls_are_served_in_order(callers: int, seed: int) -> None:
    rng, order = Random(seed), list[int]()
    llm = ScriptedLLM(lambda request: "text", max_output_tokens=4_096)
    bound = CallBound.of(llm.prepare(ChatRequest((Message.user("x"),), max_tokens=1_000)), None)
    one = bound.amount(1_000).tokens
    reservations = Reservations(Budget(tokens=one * 2), None, lambda *told, **more: None)
    reservations.account = replace(reservations.account, kept=Amount())
    first = [await reservations.reserve(llm, llm.prepare(ChatRequest((Message.user("x"),), max_tokens=1_000)))]
    first += [await asyncio.create_task(_reserve(reservations, llm))]

    async def wait(number: int) -> None:
        prepared = await _reserve(reservations, llm)
        order.append(number)
        await asyncio.sleep(0)
        reservations.release(prepared)

    tasks = []
    for number in range(callers):
        tasks.append(asyncio.create_task(wait(number)))
        await asyncio.sleep(0)
    gone = {number for number in range(callers) if rng.random() < 0.3}
    for number in gone:
        tasks[number].cancel()
    for prepared in first:
        reservations.settle(prepared, Usage.zero())
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [number for number in range(callers) if number not in gone]
    assert reservations.open == 0


async def _reserve(reservations: Reservations, llm: ScriptedLLM) -> Prepared:
    return await reservations.reserve(llm, llm.prepare(ChatRequest((Message.user("x"),), max_tokens=1_000)))


# Whole jobs


@tool(read_only=True)
async def look_up(key: str) -> str:
    """Looks a key up."""
    return f"value of {key} " * 20


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 7))
    steps = []
    for place in range(count):
        before = [f"s{other}" for other in range(place) if draw(st.booleans())]
        hint = draw(st.sampled_from([None, "m0", "m1"]))
        steps.append(PlanStep(f"s{place}", "do it", tuple(before), model_hint=hint))
    return Plan("the goal", tuple(steps))


def working(rng: Random) -> Callable[[ChatRequest], Any]:
    """A model's replies in a job, as they fall."""

    def reply(request: ChatRequest) -> Any:
        if isinstance(request.tool_choice, dict):
            verdict = {"achieved": rng.random() < 0.7, "confidence": 0.9, "reasoning": "so", "final_answer": "judged"}
            return [("f", request.tool_choice["name"], verdict)]
        if request.tools and rng.random() < 0.5:
            return [(f"c{rng.random()}", "look_up", {"key": str(rng.random())})]
        return "a result"

    return reply


@settings(deadline=None, max_examples=60)
@given(plans() | st.just("a goal"), BUDGETS, st.tuples(PRICES, PRICES), st.integers(1, 6), st.integers(0, 2**32))
@virtually
async def test_no_job_passes_its_budget(
    work: Plan | str, budget: Budget, prices: tuple[Price, Price], concurrency: int, seed: int
) -> None:
    rng, bill = Random(seed), Bill()
    registry = ModelRegistry()
    for place, price in enumerate(prices):
        llm = Provider(
            rng, bill, working(rng), price=price, clock=FakeClock(), max_output_tokens=rng.choice([300, 8_000])
        )
        registry.register(f"m{place}", llm, roles=[["general", "fast"], ["smart", "compact"]][place])
    options = JobOptions(RunOptions(max_concurrency=concurrency, step_retries=rng.randrange(2)), max_replan_rounds=2)
    mode = "dag" if isinstance(work, Plan) else "react"
    handle = start_job(work, registry, tools=[look_up], budget=budget, options=options, mode=mode)  # type: ignore[arg-type]
    if rng.random() < 0.3 and isinstance(work, Plan):
        for _ in range(rng.randrange(60)):
            await asyncio.sleep(0)
        rng.choice([handle.stop, handle.cancel])()
    async with asyncio.timeout(PATIENCE):
        job = await handle.result()
    reservations = handle._runner.state.ledger.reservations
    assert reservations is not None
    assert bill.within(budget), (bill, budget)
    assert reservations.open == 0
    assert reservations.account.held == Amount()
    assert job.answer.strip()
    assert "overbilled" not in {event.payload.get("reason") for event in handle.log.events}
    last = [event for event in handle.log.events if event.channel == "budget"][-1]
    assert last.payload["reason"] == "end"
    reasons = {event.payload["reason"] for event in handle.log.events if event.channel == "budget"}
    if job.status == "budget_exceeded":
        assert reasons & {"refused", "lowered"}
        assert job.error_code == "budget_exceeded"


# The pure account


AMOUNTS = st.builds(Amount, USD, st.integers(0, 50_000))


@settings(deadline=None, max_examples=200)
@given(
    BUDGETS, PRICES, st.lists(st.tuples(AMOUNTS, st.sampled_from(["settle", "less", "release", "open"])), max_size=20)
)
def test_the_account_adds_up(budget: Budget, price: Price, moves: list[tuple[Amount, str]]) -> None:
    account = Account(budget, answer_reserve(budget, price))
    held = spent = Amount()
    for amount, move in moves:
        if not account.room(final=False).holds(amount):
            continue
        account = account.reserve(amount)
        if move == "open":
            held += amount
        elif move == "release":
            account = account.release(amount)
        else:
            cost = amount if move == "settle" else Amount(amount.usd / 2, amount.tokens // 2)
            account, spent = account.settle(amount, cost), spent + cost
        assert (account.held, account.spent) == (held, spent)
        assert account.room(final=True).holds(account.kept)


@settings(deadline=None, max_examples=200)
@given(PRICES, st.integers(0, 100_000), st.none() | USD, st.none() | TOKENS)
def test_the_highest_output_limit_fits_and_the_next_does_not(
    price: Price, given_tokens: int, usd: Decimal | None, tokens: int | None
) -> None:
    room, bound = Room(usd, tokens), CallBound(given_tokens, price)
    most = bound.output_within(room)
    if most is None:
        assert room.holds(bound.amount(MILLION))
    else:
        assert most < 1 or room.holds(bound.amount(most))
        assert not room.holds(bound.amount(max(0, most) + 1))


@settings(deadline=None, max_examples=200)
@given(PRICES, st.integers(0, 5_000), st.none() | USD, st.none() | TOKENS)
def test_the_longest_input_fits(price: Price, output: int, usd: Decimal | None, tokens: int | None) -> None:
    room = Room(usd, tokens)
    most = input_within(room, price, output)
    if most is None:
        assert room.holds(CallBound(MILLION, price).amount(output)) or not room.holds(
            CallBound(0, price).amount(output)
        )
    elif most > 0:
        assert room.holds(CallBound(most, price).amount(output))
        assert not room.holds(CallBound(most + 1, price).amount(output))


def test_bounds_hold_for_jobs_without_faults() -> None:
    """The tests above would pass if nothing were ever called: in an ample budget all of it is."""
    rng, bill = Random(1), Bill()
    llm = Provider(rng, bill, working(rng), price=Price(Decimal(1), Decimal(2)), clock=FakeClock())
    steps = tuple(PlanStep(f"s{place}", "do it", ()) for place in range(5))
    job = asyncio.run(run_job(Plan("goal", steps), llm, tools=[look_up], budget=Budget(usd=Decimal(10))))
    assert job.status in ("completed", "partial")
    assert len(llm.requests) >= 6
    assert bill.usd > 0
