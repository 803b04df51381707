"""The loop guard: what repeats ends, what does not repeat is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count, cycle, islice

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.guards import CYCLE_REPEATS, MAX_PERIOD, MAX_REFUSALS, Entry, LoopGuard

names = st.sampled_from("ABCD")
turns = st.lists(names, min_size=1, max_size=3)
thresholds = st.integers(2, 5)


class Played:
    """What the loop does with a guard: a refused call does not run and counts as having brought its last result."""

    def __init__(self, threshold: int) -> None:
        self.guard = LoopGuard(threshold)
        self.ran = self.refused = self.warned = 0

    def turn(self, entries: Sequence[Entry]) -> None:
        done = []
        refused = False
        for key, result in entries:
            if self.guard.refuses(key):
                refused = True
                self.refused += 1
                done.append((key, self.guard.last_result(key)))
            else:
                self.ran += 1
                done.append((key, result))
        self.guard = self.guard.after(done, refused=refused)
        self.warned += self.guard.repeated() is not None

    def play(self, sequence: Iterable[Sequence[Entry]], limit: int) -> int:
        """Turns until the guard ends the run; `limit` where it does not."""
        for number, entries in enumerate(islice(sequence, limit)):
            if self.guard.exhausted:
                return number
            self.turn(entries)
        return limit


@settings(deadline=None, max_examples=100)
@given(st.lists(turns, min_size=1, max_size=4), thresholds)
def test_polling_is_never_refused(pattern: list[list[str]], threshold: int) -> None:
    """The same calls again and again, each with a new result."""
    played, number = Played(threshold), count()
    calls = ([(name, str(next(number))) for name in turn] for turn in cycle(pattern))
    assert played.play(calls, 60) == 60
    assert (played.refused, played.warned) == (0, 0)


@settings(deadline=None, max_examples=100)
@given(st.lists(turns, max_size=12), st.lists(turns, min_size=1, max_size=MAX_PERIOD), thresholds)
def test_a_cycle_ends(before: list[list[str]], pattern: list[list[str]], threshold: int) -> None:
    """Whatever came before, and whatever shorter cycles are in it."""
    number = count()
    prefix = [[(name, f"new {next(number)}") for name in turn] for turn in before]
    loop = [[(name, f"result of {name} in turn {place}") for name in turn] for place, turn in enumerate(pattern)]
    played = Played(threshold)
    bound = len(pattern) * (max(threshold, CYCLE_REPEATS) + 1) + MAX_REFUSALS + 1
    assert played.play(chain(prefix, cycle(loop)), len(prefix) + 10 * bound) <= len(prefix) + bound
    assert played.guard.exhausted
    assert played.warned


@settings(deadline=None, max_examples=100)
@given(st.lists(turns, max_size=20), st.lists(names, min_size=1, max_size=4), thresholds)
def test_a_cycle_of_pure_calls_ends(before: list[list[str]], pattern: list[str], threshold: int) -> None:
    """One call a turn whose result depends on nothing but the call; what came before is of the same kind."""
    played = Played(threshold)
    for turn in before:
        if not played.guard.exhausted:
            played.turn([(name, name.lower()) for name in turn])
    bound = len(pattern) * (max(threshold, CYCLE_REPEATS) + 1) + MAX_REFUSALS + 1
    assert played.play(cycle([[(name, name.lower())] for name in pattern]), 10 * bound) <= bound


@settings(deadline=None, max_examples=150)
@given(st.lists(names, max_size=30), st.integers(3, 5))
def test_what_does_not_repeat_is_never_warned_about(calls: list[str], threshold: int) -> None:
    """Equal results do no harm as long as nothing comes three times in a row, no single call and no cycle."""
    played = Played(threshold)
    said: list[str] = []
    for name in calls:
        said.append(name)
        if any(said[-3 * size :] == 3 * said[-size:] for size in range(1, MAX_PERIOD + 1) if 3 * size <= len(said)):
            said.pop()  # this one would complete a repetition: left out
            continue
        played.turn([(name, "same")])
        assert (played.refused, played.warned) == (0, 0)


def test_an_overlap_free_sequence_runs_for_ever() -> None:
    """The Thue-Morse sequence: two calls only, and never the same thing three times in a row."""
    played = Played(3)
    sequence = ([("AB"[number.bit_count() % 2], "same")] for number in count())
    assert played.play(sequence, 1_000) == 1_000
    assert (played.refused, played.warned) == (0, 0)


def test_a_turn_that_jumps_over_the_threshold_is_warned_about() -> None:
    played = Played(2)
    played.turn([("A", "same"), ("A", "same"), ("A", "same")])
    assert played.guard.repeated() == ("A", 3)
    played.turn([("A", "same")])
    assert played.refused == 1
