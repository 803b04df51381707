"""Statistics of experiments for any scores: what must hold whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.experiments.stats import difference_interval, holm, mean_interval, sign_flip_p

SCORES = st.lists(
    st.lists(st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0]), min_size=1, max_size=3), min_size=1, max_size=12
)
DIFFERENCES = st.lists(st.integers(-6, 6).map(lambda part: part / 6), min_size=1, max_size=14)
P_VALUES = st.lists(st.floats(0, 1), max_size=12)


@given(SCORES, st.randoms(use_true_random=False))
def test_an_interval_holds_its_mean_and_stays_within_scores(scores: list[list[float]], shuffled: object) -> None:
    found = mean_interval(scores)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.high > found.low
    other = list(scores)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    assert mean_interval(other) == pytest.approx(found)


@given(SCORES)
def test_more_certainty_takes_more_room(scores: list[list[float]]) -> None:
    narrow, wide = mean_interval(scores, 0.8), mean_interval(scores, 0.99)
    assert wide.low <= narrow.low + 1e-12
    assert wide.high >= narrow.high - 1e-12


@given(DIFFERENCES, st.sampled_from([None, 1 / 6]))
def test_a_difference_turned_round_has_its_interval_turned_round(differences: list[float], step: float | None) -> None:
    one, other = (difference_interval(values, step) for values in (differences, [-value for value in differences]))
    assert -1 <= one.low <= one.mean <= one.high <= 1
    assert (-other.high, -other.low) == pytest.approx((one.low, one.high))


@given(DIFFERENCES)
def test_a_p_value_does_not_ask_for_order_sign_or_ties(differences: list[float]) -> None:
    p = sign_flip_p(differences)
    assert 0 < p <= 1
    assert sign_flip_p(differences[::-1]) == pytest.approx(p)
    assert sign_flip_p([-value for value in differences]) == pytest.approx(p)
    assert sign_flip_p([*differences, 0.0, 0.0]) == pytest.approx(p)


@given(P_VALUES)
def test_corrected_p_values_keep_their_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(p <= after <= 1 for p, after in zip(p_values, corrected, strict=True))
    ranked = [after for _, after in sorted(zip(p_values, corrected, strict=True))]
    assert ranked == sorted(ranked)
    if p_values:
        assert min(corrected) == pytest.approx(min(1, len(p_values) * min(p_values)))
