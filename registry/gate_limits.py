"""How many calls a provider takes in a time: what is set, what was learned from a refusal, and when the next one fits.

Reckoned from a log of starts; nothing here waits. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeAlias

from .errors import UsageError

Measure: TypeAlias = Literal["requests", "tokens"]

MINUTE = 60.0
HORIZON = 2 * MINUTE
"""Seconds for which starts are remembered: limits are per minute or shorter, and a wait comes on top."""
LOG_SIZE = 10_000
"""Starts remembered at most. A limit of more of them per minute is kept in proportion over a shorter time."""
ON_THE_WAY = 0.25
ON_THE_WAY_SHARE = 0.05
"""Seconds, and share of a limit's time, that a request may take to the server."""
SLACK = 0.01
"""Seconds added to a limit's time: one request may be faster than the one it follows."""
SHORTEST = 1.0
"""Seconds below which a stretch of the log says little about a rate: a longer one goes before it."""
NEARLY = 0.9
"""The share of the highest rate that a longer stretch of the log must show to go before it."""
RELAXED = 1.1
"""A learned limit is thought to be this many times too low for every `PATIENCE` of its times without a refusal: others
who share the key may have gone, the provider may have raised it, or the calls from which it was learned were long on
their way, so that its time was taken for longer than it is."""
PATIENCE = 10
"""So many times a limit's time, but at most a minute, pass between two steps: a limit of a second is tried soon, since
a call that is refused by it loses little."""
SLOWER = 16
"""How many times slower the steps of a limit become that was confirmed again and again."""
RELAXED_ENOUGH = 2.0
"""A limit is relaxed no further than this, and given up after `FORGOTTEN`."""
FORGOTTEN = 8 * MINUTE
"""Seconds after which a limit that nobody met is thought to be none."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider allows for one key and model: calls at once, requests and tokens per minute; None: no limit.

    Raises UsageError for a limit below 1, which nobody would ever pass.
    """

    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and value < 1:
                raise UsageError(f"the limit {limit.name} is {value!r}: it must be at least 1")


NO_LIMITS: Final = Limits()


@dataclass(slots=True, eq=False)
class Start:
    """A call that was let in: when, with how many tokens (estimated until they are known), after how many holds, and
    when it ended."""

    at: float
    tokens: int
    round: int
    ended: float | None = None


