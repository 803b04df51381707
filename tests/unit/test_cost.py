"""What calls cost, from the collected cases, and the price list."""

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import run_job
from registry.budget import BudgetUnpricedError
from registry.errors import UsageError
from registry.messages import LLMResult, Message, Usage
from registry.prices import ListPrice, Price, find_price
from registry.testing import ScriptedLLM
from tests.support.scopes import Note

ALL_CASES = [
    case
    for case in map(
        json.loads, (Path(__file__).parents[1] / "cases" / "execution.jsonl").read_text("utf-8").splitlines()
    )
    if case["context"]["scope"] == "cost"
]
CASES = [case for case in ALL_CASES if "budget" not in case["input"]]
BUDGET_CASES = [case for case in ALL_CASES if "budget" in case["input"]]


def usage_of(numbers: Mapping[str, Any]) -> Usage:
    cached = numbers.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return Usage(numbers["prompt_tokens"], numbers["completion_tokens"], cached_tokens=cached)


def price_of(table: Mapping[str, float] | None) -> Price | None:
    if table is None:
        return None
    names = {"cached": "cached_input"}
    return Price.from_toml({names.get(key, key): rate for key, rate in table.items()})


async def spent(given_input: Mapping[str, Any]) -> Usage:
    """What a job's ledger says after the calls of a case, all made through the one way to a model."""
    if "calls" in given_input:
        usages = [
            Usage(cost=None if call["cost"] is None else Decimal(str(call["cost"]))) for call in given_input["calls"]
        ]
    else:
        replies = given_input.get("replies", [given_input])
        usages = [usage_of(reply["usage"]) for reply in replies]
    turns = [LLMResult(Message.assistant("text"), usage, "stop", "") for usage in usages]
    ledger = Note()
    model_id = given_input.get("model", "scripted")
    price = price_of(given_input.get("price_per_million")) or find_price("openai", model_id)
    llm = ScriptedLLM(turns, price=price, model_id=model_id).scoped(ledger)
    for _turn in turns:
        await llm.chat([Message.user("go")])
    return ledger.usage


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
async def test_case(case: dict[str, Any]) -> None:
    expect, usage = case["expect"], await spent(case["input"])
    tolerance = Decimal(str(case["context"].get("tolerance", 0)))
    checked = set()
    for key in ("cost", "total"):
        if key in expect:
            checked.add(key)
            if expect[key] is None:
                assert usage.cost is None
            else:
                assert usage.cost is not None
                assert abs(usage.cost - Decimal(str(expect[key]))) <= tolerance
    if "cost_min" in expect:
        checked.add("cost_min")
        assert usage.cost is not None
        assert usage.cost >= Decimal(str(expect["cost_min"]))
    if "partial" in expect:
        checked.add("partial")
        assert usage.partial is expect["partial"]
    if "unpriced_calls" in expect:
        checked.add("unpriced_calls")
        assert usage.unpriced_calls == expect["unpriced_calls"]
    if expect.get("flag") == "unpriced":
        checked.add("flag")
        assert usage.unpriced_calls == usage.calls == 1
        assert usage.to_json()["cost_usd"] is None
    if expect.get("tokens_recorded"):
        checked.add("tokens_recorded")
        assert (usage.input_tokens, usage.output_tokens) == (1000, 100)
    assert checked == set(expect)


def test_the_cases_are_there() -> None:
    assert {case["id"] for case in CASES} >= {"ex-cost-openai-cached", "ex-cost-failed-attempts"}
    assert {case["id"] for case in BUDGET_CASES} == {"ex-budget-unpriced"}


@pytest.mark.parametrize("case", BUDGET_CASES, ids=[case["id"] for case in BUDGET_CASES])
async def test_a_budget_in_money_is_refused_where_a_price_is_unknown(case: dict[str, Any]) -> None:
    assert set(case["expect"]) == {"rule"}  # in words: the run is refused, or warned about and limited by tokens
    given, events = case["input"], []
    llm = ScriptedLLM(["text"] * given["calls"], model_id=given["model"], price=find_price("openai", given["model"]))
    with pytest.raises(BudgetUnpricedError, match=f"the price of model '{given['model']}'"):
        await run_job("goal", llm, budget=given["budget"], on_event=events.append)
    assert llm.requests == []
    assert events == []


