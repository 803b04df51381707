"""Curves of routers: shares, areas and calls for a part of the gap, against sums made directly and by hand."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.experiments.curves import (
    Point,
    apgr,
    apgr_samples,
    cpt,
    curve_of,
    oracle_order,
    random_curve,
)
from registry.errors import UsageError

tasks = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1,
    max_size=6,
)


def split(rows):
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def by_counting(scores, weak, strong):
    """APGR from its definition: the mean over all orders that the scores allow, and over 0 to n strong calls."""
    n, values = len(scores), []
    low, gap = sum(weak), sum(strong) - sum(weak)
    for order in permutations(range(n)):
        if all(scores[one] >= scores[two] for one, two in pairwise(order)):
            quality = [low + sum(strong[i] - weak[i] for i in order[:k]) for k in range(n + 1)]
            values.append(sum((total - low) / gap for total in quality) / (n + 1))
    return sum(values) / len(values)


@given(tasks)
def test_the_average_gap_recovered_is_the_mean_over_all_numbers_of_strong_calls(rows):
    scores, weak, strong = split(rows)
    if sum(strong) <= sum(weak):
        assert apgr(scores, weak, strong) is None
        assert math.isnan(apgr_samples(scores, weak, strong, [[1] * len(rows)])[0])
    else:
        expected = by_counting(scores, weak, strong)
        assert apgr(scores, weak, strong) == pytest.approx(expected)
        assert apgr_samples(scores, weak, strong, [[1] * len(rows)])[0] == pytest.approx(expected)


@given(tasks, st.randoms())
def test_the_order_on_file_does_not_matter(rows, random):
    one = curve_of(*split(rows))
    random.shuffle(rows)
    two = curve_of(*split(rows))
    assert [point.share for point in one.points] == [point.share for point in two.points]
    assert [point.quality for point in one.points] == pytest.approx([point.quality for point in two.points])


@given(tasks)
def test_no_order_is_better_than_the_oracle_and_chance_is_a_half(rows):
    scores, weak, strong = split(rows)
    if sum(strong) > sum(weak):
        assert apgr(oracle_order(weak, strong), weak, strong) >= apgr(scores, weak, strong) - 1e-9
        assert random_curve(weak, strong).apgr == pytest.approx(0.5)


@given(tasks, st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_a_sample_counts_a_task_as_often_as_it_was_drawn(rows, times):
    times = times[: len(rows)]
    drawn = [row for row, count in zip(rows, times, strict=True) for _ in range(count)]
    if not drawn:
        return
    got, direct = apgr_samples(*split(rows), [times])[0], apgr(*split(drawn))
    assert math.isnan(got) if direct is None else got == pytest.approx(direct)


@given(tasks, st.floats(0.01, 1))
def test_the_least_share_for_a_part_of_the_gap_has_it_and_no_lesser_share_has(rows, part):
    curve = curve_of(*split(rows))
    share = curve.cpt(part)
    if curve.gap <= 0:
        assert share is None
        return
    wanted = curve.weak.quality + part * curve.gap
    assert curve.at(share).quality == pytest.approx(wanted)
    assert all(curve.at(less).quality < wanted + 1e-9 for less in np.linspace(0, share, 20)[:-1])


def test_a_curve_by_hand():
    curve = curve_of(
        [3, 1, 2, 2],
        [0, 1, 0, 0],
        [1, 1, 1, 0],
        weak_costs=[0.1, 0.1, 0.1, 0.1],
        strong_costs=[1.1, 2.1, 0.5, 0.1],
    )
    assert [(point.share, point.quality, point.threshold) for point in curve.points] == [
        (0.0, 0.25, math.inf),
        (0.25, 0.5, 3),
        (0.75, 0.75, 2),
        (1.0, 0.75, 1),
    ]
    assert [point.cost for point in curve.points] == pytest.approx([0.1, 0.35, 0.45, 0.95])
    assert curve.at(0.5) == Point(0.5, 0.625, pytest.approx(0.4), None)
    assert curve.at(0.25).threshold == 3
    assert curve.pgr(0.5) == 0.5
    assert (curve.cpt(0.5), curve.cpt(0.75), curve.cpt(1.0)) == (0.25, 0.5, 0.75)
    assert curve.share_for(0.8) is None
    assert curve.share_for(0.2) == 0.0
    assert cpt([3, 1, 2, 2], [0, 1, 0, 0], [1, 1, 1, 0], 0.5) == 0.25


def test_a_cost_that_is_not_known_leaves_the_curve_without_costs():
    curve = curve_of([1, 2], [0, 0], [1, 1], weak_costs=[0.1, None], strong_costs=[1, 1])
    assert [point.cost for point in curve.points] == [None, None, None]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([1], [0, 1], [1, 1]), "1 scores, 2 weak results and 2 strong ones"),
        (([], [], []), "at least one task"),
        (([math.nan], [0], [1]), "a score is nan"),
        (([1], [0], [math.inf]), "a strong result is inf"),
    ],
)
def test_what_is_no_curve_is_refused(arguments, told):
    with pytest.raises(UsageError, match=told):
        curve_of(*arguments)
    with pytest.raises(UsageError, match="equally many"):
        curve_of([1], [0], [1], weak_costs=[1, 2], strong_costs=[1])
    with pytest.raises(UsageError, match="between 0 and 1"):
        curve_of([1], [0], [1]).at(1.5)
