"""Fifty steps of a plan at a server that takes 60 requests in 3 seconds, over real HTTP through the real SDK. Exact
figures: `python -m benchmarks.rate_limit`."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.support.rate_limit import REQUESTS, STEPS, Windows, run_steps

MOST = 2.0
"""Times the least time; on a busy machine 1.1 becomes more."""


@pytest.mark.heavy
@pytest.mark.parametrize("sliding", [False, True], ids=["fixed", "sliding"])
@pytest.mark.parametrize("told", ["exactly", "in whole seconds"])
async def test_fifty_steps_are_refused_once(told: Literal["exactly", "in whole seconds"], sliding: bool) -> None:
    windows = Windows(told=told, sliding=sliding)
    outcome = await run_steps(windows)
    assert outcome.status == "completed"
    assert len(windows.accepted) == REQUESTS
    assert 0 < len(windows.refused) <= STEPS
    assert windows.later_refusals(grace=1.0) == 0  # those on their way at the first one aside
    assert windows.least <= outcome.spanned <= MOST * windows.least_told


@pytest.mark.heavy
@pytest.mark.parametrize("sliding", [False, True], ids=["fixed", "sliding"])
async def test_without_a_word_from_the_server_all_steps_end(sliding: bool) -> None:
    windows = Windows(told="not", sliding=sliding)
    outcome = await run_steps(windows)
    assert outcome.status == "completed"
    assert len(windows.accepted) == REQUESTS
    assert windows.later_refusals(grace=0.45) <= 10  # single probes: the first comes after half a second
    assert windows.least <= outcome.spanned <= 2 * MOST * windows.least


async def test_a_short_limit_is_met_by_all_steps() -> None:
    windows = Windows(limit=120, seconds=0.7)
    outcome = await run_steps(windows)
    assert (outcome.status, len(windows.accepted)) == ("completed", REQUESTS)
