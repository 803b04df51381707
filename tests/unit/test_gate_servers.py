"""The gate against servers that limit in different ways and say different things about it: fifty tasks of three calls
get through with the usual tries, in little more than the least time. In virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from registry.errors import RateLimitError
from registry.llm_types import ChatRequest
from registry.messages import LLMResult, Message
from registry.testing import ScriptedLLM
from tests.support.virtual_time import VirtualClock, run_virtually

TASKS, CALLS = 50, 3
LATENCY = 0.05


def exactly(left: float) -> float | None:
    return left


def not_at_all(left: float) -> float | None:
    return None


@dataclass
class ByTheClock:
    """`limit` calls in each stretch of `seconds` by the server's clock, which is `into` one when the first call comes;
    `others` take a share of it."""

    limit: int = 60
    seconds: float = 3.0
    into: float = 0.0
    told: Callable[[float], float | None] = exactly
    others: float = 0.0
    stretch: int = -1
    taken: int = 0

    def admit(self, now: float) -> None:
        at = now + self.into
        if self.stretch != at // self.seconds:
            self.stretch, self.taken = int(at // self.seconds), int(self.others * self.limit)
        if self.taken >= self.limit:
            raise RateLimitError("slow", retry_after=self.told((self.stretch + 1) * self.seconds - at))
        self.taken += 1


@dataclass
class Bucket:
    """A bucket of `size` calls that fills at so many a second."""

    rate: float
    size: int
    told: Callable[[float], float | None] = exactly
    full: float = -1.0
    at: float = 0.0

    def admit(self, now: float) -> None:
        self.full = self.size if self.full < 0 else min(self.size, self.full + (now - self.at) * self.rate)
        self.at = now
        if self.full < 1:
            raise RateLimitError("slow", retry_after=self.told((1 - self.full) / self.rate))
        self.full -= 1


SERVERS: dict[str, tuple[ByTheClock | Bucket, float, int]] = {  # server, least seconds, refusals after the first
    "by the clock": (ByTheClock(), 6.0, 0),
    "in the middle of a stretch": (ByTheClock(into=1.5), 4.5, 4),
    "at the end of a stretch": (ByTheClock(into=2.9), 3.1, 4),
    "whole seconds, rounded down": (ByTheClock(into=1.3, told=math.floor), 4.7, 8),
    "come back at once, always": (ByTheClock(into=1.3, told=lambda left: 0.0), 4.7, 8),
    "says nothing": (ByTheClock(into=1.3, told=not_at_all), 4.7, 8),
    "most of it taken by others": (ByTheClock(others=0.67), 21.0, 8),
    "sixty a minute": (ByTheClock(seconds=60.0, into=20.0), 100.0, 4),
    "sixty a minute, says nothing": (ByTheClock(seconds=60.0, into=20.0, told=not_at_all), 100.0, 14),
    "a bucket": (Bucket(20.0, 60), 4.5, 8),
    "a bucket, says nothing": (Bucket(20.0, 60, told=not_at_all), 4.5, 16),
    "a small bucket": (Bucket(5.0, 5), 29.0, 12),
}


@pytest.mark.parametrize("name", SERVERS)
def test_all_get_through(name: str) -> None:
    server, least, allowed = SERVERS[name]
    refused: list[float] = []

    async def answer(request: ChatRequest) -> str:
        now = asyncio.get_running_loop().time() - began[0]
        try:
            server.admit(now)
        except RateLimitError:
            refused.append(now)
            raise
        await asyncio.sleep(LATENCY)
        return "ok"

    async def main() -> float:
        llm = ScriptedLLM(answer, clock=VirtualClock())
        began.append(asyncio.get_running_loop().time())

        async def one() -> LLMResult:
            for _ in range(CALLS):
                result = await llm.chat([Message.user("q")])
            return result

        await asyncio.gather(*(one() for _ in range(TASKS)))  # raises what anyone ends with
        return asyncio.get_running_loop().time() - began[0]

    began: list[float] = []
    took = run_virtually(main())
    assert refused, "a server that refuses nobody shows nothing"
    assert sum(at > refused[0] + LATENCY for at in refused) <= allowed
    assert least - 1.5 * LATENCY <= took <= 1.35 * least + 1.5
