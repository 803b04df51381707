"""When the next call may go to a provider, as a state that hears of starts, ends and refusals; nothing here waits.

After a refusal (429) everybody is held until the provider says; the limit is learned from what was accepted before
it. An overload (529, 503) halves the calls in flight, which grow again with every success (additive increase,
multiplicative decrease; Jacobson 1988). Then callers come back one by one.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

from .errors import LLMError, OverloadedError, RateLimitError
from .gate_limits import (
    RELAXED_ENOUGH,
    Learned,
    Limits,
    Measure,
    Start,
    Starts,
    learn_rate,
    relaxation,
    set_rates,
    tightened,
)
from .retry import RetryPolicy

SPACING = 0.005
"""Least seconds between two calls that come back after a hold; up to half as much is added at random."""
QUIET = 1.0
"""Seconds without anybody coming back after which calls are no longer spaced."""
PROBE_SECONDS = 1.0
"""Where nobody said when to come back, one call tries. Refusals come at once: unrefused after this time it is in."""

ROUNDING = 1.0
"""Seconds by which the times that a provider names for one moment may differ: Retry-After has whole seconds."""

_CONCURRENCY = re.compile(r"concurren|simultaneous|in[- ]flight|parallel (?:requests|calls)|at the same time", re.I)
_TOKENS = re.compile(r"tokens?[ -]per|\bTPM\b|request tokens|tokens? (?:rate )?limit|per[- ]\w+ tokens?\b", re.I)


def is_refusal(error: object) -> bool:
    """Whether an error is about how much the provider can take now, so that it concerns all callers."""
    return isinstance(error, RateLimitError | OverloadedError)


def again(error: LLMError) -> LLMError:
    """The same refusal for another caller: an exception belongs to one traceback, and that keeps frames alive."""
    return type(error)(
        str(error), retryable=error.retryable, retry_after=error.retry_after, status=error.status, param=error.param
    )


@dataclass(slots=True)
class Hold:
    """Nobody goes in before `until`. `said` is when the provider, or a doubling wait, said to come back; `least` is a
    doubling wait after several refusals in a row.

    `probing`: nobody knows whether that is late enough, so that one call goes first. The starts of the rounds `first`
    to `last` tell the rate; `before` is the `first` of the hold before, in case nothing was accepted in between.
    """

    error: LLMError
    until: float
    said: float
    least: float
    jitter: float
    probing: bool
    measure: Measure | None
    first: int
    last: int
    before: int
    unread: bool = True


@dataclass(frozen=True, slots=True)
class Width:
    """Calls in flight that a refusal left: growing with each success up to `given_up_at`, or relaxed by time."""

    calls: float
    at: float
    given_up_at: float | None = None

    def now(self, now: float) -> int | None:
        """How many; None: no longer limited."""
        if self.given_up_at is not None:
            return None if self.calls > self.given_up_at else int(self.calls)
        factor = relaxation(now - self.at)
        return None if factor >= RELAXED_ENOUGH else int(self.calls * factor)


class Traffic:
    """All that is known of one provider, key and model. Times are of one monotonic clock."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.starts = Starts()
        self.hold: Hold | None = None
        self._rng = rng or random.Random()
        self._round = 0
        self._strikes = 0
        self._learned: dict[Measure, Learned] = {}
        self._width: Width | None = None
        self._paced = False
        self._next = float("-inf")
        self._probe: Start | None = None
        self._probe_until = 0.0

    # What is asked

    def calm(self, now: float) -> bool:
        """Whether nothing is held, spaced or limited by what was learned."""
        if self._paced or self._learned or self._width is not None:
            return False
        return self.hold is None or (now >= self.hold.until and not self.hold.probing and not self.hold.unread)

    def wait(self, now: float, limits: Limits, tokens: int, in_flight: int) -> float:
        """Seconds until a call with so many tokens may start; infinite: until one of those in flight ends."""
        if self._full(now, limits, in_flight):
            return float("inf")
        hold = self.hold
        if hold is not None:
            if now < hold.until:
                return hold.until - now
            self._read(hold, now)
        free = self._next if self._paced else now
        if hold is not None and hold.probing and self._probe is not None:
            free = max(free, self._probe_until)
        for rate in set_rates(limits):
            free = max(free, rate.free_at(self.starts, tokens))
        for measure, learned in list(self._learned.items()):
            current = learned.now(now)
            if current is None:
                del self._learned[measure]
            else:
                free = max(free, current.free_at(self.starts, tokens))
        return max(0.0, free - now)

    def refusal(self, now: float) -> LLMError | None:
        """The refusal on account of which callers wait now; None: they wait for each other, or for set limits."""
        hold = self.hold
        return hold.error if hold is not None and (now < hold.until or self._learned) else None

    def hopeless(self, now: float, deadline: float) -> bool:
        """Whether the provider said to come back only after that time."""
        return self.hold is not None and now < self.hold.until and self.hold.said > deadline

    # What is told

    def arrives(self, now: float, waiting: int) -> None:
        """Somebody comes to the entrance."""
        if self._paced and not waiting and now > self._next + QUIET:
            self._paced = False

    def started(self, now: float, tokens: int) -> Start:
        """A call goes in."""
        start = Start(now, tokens, self._round)
        self.starts.add(start)
        if self._paced:
            self._next = now + SPACING * self._rng.uniform(1.02, 1.5)
        hold = self.hold
        if hold is not None and hold.probing:
            if self._probe is None:
                self._probe, self._probe_until = start, now + PROBE_SECONDS
            else:
                self._passed(hold)
        return start

    def ended(self, start: Start, now: float, *, well: bool) -> None:
        """A call came to an end that is no refusal."""
        start.ended = now
        if start.round == self._round:
            self._strikes = 0
        if start is self._probe and self.hold is not None:
            self._passed(self.hold)
        width = self._width
        if width is not None:
            if well and width.given_up_at is not None:
                self._width = width = replace(width, calls=width.calls + 1 / width.calls)
            if width.now(now) is None:
                self._width = None

    def refused(self, start: Start, error: LLMError, policy: RetryPolicy, now: float, in_flight: int) -> None:
        """A call was refused. `in_flight`: how many others are on their way."""
        self.starts.drop(start)
        crowded = isinstance(error, RateLimitError) and _CONCURRENCY.search(str(error)) is not None
        fresh = self.hold is None or start.round == self._round
        if fresh:
            self.hold = self._new_hold(start, error, policy, now, crowded)
            self._round += 1
            self._probe = None
        else:
            assert self.hold is not None
            self._longer(self.hold, error, policy, now)
        self._paced = True
        assert self.hold is not None
        self._next = max(self._next, self.hold.until)
        if crowded:
            others = float(max(1, in_flight))
            known = self._width.calls if self._width is not None and not fresh else others
            self._width = Width(min(known, others), now)
        elif fresh and isinstance(error, OverloadedError):
            before = in_flight + 1
            allowed = self._width.now(now) if self._width is not None else None
            self._width = Width(max(1.0, min(before, allowed or before) / 2), now, 2.0 * before)

    # Inside

    def _full(self, now: float, limits: Limits, in_flight: int) -> bool:
        allowed = [limits.concurrency] if limits.concurrency is not None else []
        if self._width is not None:
            width = self._width.now(now)
            if width is None:
                self._width = None
            else:
                allowed.append(max(1, width))
        return bool(allowed) and in_flight >= min(allowed)

    def _new_hold(self, start: Start, error: LLMError, policy: RetryPolicy, now: float, crowded: bool) -> Hold:
        self._strikes += 1
        asked, least = error.retry_after, 0.0
        if asked is None:
            wait = policy.backoff(self._strikes)
            jitter = self._rng.uniform(0, wait / 10)
        else:
            if self._strikes > 1:  # the time said before was too short, or someone else takes what is free
                least = policy.backoff(self._strikes - 1)
            wait = max(least, min(asked, policy.wait_cap))
            jitter = self._rng.uniform(0, min(1.0, 0.02 + 0.01 * wait))
        measure: Measure | None = None
        if isinstance(error, RateLimitError) and not crowded:
            measure = "tokens" if _TOKENS.search(str(error)) else "requests"
            known = self._learned.get(measure)
            if known is not None and (left := known.confirmed(self.starts, start, now)) is not None:
                self._learned[measure], measure = left, None
        return Hold(
            again(error),
            until=now + wait + jitter,
            said=now + (wait if asked is None else asked),
            least=now + least,
            jitter=jitter,
            probing=not crowded and (asked is None or asked > policy.wait_cap),
            measure=measure,
            first=self._round,
            last=self._round,
            before=self.hold.first if self.hold is not None else self._round,
        )

    def _longer(self, hold: Hold, error: LLMError, policy: RetryPolicy, now: float) -> None:
        """Another call of those that went in before the hold was refused."""
        hold.unread = True
        if error.retry_after is None:
            return
        said = now + error.retry_after
        told = hold.error.retry_after is not None
        # two that differ by less than a second mean the same moment, and servers round up
        hold.said = min(hold.said, said) if told and abs(hold.said - said) < ROUNDING else max(hold.said, said)
        hold.until = max(hold.least, min(hold.said, now + policy.wait_cap)) + hold.jitter
        hold.probing = hold.probing and error.retry_after > policy.wait_cap
        hold.error = hold.error if told else again(error)

    def _read(self, hold: Hold, now: float) -> None:
        """Learns the rate, once the hold is over and most of those that were on their way have come back."""
        if not hold.unread:
            return
        hold.unread = False
        if hold.measure is None:
            return
        known = self._learned.get(hold.measure)
        if known is not None and (rate := tightened(known.rate, self.starts, hold.said)) is not None:
            self._learned[hold.measure] = Learned(rate, now)
            return
        accepted, back_at = self.starts.of_rounds(hold.first, hold.last), hold.said
        if not accepted:  # what was said before was too soon: the same window goes on
            hold.first, back_at = hold.before, max(hold.said, hold.least)
            accepted = self.starts.of_rounds(hold.first, hold.last)
        rate = learn_rate(accepted, back_at, hold.measure)
        if rate is None:
            hold.probing = True
        else:
            self._learned[hold.measure] = Learned(rate, now)

    def _passed(self, hold: Hold) -> None:
        hold.probing, self._probe = False, None
