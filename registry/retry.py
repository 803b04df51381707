"""How often, and for how long, a call is tried."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .errors import LLMError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Tries per call, the cap of one wait and the limit of all waits and tries together, in seconds.

    A reply that streams, and a place in line behind the calls of others, do not count towards `total`.
    """

    tries: int = 6
    wait_cap: float = 60.0
    total: float = 300.0
    first_wait: float = 0.5

    def wait(self, attempt: int, error: LLMError, rng: random.Random) -> float:
        """Seconds to wait after try number `attempt` (1 is the first): what the provider asks, else doubling; with
        jitter on top so that callers refused together don't come back together."""
        base = min(error.retry_after, self.wait_cap) if error.retry_after is not None else self.backoff(attempt)
        return base + rng.uniform(0, max(0.25, base / 2))

    def backoff(self, failures: int) -> float:
        """Seconds after so many failures in a row: doubling up to the cap."""
        return float(min(self.first_wait * 2 ** min(failures - 1, 32), self.wait_cap))


@dataclass(slots=True)
class Tries:
    """Where one call stands: the time (monotonic) by which its waits and tries must be over, the number of the try,
    and how often a refused parameter was dropped for it. `over`: a gate gave it up. `ticket`: its place in line."""

    deadline: float
    attempt: int = 1
    learned: int = 0
    over: bool = False
    ticket: int = 0
