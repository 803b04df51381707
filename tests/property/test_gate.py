"""The gate under random limits, latencies, arrivals and cancellations: what may never happen, and what always does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from registry.errors import LLMConnectionError, OverloadedError, RateLimitError
from registry.gate import ProviderGate
from registry.gate_limits import MINUTE, PATIENCE, Limits
from registry.gate_rules import SPACING
from registry.llm_types import ChatRequest
from registry.messages import LLMResult, Message, Usage
from registry.retry import RetryPolicy
from registry.testing import ScriptedLLM
from tests.support.rate_limit import Window
from tests.support.virtual_time import VirtualClock, run_virtually

PATIENT = RetryPolicy(tries=1_000, total=1e9)


@dataclass
class Server:
    """A model that takes a while, and notes what happens."""

    latencies: list[float]
    starts: list[float] = field(default_factory=list)
    callers: list[str] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0

    def model(self, limits: Limits = Limits(), retry: RetryPolicy = PATIENT) -> ScriptedLLM:  # noqa: B008 - frozen
        llm = ScriptedLLM(self.answer, clock=VirtualClock())
        llm.limits, llm.retry = limits, retry
        return llm

    def admit(self, now: float) -> None:
        """Raises the refusal, where there is one."""

    async def answer(self, request: ChatRequest) -> str:
        now = asyncio.get_running_loop().time()
        number = len(self.starts)
        self.starts.append(now)
        self.callers.append(request.messages[0].content)
        try:
            self.admit(now)
        except (RateLimitError, OverloadedError):
            self.refused.append(now)
            raise
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(self.latencies[number % len(self.latencies)])
        finally:
            self.in_flight -= 1
        return "ok"


@dataclass
class Windowed(Server):
    """Takes `limit` calls in `seconds`: in windows that the first call opens, or in any stretch of time."""

    limit: int = 60
    seconds: float = 3.0
    sliding: bool = False
    told: bool = True

    def __post_init__(self) -> None:
        self.window = Window(self.limit, self.seconds, self.sliding)

    def admit(self, now: float) -> None:
        if (left := self.window.refused(now)) is not None:
            raise RateLimitError("slow down", retry_after=left if self.told else None)


def most_in(times: list[float], seconds: float) -> int:
    """The most times in any stretch of so many seconds."""
    return max((sum(start <= other < start + seconds for other in times) for start in times), default=0)


latencies = st.lists(st.floats(0.001, 30.0), min_size=1, max_size=5)


@given(
    concurrency=st.none() | st.integers(1, 6),
    requests=st.none() | st.integers(1, 10),
    latencies=latencies,
    arrivals=st.lists(st.integers(0, 10_000).map(lambda number: number / 100), min_size=1, max_size=30),
    cancelled=st.dictionaries(st.integers(0, 29), st.floats(0, 150), max_size=10),
)
@settings(deadline=None, max_examples=150)
def test_set_limits_hold_and_everybody_gets_in(
    concurrency: int | None,
    requests: int | None,
    latencies: list[float],
    arrivals: list[float],
    cancelled: dict[int, float],
) -> None:
    arrivals = sorted(arrivals)
    server = Server(latencies)

    async def main() -> list[object]:
        llm = server.model(Limits(concurrency, requests))

        async def one(number: int) -> None:
            await asyncio.sleep(arrivals[number])
            await llm.chat([Message.user(str(number))])

        tasks = [asyncio.create_task(one(number)) for number in range(len(arrivals))]
        for number, when in cancelled.items():
            if number < len(tasks):
                asyncio.get_running_loop().call_later(when, tasks[number].cancel)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(llm.gate, ProviderGate)
        assert (llm.gate.in_flight, llm.gate.waiting) == (0, 0)
        return results

    results = run_virtually(main())
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
    assert all(number in cancelled for number, result in enumerate(results) if result is not None)
    assert concurrency is None or server.most <= concurrency
    assert requests is None or most_in(server.starts, 60.0) <= requests
    order = [int(caller) for caller in server.callers]
    assert [arrivals[number] for number in order] == sorted(arrivals[number] for number in order)


@given(
    limit=st.integers(50, 3_000),
    bounds=st.lists(st.integers(2, 2_000), min_size=1, max_size=20),
    share=st.floats(0.1, 1.0),
)
@settings(deadline=None, max_examples=100)
def test_tokens_in_any_minute_stay_within_the_limit(limit: int, bounds: list[int], share: float) -> None:
    used: list[tuple[float, int]] = []

    async def answer(request: ChatRequest) -> LLMResult:
        assert request.max_tokens is not None
        tokens = max(1, int(request.max_tokens * share))
        used.append((asyncio.get_running_loop().time(), tokens))
        await asyncio.sleep(0.1)
        return LLMResult(Message.assistant("ok"), Usage(0, tokens), "stop", "m")

    async def main() -> float:
        llm = ScriptedLLM(answer, clock=VirtualClock())
        llm.limits, llm.retry = Limits(tokens_per_minute=limit), PATIENT
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(llm.chat([Message.user("q")], max_tokens=bound) for bound in bounds))
        return asyncio.get_running_loop().time() - began

    took = run_virtually(main())
    assert len(used) == len(bounds)  # one that is larger than the limit goes alone
    for start, _ in used:
        minute = [tokens for other, tokens in used if start <= other < start + 60.0]
        assert len(minute) == 1 or sum(minute) <= limit
    # at the worst two that follow each other take more than one minute's limit
    assert took <= 1 + 60.3 * (2 * sum(bounds) / limit if len(bounds) > 1 else 0)


@given(
    limit=st.integers(1, 80),
    seconds=st.floats(1.0, 30.0),
    sliding=st.booleans(),
    tasks=st.integers(1, 60),
    calls=st.integers(1, 4),
    latencies=st.lists(st.floats(0.001, 0.3), min_size=1, max_size=5),
    # never between a call's start and its arrival, which are one instant here: the server must have seen it
    cancelled=st.dictionaries(st.integers(0, 59), st.integers(0, 2_000).map(lambda n: n / 100 + 0.0032171), max_size=5),
)
@settings(deadline=None, max_examples=150)
def test_after_the_first_refusal_there_is_no_other(
    limit: int,
    seconds: float,
    sliding: bool,
    tasks: int,
    calls: int,
    latencies: list[float],
    cancelled: dict[int, float],
) -> None:
    server = Windowed(latencies, limit=limit, seconds=seconds, sliding=sliding)

    async def main() -> float:
        llm = server.model()
        began = asyncio.get_running_loop().time()

        async def one(number: int) -> None:
            for _ in range(calls):
                await llm.chat([Message.user(str(number))])

        made = [asyncio.create_task(one(number)) for number in range(tasks)]
        for number, when in cancelled.items():
            if number < tasks:
                asyncio.get_running_loop().call_later(when, made[number].cancel)
        results = await asyncio.gather(*made, return_exceptions=True)
        assert all(
            result is None or (isinstance(result, asyncio.CancelledError) and number in cancelled)
            for number, result in enumerate(results)
        )
        return asyncio.get_running_loop().time() - began

    took = run_virtually(main())
    if not server.refused:
        return
    first = server.refused[0]
    others = [refused for refused in server.refused if refused > first + SPACING]
    patience = min(MINUTE, PATIENCE * seconds)
    assert all(refused > first + patience for refused in others)  # what was learned is tried again, ever more rarely
    assert len(others) <= 2 + took / (4 * patience)
    later = [start for start in server.starts if start > first + SPACING]
    if not later:  # all others were cancelled
        return
    assert all(after - before >= SPACING - 1e-9 for before, after in pairwise(later))
    assert later[0] >= server.starts[0] + seconds
    windows = -(-tasks * calls // limit)  # and every one takes a little longer than it need
    assert took <= windows * (seconds + 1.0) * 1.1 + tasks * calls * (2 * SPACING + max(latencies))


@given(
    seconds=st.floats(0.5, 40.0),
    limit=st.integers(1, 40),
    tasks=st.integers(1, 60),
    sliding=st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_without_a_hint_one_call_at_a_time_finds_out(seconds: float, limit: int, tasks: int, sliding: bool) -> None:
    server = Windowed([0.05], limit=limit, seconds=seconds, sliding=sliding, told=False)

    async def main() -> None:
        llm = server.model()
        await asyncio.gather(*(llm.chat([Message.user(str(number))]) for number in range(tasks)))

    run_virtually(main())
    first = [refused for refused in server.refused if refused < server.starts[0] + SPACING]
    assert len(first) == max(0, tasks - limit)
    probes = [refused for refused in server.refused if refused >= server.starts[0] + SPACING]
    windows = -(-tasks // limit)
    assert len(probes) <= 8 * windows  # doubling from half a second


@given(
    outage=st.floats(0.0, 20.0),
    tasks=st.integers(1, 40),
    latencies=st.lists(st.floats(0.01, 2.0), min_size=1, max_size=4),
    broken=st.lists(st.booleans(), min_size=1, max_size=7),
)
@settings(deadline=None, max_examples=80)
def test_after_an_overload_or_a_broken_connection_everybody_gets_in(
    outage: float, tasks: int, latencies: list[float], broken: list[bool]
) -> None:
    @dataclass
    class Flaky(Server):
        until: float | None = None

        def admit(self, now: float) -> None:
            self.until = now + outage if self.until is None else self.until
            if now < self.until:
                raise OverloadedError
            if all(broken) is False and broken[len(self.starts) % len(broken)]:
                raise LLMConnectionError

    server = Flaky(latencies)

    async def main() -> None:
        llm = server.model()
        results = await asyncio.gather(*(llm.chat([Message.user(str(number))]) for number in range(tasks)))
        assert [result.message.content for result in results] == ["ok"] * tasks
        assert isinstance(llm.gate, ProviderGate)
        assert (llm.gate.in_flight, llm.gate.waiting) == (0, 0)

    run_virtually(main())
    if outage > 0 and not any(broken):
        calls = [start for start in server.starts if start > server.starts[0] + SPACING]
        assert all(after - before >= SPACING - 1e-9 for before, after in pairwise(calls))
