"""A large batch through the service, its worker and a provider with a limit, all processes of their own."""

from __future__ import annotations

import pytest

from tests.support.batch_load import measured

GOALS = 1_000


@pytest.mark.heavy
@pytest.mark.timeout(400)
async def test_a_thousand_plans_at_a_limited_provider(database_url: str) -> None:
    """`python -m benchmarks.batches` runs ten times as many and has the exact figures."""
    outcome = await measured(database_url, GOALS)
    assert outcome.faults == []
    assert outcome.statuses == {"succeeded": GOALS, "errored": 1}
    assert GOALS // 2 <= outcome.early < GOALS
    assert outcome.growth < 50 << 20
    assert outcome.share > 0.8 / 5
    assert outcome.cancelled["canceled"] > 0
    assert outcome.cancelled["errored"] == 1
    assert outcome.cancelled_in < 5
    assert outcome.provider["rules"] == []
