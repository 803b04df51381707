"""Cells of an experiment within one budget: whatever they cost and in whatever order they end, all together cost no
more, and an arm that sets a limit has it as a whole."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from executor.store.feeding import Amount, amount, granted
from registry.budget import Budget

cents = st.integers(1, 400).map(lambda value: Decimal(value) / 100)


@given(
    cents,
    st.lists(st.tuples(st.none() | cents, st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=25),
    st.integers(1, 5),
)
def test_all_together_cost_no_more(
    total: Decimal, cells: list[tuple[Decimal | None, float, int]], concurrency: int
) -> None:
    spent, dearest = Decimal(0), Decimal(0)
    at_work: list[tuple[Decimal, float]] = []
    waiting = list(cells)
    while True:
        free = concurrency - len(at_work)
        left = Amount(total - spent - sum((kept for kept, _ in at_work), Decimal(0)))
        own = [None if limit is None else Budget(limit) for limit, _, _ in waiting[:free]]
        begun = list(granted(left, own, free, Amount(dearest))) if own and free else []
        for found, limit in zip(begun, own, strict=False):
            assert found.kept.usd is not None
            assert found.budget.usd == found.kept.usd > 0
            assert found.share is (limit is None)
            if limit is not None:
                assert found.budget.usd == limit.usd
            at_work.append((found.kept.usd, waiting.pop(0)[1]))
        assert spent + sum((kept for kept, _ in at_work), Decimal(0)) <= total
        assert len(at_work) <= concurrency
        if not at_work:
            break
        place = waiting[0][2] % len(at_work) if waiting else 0
        kept, part = at_work.pop(place)
        cost = (kept * Decimal(part)).quantize(Decimal("1e-9"))
        spent, dearest = spent + min(cost, kept), max(dearest, min(cost, kept))
    if waiting:  # and what is left is not enough for the next one
        limit = waiting[0][0]
        assert total - spent < (max(dearest, Decimal("1e-9")) if limit is None else limit)


@given(cents, st.integers(1, 50), st.integers(1, 8))
def test_what_is_left_is_divided_equally(total: Decimal, count: int, free: int) -> None:
    many = min(free, count)
    found = list(granted(Amount(total), [None] * many, free, Amount(Decimal(0))))
    parts = [one.kept.usd or Decimal(0) for one in found]
    assert len(parts) == many
    assert max(parts) - min(parts) < Decimal("1e-8")


@given(st.integers(1, 10_000), st.integers(1, 9))
def test_tokens_are_whole(total: int, free: int) -> None:
    found = list(granted(amount(None, total), [None] * free, free, Amount()))
    assert sum(one.budget.tokens or 0 for one in found) <= total
    assert all(isinstance(one.budget.tokens, int) for one in found)