async def test_thrown_away_attempts_count_their_tokens() -> None:
    case = next(case for case in CASES if case["id"] == "ex-cost-failed-attempts")
    usage = await spent(case["input"])
    assert (usage.input_tokens, usage.output_tokens, usage.calls) == (2200, 200, 2)


async def test_a_refused_answer_was_paid_for() -> None:
    ledger = Note()
    refusal = LLMResult(Message.assistant("no"), Usage(1000, 100), "refusal", "")
    llm = ScriptedLLM([refusal], price=Price(Decimal(1), Decimal(2))).scoped(ledger)
    with pytest.raises(Exception, match="no"):
        await llm.chat([Message.user("go")])
    assert ledger.usage.cost == Decimal("0.0012")


def test_cache_writes_have_their_price() -> None:
    price = Price.from_toml({"input": 3, "cached_input": 0.3, "cache_write": 3.75, "output": 15})
    usage = Usage(10_000, 1_000, cached_tokens=6_000, cache_write_tokens=3_000)
    assert price.cost(usage) == (1_000 * 3 + 6_000 * Decimal("0.3") + 3_000 * Decimal("3.75") + 1_000 * 15) / Decimal(
        10**6
    )


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"input": 1}, "'output' is missing"),
        ({"input": 1, "output": 2, "cached": 1}, "'cached' is no price"),
        ({"input": 1, "output": -2}, "output = -2: must be 0 or more"),
        ({"input": True, "output": 2}, "input = True: must be a number"),
    ],
)
def test_wrong_prices_are_told(table: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Price.from_toml(table)


def test_unknown_models_and_servers_have_no_price() -> None:
    assert find_price("openai", "brand-new-1") is None
    assert find_price("anthropic", "brand-new-1") is None
    assert find_price("openai_chat", "gpt-4o", "http://127.0.0.1:11434/v1") is None


def listed() -> list[tuple[str, str]]:
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    return [(p.id, model.id) for p in snapshot.providers for model in p.models if p.id in ("openai", "anthropic")]


TOKENS = st.integers(0, 2_000_000)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(listed()), TOKENS, TOKENS, TOKENS, TOKENS)
def test_no_listed_model_costs_more_than_its_bound(
    model: tuple[str, str], tokens: int, output: int, cached: int, written: int
) -> None:
    price = find_price(*model)
    if price is None:  # priced by something else than tokens
        return
    cost = price.cost(Usage(tokens, output, cached_tokens=cached, cache_write_tokens=written))
    assert 0 <= cost <= price.bound(tokens, output)


def test_long_prompts_cost_what_the_list_says_for_long_prompts() -> None:
    tiered = [price for model in listed() if (price := find_price(*model)) is not None and _is_tiered(price)]
    assert tiered, "the list has no tiers any more: look for another way to test them"
    for price in tiered:
        start = price.model.prices.input_mtok.tiers[-1].start
        small, large = (price.cost(Usage(tokens, 0)) / tokens for tokens in (start, start + 1))
        assert small < large == price.input / 10**6


def _is_tiered(price: ListPrice) -> bool:
    rate = getattr(price.model.prices, "input_mtok", None)
    return bool(getattr(rate, "tiers", ())) and rate.base < rate.tiers[-1].price


PRICES = st.builds(Price, *[st.decimals(0, 100, places=4)] * 2, *[st.none() | st.decimals(0, 100, places=4)] * 2)


@settings(deadline=None, max_examples=150)
@given(PRICES, TOKENS, TOKENS, TOKENS, TOKENS)
def test_a_cost_is_never_negative_and_never_above_its_bound(
    price: Price, tokens: int, output: int, cached: int, written: int
) -> None:
    cost = price.cost(Usage(tokens, output, cached_tokens=cached, cache_write_tokens=written))
    assert 0 <= cost <= price.bound(tokens, output)


COSTS = st.lists(st.none() | st.decimals(0, 10, places=6), max_size=8)


@settings(deadline=None, max_examples=100)
@given(COSTS, st.integers(0, 8))
def test_a_sum_is_the_same_however_it_is_grouped(costs: list[Decimal | None], cut: int) -> None:
    usages = [Usage(10, 1, cost=cost) for cost in costs]
    whole = sum(usages, Usage.zero())
    assert sum(usages[:cut], Usage.zero()) + sum(usages[cut:], Usage.zero()) == whole
    known = [cost for cost in costs if cost is not None]
    assert whole.cost == (sum(known) if known or not costs else None)
    assert whole.unpriced_calls == len(costs) - len(known)
    assert whole.partial is (None in costs)
