"""The gate: who is held, for how long, what a refusal teaches, and what never wedges it."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from registry.adapters.anthropic_messages import AnthropicLLM
from registry.adapters.openai_chat import OpenAIChatLLM
from registry.adapters.openai_responses import OpenAIResponsesLLM
from registry.errors import BadRequestError, LLMConnectionError, LLMError, OverloadedError, RateLimitError, UsageError
from registry.gate import ProviderGate, forget_gates, shared_gate
from registry.gate_limits import HORIZON, LOG_SIZE, Learned, Limits, Rate, Start, Starts, learn_rate, tightened
from registry.gate_rules import SPACING, Traffic
from registry.llm import LLM
from registry.llm_types import ChatRequest, Prepared
from registry.messages import LLMResult, Message, Usage
from registry.retry import RetryPolicy
from registry.testing import FakeClock, ScriptedLLM
from tests.support.scopes import Note
from tests.support.virtual_time import VirtualClock, run_virtually

ASK = [Message.user("q")]


def now() -> float:
    return asyncio.get_running_loop().time()


def gate_of(llm: LLM) -> ProviderGate:
    assert isinstance(llm.gate, ProviderGate)
    return llm.gate


def model(answer: Callable[[ChatRequest], Any], **attributes: Any) -> ScriptedLLM:
    llm = ScriptedLLM(answer, clock=VirtualClock())
    for name, value in attributes.items():
        setattr(llm, name, value)
    return llm


# Nothing known, nothing held


async def test_where_nothing_is_known_nobody_waits_and_no_lock_is_taken() -> None:
    llm = ScriptedLLM(["a", "b"], clock=FakeClock())
    gate_of(llm)._lock = None  # type: ignore[assignment]
    await llm.chat(ASK)
    await llm.chat(ASK)
    assert llm.clock.sleeps == []  # type: ignore[attr-defined]


def test_starts_are_forgotten() -> None:
    starts = Starts()
    for number in range(3 * LOG_SIZE):
        starts.add(Start(number / 1e6, 1, 0))
    assert len(starts) == LOG_SIZE
    starts.add(Start(HORIZON + 1.0, 1, 0))
    assert len(starts) == 1


@pytest.mark.parametrize("name", ["concurrency", "requests_per_minute", "tokens_per_minute"])
def test_a_limit_that_nobody_passes_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 0"):
        Limits(**{name: 0})


# One gate per address, key and model


def test_models_share_the_gate_of_their_address_key_and_model() -> None:
    at = "http://127.0.0.1:9"
    one = OpenAIChatLLM("m", base_url=f"{at}/v1", api_key="k1")
    same = [
        OpenAIChatLLM("m", base_url=f"{at}/v1/", api_key="k1"),
        OpenAIResponsesLLM("m", base_url=f"{at}/v1", api_key="k1"),
        AnthropicLLM("m", base_url=at.upper().replace("HTTP", "http"), api_key="k1"),
    ]
    others = [
        OpenAIChatLLM("m", base_url=f"{at}/v1", api_key="k2"),
        OpenAIChatLLM("m", base_url=f"{at}/v1"),
        OpenAIChatLLM("n", base_url=f"{at}/v1", api_key="k1"),
        OpenAIChatLLM("m", base_url="http://127.0.0.1:10/v1", api_key="k1"),
        OpenAIChatLLM("m", base_url=f"{at}/v1", api_key="k1", clock=FakeClock()),
    ]
    assert all(llm.gate is one.gate for llm in same)
    assert len({id(llm.gate) for llm in (one, *others)}) == 1 + len(others)
    assert one.scoped(Note()).gate is one.gate
    assert OpenAIChatLLM("m", api_key="k1").gate is OpenAIResponsesLLM("m", api_key="k1").gate
    assert OpenAIChatLLM("m", base_url="https://api.openai.com/v1", api_key="k1").gate is (
        OpenAIChatLLM("m", api_key="k1").gate
    )


def test_a_gate_lives_as_long_as_a_model_uses_it_or_something_was_learned() -> None:
    clock = FakeClock()

    async def ask(reply: Any) -> weakref.ref[ProviderGate]:
        llm = ScriptedLLM([reply], clock=clock)
        llm.retry, llm.gate = RetryPolicy(tries=1), shared_gate("http://a/v1", "k", "m", clock)
        with suppress(LLMError):
            await llm.chat(ASK)
        return weakref.ref(gate_of(llm))

    forgotten = asyncio.run(ask("ok"))
    gc.collect()
    assert forgotten() is None
    kept = asyncio.run(ask(RateLimitError("slow")))
    gc.collect()
    assert kept() is shared_gate("http://a/v1", "k", "m", clock)
    forget_gates()
    gc.collect()
    assert kept() is None


# A refusal holds everybody


def test_one_refusal_holds_all_and_they_come_back_one_by_one() -> None:
    starts: list[float] = []

    def answer(request: ChatRequest) -> Any:
        starts.append(now())
        return RateLimitError("slow", retry_after=7.0) if len(starts) == 1 else "ok"

    async def main() -> None:
        llm = model(answer)
        begin = now()
        await asyncio.gather(llm.chat(ASK), *(later(llm, n / 10) for n in range(1, 30)))
        assert starts[0] == begin
        assert begin + 7.0 <= starts[1] <= begin + 7.2
        assert len(starts) == 31
        assert all(SPACING <= after - before <= 1.5 * SPACING + 1e-9 for before, after in pairwise(starts[2:]))

    async def later(llm: LLM, wait: float) -> None:
        await asyncio.sleep(wait)
        await llm.chat(ASK)

    run_virtually(main())


def test_who_was_refused_goes_first() -> None:
    order: list[str] = []

    async def answer(request: ChatRequest) -> Any:
        order.append(request.messages[0].content)
        return RateLimitError("slow", retry_after=2.0) if len(order) <= 2 else "ok"

    async def main() -> None:
        llm = model(answer)
        early = [asyncio.create_task(llm.chat([Message.user(name)])) for name in ("a", "b")]
        await asyncio.sleep(0.5)
        late = [asyncio.create_task(llm.chat([Message.user(name)])) for name in ("c", "d")]
        await asyncio.gather(*early, *late)

    run_virtually(main())
    assert order == ["a", "b", "a", "b", "c", "d"]


async def test_a_wait_longer_than_the_total_fails_at_once_for_everybody() -> None:
    llm = ScriptedLLM([RateLimitError("come back in an hour", retry_after=3600.0), "ok"], clock=FakeClock())
    scope = Note()
    for _ in range(3):
        with pytest.raises(RateLimitError, match="an hour") as caught:
            await llm.scoped(scope).chat(ASK)
        assert caught.value.retry_after == 3600.0
    assert llm.clock.sleeps == []  # type: ignore[attr-defined]
    assert len(llm.requests) == 1
    # the two that were never sent cost nothing and are on no account
    assert (scope.reserved, scope.released_again, len(scope.records), scope.given_up) == (3, 2, 1, 0)
    llm.clock.now += 61.0  # type: ignore[attr-defined]
    assert (await llm.chat(ASK)).message.content == "ok"  # one a minute may see whether the hour was meant


def test_a_caller_that_waits_for_longer_than_the_total_ends_with_the_refusal() -> None:
    server: list[float] = []

    def answer(request: ChatRequest) -> Any:
        if server and now() < server[-1] + 60.0:
            return RateLimitError("one a minute", retry_after=server[-1] + 60.0 - now())
        server.append(now())
        return "ok"

    async def main() -> None:
        llm = model(answer, retry=RetryPolicy(total=200.0))
        scope = Note()
        bound = llm.scoped(scope)
        begin = now()
        results = await asyncio.gather(*(bound.chat(ASK) for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(result, LLMResult) for result in results) == 4
        refused = [result for result in results if not isinstance(result, LLMResult)]
        assert all(type(error) is RateLimitError and "one a minute" in str(error) for error in refused)
        assert len({id(error) for error in refused}) == len(refused)
        assert now() - begin <= 200.0
        assert scope.reserved == len(scope.records) + scope.released_again
        assert (gate_of(llm).waiting, gate_of(llm).in_flight) == (0, 0)

    run_virtually(main())


def test_a_place_in_line_behind_others_does_not_count_towards_the_total() -> None:
    async def answer(request: ChatRequest) -> Any:
        await asyncio.sleep(100.0)
        return LLMConnectionError("broke off") if request.messages[0].content == "9" and tries.pop() else "ok"

    tries = [False, True]

    async def main() -> None:
        llm = model(answer, limits=Limits(concurrency=1), retry=RetryPolicy(total=150.0))
        results = await asyncio.gather(*(llm.chat([Message.user(str(n))]) for n in range(10)))
        assert len(results) == 10

    run_virtually(main())


def test_the_time_that_a_stream_works_does_not_count_towards_the_total() -> None:
    class Slow(ScriptedLLM):
        async def open_stream(self, prepared: Prepared) -> Any:
            async for chunk in super().open_stream(prepared):
                yield chunk
                if len(self.requests) == 1 and chunk.result is None:
                    await asyncio.sleep(400.0)
                    raise LLMConnectionError("broke off")

    async def main() -> None:
        llm = Slow(["a long answer that breaks off", "whole"], clock=VirtualClock())
        chunks = [chunk async for chunk in llm.stream_chat(ASK)]
        assert chunks[-1].result is not None
        assert chunks[-1].result.message.content == "whole"

    run_virtually(main())


async def test_a_broken_connection_is_its_callers_own_wait() -> None:
    llm = ScriptedLLM([LLMConnectionError("lost"), "ok"], clock=FakeClock())
    await llm.chat(ASK)
    assert gate_of(llm).hold(LLMConnectionError("lost"), 3.0) == 3.0
    assert gate_of(llm).hold(RateLimitError("slow"), 3.0) == 0.0
    assert gate_of(llm).hold(OverloadedError("busy"), 3.0) == 0.0
    assert gate_of(llm).traffic.hold is None


def test_without_a_hint_waits_double_up_to_the_cap_and_one_call_tries() -> None:
    starts: list[float] = []

    def answer(request: ChatRequest) -> Any:
        starts.append(now())
        return RateLimitError("slow") if now() < began[0] + 22.0 else "ok"

    began: list[float] = []

    async def main() -> None:
        began.append(now())
        llm = model(answer, retry=RetryPolicy(wait_cap=4.0))
        await asyncio.gather(*(llm.chat(ASK) for _ in range(10)))

    run_virtually(main())
    probes = [start for start in starts if start > began[0]]
    assert starts.count(began[0]) == 10
    gaps = [after - before for before, after in pairwise([began[0], *probes])]
    waits = [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0]  # 23.5 s and some jitter
    assert all(least <= gap <= 1.1 * least + 0.01 for gap, least in zip(gaps[:8], waits, strict=True))
    assert all(gap < 0.1 for gap in gaps[8:])


def test_a_wait_at_the_gate_is_no_time_of_the_models() -> None:
    async def answer(request: ChatRequest) -> str:
        await asyncio.sleep(2.0)
        return "ok"

    async def main() -> None:
        scope = Note()
        llm = model(answer, limits=Limits(concurrency=1)).scoped(scope)
        await asyncio.gather(*(llm.chat(ASK) for _ in range(3)))
        assert [record.elapsed for record in scope.records] == [2.0, 2.0, 2.0]
        assert [after.started_at - before.started_at for before, after in pairwise(scope.records)] == [2.0, 2.0]

    run_virtually(main())


# What a refusal teaches


def test_an_idle_time_before_the_burst_does_not_make_the_rate_too_low() -> None:
    early = [Start(0.0, 1, 0) for _ in range(30)]
    burst = [Start(10.0 + n / 1000, 1, 0) for n in range(60)]
    rate = learn_rate([*early, *burst], 13.0, "requests")
    assert rate == Rate(60, 3.0)


def test_nothing_accepted_teaches_nothing() -> None:
    assert learn_rate([], 5.0, "requests") is None


def test_a_refusal_about_tokens_teaches_tokens() -> None:
    traffic = Traffic()
    begin = 1000.0
    accepted = [traffic.started(begin + n / 100, 500) for n in range(4)]
    refused = traffic.started(begin + 1.0, 500)
    error = RateLimitError("Rate limit reached on tokens per min (TPM)", retry_after=9.0)
    traffic.refused(refused, error, RetryPolicy(), begin + 1.0, 4)
    later = begin + 11.0
    assert traffic.wait(later, Limits(), 500, 0) == 0.0
    again = [traffic.started(later + n, 1000) for n in range(2)]
    assert traffic.wait(later + 2.0, Limits(), 100, 0) == pytest.approx(8.0, abs=0.6)
    assert len(accepted) + len(again) == len(traffic.starts)


def test_a_learned_limit_is_relaxed_and_given_up() -> None:
    learned = Learned(Rate(60, 3.0), at=0.0)
    assert learned.now(29.0) == Rate(60, 3.0)
    assert seconds_of(learned, 31.0) == pytest.approx(3.0 / 1.1)
    assert seconds_of(learned, 479.0) == 1.5
    assert learned.now(481.0) is None


@pytest.mark.parametrize(("seconds", "every"), [(0.0, 10.0), (1.0, 10.0), (3.0, 30.0), (60.0, 60.0)])
def test_a_short_limit_is_tried_sooner(seconds: float, every: float) -> None:
    learned = Learned(Rate(60, seconds), at=0.0)
    assert learned.now(every - 0.1) == Rate(60, seconds)
    assert seconds_of(learned, every + 0.1) == seconds / 1.1


def test_a_limit_that_was_relaxed_too_far_goes_a_step_back() -> None:
    learned = Learned(Rate(2, 3.0), at=0.0)
    for number in range(8):  # ever more slowly, up to 16 times
        every = 30.0 * min(2**number, 16)
        assert learned.now(learned.at + every - 1) == learned.rate
        now = learned.at + 2 * every + 1  # two steps
        sent = starts_at(now - 2.48, now - 2.0)  # it is free after 2.48 s, not yet after two steps: one was right
        left = learned.confirmed(sent, Start(now, 1, 0), now)
        assert left is not None
        assert (left.at, left.rate.seconds) == (now, pytest.approx(learned.rate.seconds / 1.1))
        learned = Learned(Rate(2, 3.0), left.at, left.every)


def test_a_refusal_that_the_limit_as_it_was_would_have_met_too_is_another_limit() -> None:
    learned = Learned(Rate(2, 3.0), at=0.0)
    relaxed, sent = 31.0, starts_at(27.0, 30.0)
    assert learned.confirmed(sent, Start(relaxed, 1, 0), relaxed) is None
    assert learned.confirmed(starts_at(19.0, 19.5), Start(20.0, 1, 0), 20.0) is None  # it was not relaxed yet


def test_a_limit_that_was_kept_and_refused_takes_less_in_its_time() -> None:
    sent = starts_at(*(n / 50 for n in range(150)))  # 50 a second, for 3 seconds
    known = Rate(50, 1.0)
    assert tightened(known, sent, back_at=3.2) == Rate(39, 1.0)  # since 2.2
    assert tightened(Rate(50, 1.0, "tokens"), sent, back_at=3.2) == Rate(39, 1.0, "tokens")
    assert tightened(known, sent, back_at=9.0) is None  # the provider speaks of a longer time
    assert tightened(Rate(30, 1.0), sent, back_at=3.2) is None  # it was not kept


def test_a_known_limit_that_is_refused_is_learned_from_its_own_time() -> None:
    traffic, policy = Traffic(), RetryPolicy()
    sent = [traffic.started(100 + n / 1000, 1) for n in range(51)]
    traffic.refused(sent.pop(), RateLimitError("slow down", retry_after=0.95), policy, 100.05, 50)
    for start in sent:
        traffic.ended(start, 100.2, well=True)
    now = 102.0
    assert traffic.wait(now, Limits(), 1, 0) == 0.0  # 50 a second
    for _ in range(8 * 40):  # steady work just below it, then a refusal all the same
        traffic.ended(traffic.started(now, 1), now, well=True)
        now += 1 / 40
    traffic.refused(traffic.started(now, 1), RateLimitError("slow down", retry_after=0.11), policy, now, 0)
    begun = now = now + 1.2
    taken = 0
    while traffic.wait(now, Limits(), 1, 0) == 0.0:
        traffic.started(now, 1)
        taken, now = taken + 1, now + 0.01
    assert taken == 35  # of those 40 a second in the 0.89 seconds before, not the hundreds of all that time
    assert now < begun + 1


def seconds_of(learned: Learned, now: float) -> float:
    rate = learned.now(now)
    assert rate is not None
    return rate.seconds


def starts_at(*times: float) -> Starts:
    starts = Starts()
    for at in times:
        starts.add(Start(at, 1, 0))
    return starts


def test_a_refusal_about_concurrency_limits_the_calls_in_flight_not_the_rate() -> None:
    inside = most = refused = 0

    async def answer(request: ChatRequest) -> Any:
        nonlocal inside, most, refused
        if inside >= 8:
            refused += 1
            return RateLimitError("Too many concurrent requests")
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(2.0)
        inside -= 1
        return "ok"

    async def main() -> None:
        begin = now()
        llm = model(answer)
        await asyncio.gather(*(llm.chat(ASK) for _ in range(40)))
        assert now() - begin < 11.5  # five turns of two seconds

    run_virtually(main())
    assert (most, refused) == (8, 32)


def test_an_overload_halves_the_calls_in_flight_and_successes_widen_them() -> None:
    inside = 0
    widths: list[int] = []

    async def answer(request: ChatRequest) -> Any:
        nonlocal inside
        if began[0] == now():
            return OverloadedError("busy", retry_after=1.0)
        inside += 1
        widths.append(inside)
        await asyncio.sleep(1.0)
        inside -= 1
        return "ok"

    began: list[float] = []

    async def main() -> None:
        began.append(now())
        llm = model(answer)
        await asyncio.gather(*(llm.chat(ASK) for _ in range(32)))
        await asyncio.gather(*(llm.chat(ASK) for _ in range(300)))

    run_virtually(main())
    assert max(widths[:16]) == 16  # of 32 that were refused together
    assert 16 < max(widths[:100]) < 32
    assert max(widths) > max(widths[:100])


# What never wedges it


@pytest.mark.parametrize("turns", range(12))
async def test_a_caller_cancelled_anywhere_leaves_its_place(turns: int) -> None:
    llm = ScriptedLLM(lambda request: "ok", clock=FakeClock())
    llm.limits = Limits(concurrency=1)
    tasks = [asyncio.create_task(llm.chat(ASK)) for _ in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(5):
        assert (await llm.chat(ASK)).message.content == "ok"
    assert tasks[2].result().message.content == "ok"
    assert (gate_of(llm).in_flight, gate_of(llm).waiting) == (0, 0)


def test_the_first_in_line_may_go() -> None:
    async def answer(request: ChatRequest) -> Any:
        return "ok" if len(llm.requests) > 1 else RateLimitError("slow", retry_after=5.0)

    llm = model(answer)

    async def main() -> None:
        tasks = [asyncio.create_task(llm.chat(ASK)) for _ in range(1)]
        await asyncio.sleep(1.0)
        tasks += [asyncio.create_task(llm.chat(ASK)) for _ in range(3)]
        await asyncio.sleep(1.0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["CancelledError", *["LLMResult"] * 3]

    run_virtually(main())


def test_an_unforeseen_error_gives_the_place_back() -> None:
    async def main() -> None:
        llm = model(lambda request: ZeroDivisionError(), limits=Limits(concurrency=1))
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await llm.chat(ASK)
        assert gate_of(llm).in_flight == 0

    run_virtually(main())


async def test_a_stream_that_is_left_gives_its_place_back() -> None:
    llm = ScriptedLLM(["a long text, in several pieces", "ok"], clock=FakeClock())
    llm.limits = Limits(concurrency=1)
    stream = llm.stream_chat(ASK)
    await anext(stream)
    assert gate_of(llm).in_flight == 1
    await stream.aclose()
    assert (await llm.chat(ASK)).message.content == "ok"


def test_several_loops_one_after_another() -> None:
    """A hold that began on one loop ends on the next."""
    llm = ScriptedLLM([RateLimitError("slow", retry_after=0.2), *["ok"] * 6])
    llm.limits = Limits(concurrency=1)

    async def step() -> list[str]:
        results = await asyncio.gather(llm.chat(ASK), llm.chat(ASK), return_exceptions=True)
        return [result.message.content if isinstance(result, LLMResult) else str(result) for result in results]

    async def broken_off() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await step()

    asyncio.run(broken_off())
    assert [asyncio.run(step()) for _ in range(3)] == [["ok", "ok"]] * 3
    assert (gate_of(llm).in_flight, gate_of(llm).waiting) == (0, 0)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_was_closed_with_calls_inside_and_in_line() -> None:
    llm = ScriptedLLM(lambda request: asyncio.sleep(3600, "late") if len(llm.requests) == 1 else "ok")
    llm.limits = Limits(concurrency=1)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(llm.chat(ASK)) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0.01))
    assert (gate_of(llm).in_flight, gate_of(llm).waiting) == (1, 2)
    loop.close()
    assert asyncio.run(asyncio.wait_for(llm.chat(ASK), 5)).message.content == "ok"
    assert (gate_of(llm).in_flight, gate_of(llm).waiting) == (0, 0)
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_loops_in_several_threads_share_the_limit() -> None:
    inside = most = 0
    lock = threading.Lock()

    async def answer(request: ChatRequest) -> str:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        await asyncio.sleep(0.005)
        with lock:
            inside -= 1
        return "ok"

    llm = ScriptedLLM(answer)
    llm.limits = Limits(concurrency=3)
    done: list[int] = []

    async def many() -> int:
        async with asyncio.timeout(30):
            return len(await asyncio.gather(*(llm.chat(ASK) for _ in range(25))))

    threads = [threading.Thread(target=lambda: done.append(asyncio.run(many()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert done == [25] * 4
    assert most == 3
    assert (gate_of(llm).in_flight, gate_of(llm).waiting) == (0, 0)


# Beside the gate


async def test_what_a_model_taught_is_shared_by_its_copies() -> None:
    llm = ScriptedLLM([], context_size=100_000)
    one, other = llm.scoped(Note()), llm.scoped(Note())
    one.learn_context_size(8_192)
    one.refuse("tools")
    assert (llm.context_size, other.context_size, other.refuses("tools")) == (8_192, 8_192, True)
    llm.context_size = 4_000
    assert (llm.context_size, other.context_size) == (4_000, 8_192)


async def test_an_error_that_is_no_refusal_holds_nobody() -> None:
    llm = ScriptedLLM([BadRequestError("no"), "ok"], clock=FakeClock())
    with pytest.raises(LLMError):
        await llm.chat(ASK)
    await llm.chat(ASK)
    assert llm.clock.sleeps == []  # type: ignore[attr-defined]


async def test_tokens_are_corrected_by_what_the_call_used() -> None:
    llm = ScriptedLLM([LLMResult(Message.assistant("ok"), Usage(7, 3), "stop", "m")], clock=FakeClock())
    llm.limits = Limits(tokens_per_minute=1_000_000)
    await llm.chat(ASK, max_tokens=500)
    assert gate_of(llm).traffic.starts.last(1).tokens == 10