class Starts:
    """The starts of the last two minutes, oldest first, without those that were refused."""

    def __init__(self) -> None:
        self._log: deque[Start] = deque(maxlen=LOG_SIZE)

    def __len__(self) -> int:
        return len(self._log)

    def __reversed__(self) -> Iterator[Start]:
        return reversed(self._log)

    def add(self, start: Start) -> None:
        """Remembers a start; forgets what is too old to matter."""
        log = self._log
        log.append(start)
        oldest = start.at - HORIZON
        while log[0].at < oldest:
            log.popleft()

    def drop(self, start: Start) -> None:
        """Forgets a start that was refused: it does not count."""
        try:
            self._log.remove(start)
        except ValueError:  # long ago
            return

    def last(self, number: int) -> Start:
        """The start that was `number` starts ago; 1 is the newest."""
        return self._log[-number]

    def of_rounds(self, first: int, last: int) -> list[Start]:
        """The starts after the hold number `first` up to the one after `last`."""
        return [start for start in self._log if first <= start.round <= last]


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `amount` requests or tokens in any `seconds`."""

    amount: int
    seconds: float
    measure: Measure = "requests"

    def free_at(self, starts: Starts, tokens: int) -> float:
        """From when on another start keeps the rate; one that alone is too big goes when nothing else counts."""
        if self.measure == "requests":
            amount, seconds = self.amount, self.seconds
            if amount > LOG_SIZE:
                amount, seconds = LOG_SIZE, seconds * LOG_SIZE / amount
            return _gone(starts.last(amount), seconds) if len(starts) >= amount else float("-inf")
        taken = tokens
        for start in reversed(starts):
            taken += start.tokens
            if taken > self.amount:
                return _gone(start, self.seconds)
        return float("-inf")


def _gone(start: Start, seconds: float) -> float:
    """When a start no longer counts at the provider, whose clock began when the request arrived: at the latest when it
    ended, and not much later than it was let in."""
    arrived = start.at + min(ON_THE_WAY, ON_THE_WAY_SHARE * seconds)
    return (arrived if start.ended is None else min(arrived, start.ended)) + seconds + SLACK


def set_rates(limits: Limits) -> tuple[Rate, ...]:
    """The rates that are set."""
    rates = []
    if limits.requests_per_minute is not None:
        rates.append(Rate(limits.requests_per_minute, MINUTE))
    if limits.tokens_per_minute is not None:
        rates.append(Rate(limits.tokens_per_minute, MINUTE, "tokens"))
    return tuple(rates)


def learn_rate(accepted: Sequence[Start], back_at: float, measure: Measure) -> Rate | None:
    """The rate that a refusal shows: what was accepted since some moment is all that is allowed from then until
    `back_at`, when the provider says to come back. None where nothing was accepted.

    The moment is not known: each start may have opened the window. The earliest one is taken that gives nearly the
    highest rate, so that neither an idle time before the burst nor a straggler makes the rate too low. Too high a rate
    meets another refusal and is corrected; too low a one would only cost time.
    """
    rates: list[Rate] = []
    amount = 0
    for start in reversed(accepted):
        if accepted[-1].at - start.at > MINUTE:
            break
        amount += start.tokens if measure == "tokens" else 1
        rates.append(Rate(max(1, amount), max(0.0, back_at - start.at), measure))
    telling = [rate for rate in rates if rate.seconds >= SHORTEST]
    if not telling:
        return rates[-1] if rates else None
    least = NEARLY * max(rate.amount / rate.seconds for rate in telling)
    return next(rate for rate in reversed(telling) if rate.amount / rate.seconds >= least)


def tightened(known: Rate, starts: Starts, back_at: float) -> Rate | None:
    """A rate that was known and kept, and met a refusal all the same: in its time less is taken than was thought, or a
    call was longer on its way. What was accepted in that time is its new amount. None where that was nothing: the time
    is another one; or no less: it was not kept."""
    amount = 0
    for start in reversed(starts):
        if start.at <= back_at - known.seconds:
            break
        amount += start.tokens if known.measure == "tokens" else 1
    return replace(known, amount=amount) if 0 < amount < known.amount else None


@dataclass(frozen=True, slots=True)
class Learned:
    """A rate, when it was learned, and the seconds after which it is relaxed by a step; 0: as suits its time."""

    rate: Rate
    at: float
    every: float = 0.0

    def now(self, now: float) -> Rate | None:
        """The rate, relaxed by the time that passed; None once it is forgotten."""
        passed = now - self.at
        factor = relaxation(passed, self._every)
        if factor < RELAXED_ENOUGH:
            return self._relaxed(factor)
        return None if passed >= FORGOTTEN else self._relaxed(RELAXED_ENOUGH)

    def confirmed(self, starts: Starts, refused: Start, now: float) -> Learned | None:
        """What is left of it where a refusal only shows that it was relaxed too far: the rate of the step before, or
        else the rate as it was, to be relaxed more slowly. None: it was too high from the beginning."""
        factor = min(relaxation(now - self.at, self._every), RELAXED_ENOUGH)
        if factor > 1.0:
            slower = min(2 * self._every, SLOWER * _patience(self.rate))
            for rate in (self._relaxed(max(1.0, factor / RELAXED)), self.rate):
                if rate.free_at(starts, refused.tokens) > refused.at:
                    return Learned(rate, now, slower)
        return None

    @property
    def _every(self) -> float:
        return self.every or _patience(self.rate)

    def _relaxed(self, factor: float) -> Rate:
        return replace(self.rate, seconds=self.rate.seconds / factor)


def _patience(rate: Rate) -> float:
    return min(MINUTE, PATIENCE * max(SHORTEST, rate.seconds))


def relaxation(seconds: float, every: float = MINUTE) -> float:
    """By what a limit that was learned so long ago is relaxed: steps of `RELAXED`."""
    return float(RELAXED ** int(seconds / every))
