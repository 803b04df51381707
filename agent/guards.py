"""Loops that lead nowhere: identical calls with identical results, alone or in short cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from registry.messages import canonical_json

MAX_PERIOD = 4
"""The longest cycle of turns that is recognised: A B C D A B C D …"""
CYCLE_REPEATS = 3
"""So often must a cycle longer than one turn repeat."""
MAX_REFUSALS = 3
"""The refusal that ends the run."""

Entry = tuple[str, str]


def call_key(name: str, arguments: object) -> str:
    """One key for a tool and its arguments: key order, blanks and number spelling make no difference."""
    return f"{name}({canonical_json(arguments)})"


def tool_of(key: str) -> str:
    """The tool's name in a key."""
    return key.partition("(")[0]


def result_key(text: str) -> str:
    """A short key of a result's text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """What was called and what came back, per turn, and how often a repetition was refused.

    `threshold` is the number of identical calls with identical results in a row after which a warning comes and the
    next one is refused. Identical calls whose results differ are polling, and legal.
    """

    threshold: int = 3
    turns: tuple[tuple[Entry, ...], ...] = ()
    streak: tuple[Entry, int] = (("", ""), 0)
    refusals: int = 0

    def refuses(self, key: str) -> bool:
        """Whether this call would only go on with a repetition that was warned about."""
        (last, _), length = self.streak
        if last == key and length >= self.threshold:
            return True
        period = self._period()
        return period > 0 and any(key == called for called, _ in self.turns[-period])

    def after(self, entries: Sequence[Entry], *, refused: bool = False) -> LoopGuard:
        """After a turn's calls with their results, in call order; `refused` says that one of them was refused."""
        streak, length = self.streak
        for entry in entries:
            length = length + 1 if entry == streak else 1
            streak = entry
        keep = MAX_PERIOD * CYCLE_REPEATS
        turns = (*self.turns, tuple(entries))[-keep:] if entries else self.turns
        return replace(self, turns=turns, streak=(streak, length), refusals=self.refusals + refused)

    def last_result(self, key: str) -> str:
        """The result key that a refused repetition of this call counts as having brought again: the one that it had at
        the same place of the cycle, else its last one."""
        (last, result), length = self.streak
        if last == key and length >= self.threshold:
            return result
        period = self._period()
        again = self.turns[-period] if period else ()
        found = (entry for turn in (again, *reversed(self.turns)) for entry in reversed(turn) if entry[0] == key)
        return next(found, ("", ""))[1]

    def repeated(self) -> tuple[str, int] | None:
        """The call that has reached the threshold in the last turn, and how often it was made; None if none has."""
        (key, _), length = self.streak
        if length >= self.threshold:
            turn = self.turns[-1] if self.turns else ()
            now = next((count for count, entry in enumerate(reversed(turn)) if entry != self.streak[0]), len(turn))
            if length - now < self.threshold:
                return key, length
        period = self._period()
        if period > 0 and self.turns[-1]:
            return self.turns[-1][-1][0], CYCLE_REPEATS
        return None

    @property
    def spent(self) -> str | None:
        """The key of the call that was made at least twice in a row with the same result."""
        (key, _), length = self.streak
        return key if length > 1 else None

    @property
    def exhausted(self) -> bool:
        """Whether refusing has not helped."""
        return self.refusals >= MAX_REFUSALS

    def _period(self) -> int:
        """The length in turns of the cycle the run is in, 2 to MAX_PERIOD, or of turns with several calls 1; else 0."""
        for period in range(1, MAX_PERIOD + 1):
            repeats = max(CYCLE_REPEATS, self.threshold) if period == 1 else CYCLE_REPEATS
            span = period * repeats
            if len(self.turns) < span or (period == 1 and len(self.turns[-1]) == 1):
                continue  # a single call in a row is the streak's business
            recent = self.turns[-span:]
            if all(recent[place] == recent[place % period] for place in range(span)):
                return period
        return 0
