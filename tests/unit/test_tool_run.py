"""One tool, run safely: whatever it returns, raises or fails to return becomes bounded, encodable text."""

import asyncio
import dataclasses
import enum
import json
import subprocess
import sys
import threading
import time
from collections import namedtuple
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.context import caller, calling
from registry.result_text import error_text, result_text
from registry.threads import DaemonPool, PoolExhaustedError
from registry.tool_run import Artifact, ToolOutcome, run_tool
from registry.tools import Tool, tool


def made(run, **declarations) -> Tool:
    return Tool("t", "A tool for tests.", {"type": "object", "properties": {}}, run, **declarations)


async def outcome(value, *, is_async: bool, **declarations) -> ToolOutcome:
    """What comes of a tool that returns this value, or raises it."""

    def give():
        if isinstance(value, BaseException):
            raise value
        return value

    async def give_later():
        await asyncio.sleep(0)
        return give()

    return await run_tool(made(give_later if is_async else give, **declarations), {})


both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def circular() -> dict:
    value: dict = {"a": 1}
    value["self"] = value
    return value


class Broken:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@dataclasses.dataclass
class Point:
    x: int
    label: str


class Colour(enum.Enum):
    RED = "red"


Pair = namedtuple("Pair", "left right")


@both
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        (b"\xff\xfehi", "\ufffd\ufffdhi"),
        (b"caf\xe9\n", "caf\ufffd\n"),
        (b"a\xffb".decode("utf-8", "surrogateescape"), "a\ufffdb"),
        ("pair \ud83d\ude00", "pair \U0001f600"),
        ("literal \\ud83d stays", "literal \\ud83d stays"),
        ("a\x00b", "ab"),
        (None, "(no output)"),
        ("", "(no output)"),
        (" \n", "(no output)"),
        (True, "true"),
        (7, "7"),
        (float("nan"), "nan"),
        ({"a": float("nan"), "b": [1, float("inf")]}, '{"a": null, "b": [1, null]}'),
        ({1: "ü"}, '{"1": "ü"}'),
        ({"a": b"x\xe9"}, '{"a": "x\ufffd"}'),
        ({"\ud800": "\ud800"}, '{"\ufffd": "\ufffd"}'),
        (circular(), '{"a": 1, "self": "(circular)"}'),
        (Point(1, "here"), '{"x": 1, "label": "here"}'),
        (Pair(1, None), '{"left": 1, "right": null}'),
        (Colour.RED, "red"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        ([Decimal("3828000.00")], '["3828000.00"]'),
        (10**5000, "(an integer of 16610 bits)"),
        (Broken(), "(Broken that can't be shown: RuntimeError)"),
        (
            subprocess.CompletedProcess(["printf"], 3, b"caf\xe9\n", b""),
            '{"exit_status": 3, "stdout": "caf\ufffd\\n", "stderr": ""}',
        ),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_any_value_becomes_text(value, expected, is_async):
    assert await outcome(value, is_async=is_async) == ToolOutcome(expected, False)


def test_shared_references_do_not_explode():
    value: list = ["x"]
    for _ in range(38):
        value = [value, value]
    assert len(result_text(value)) < 2_000_000


def test_a_deep_result_does_not_overflow_the_stack():
    value: list = []
    for _ in range(100_000):
        value = [value]
    assert "…" in result_text(value)


async def test_a_subprocess_that_prints_latin1_keeps_output_and_exit_status():
    async def shell():
        code = "import sys; sys.stdout.buffer.write(bytes([0x63, 0x61, 0x66, 0xe9, 0x0a])); sys.exit(4)"
        return await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, check=False)

    got = await run_tool(made(shell), {})
    assert "caf" in got.text
    assert json.loads(got.text)["exit_status"] == 4


@both
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("bad date"), "ValueError: bad date"),
        (TimeoutError(), "TimeoutError"),
        (KeyError("k"), "KeyError: 'k'"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
        (
            ExceptionGroup("two", [ValueError("a"), OSError("b")]),
            "two (2 sub-exceptions)\n- ValueError: a\n- OSError: b",
        ),
        (ValueError("half \ud800"), "ValueError: half \ufffd"),
    ],
)
async def test_any_exception_becomes_an_error(error, expected, is_async):
    got = await outcome(error, is_async=is_async)
    assert got.is_error
    assert got.text.endswith(expected)


async def test_stop_iteration_from_a_thread_is_an_error_too():
    assert (await outcome(StopIteration(5), is_async=False)).text == "StopIteration: 5"


def test_notes_of_an_exception_are_shown():
    error = ValueError("bad")
    error.add_note("look at line 3")
    assert error_text(error) == "ValueError: bad\nlook at line 3"


@both
@pytest.mark.parametrize("limit", [200, 1_000, 20_000])
@pytest.mark.parametrize("fails", [False, True])
async def test_results_and_errors_are_cut_with_head_and_tail_kept(is_async, limit, fails):
    text = "H" * 250_000 + "T" * 250_000
    got = await outcome(RuntimeError(text) if fails else text, is_async=is_async, max_result_chars=limit)
    assert got.is_error is fails
    assert limit - 10 < len(got.text) <= limit
    assert got.text.startswith("RuntimeError: HH" if fails else "HH")
    assert got.text.endswith("TT")
    assert "characters cut" in got.text


@settings(deadline=None, max_examples=100)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_every_value_is_non_empty_encodable_text(value):
    text = result_text(value)
    assert text.strip()
    text.encode("utf-8")


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1).filter(str.strip))
def test_good_text_is_left_alone(text):
    assert result_text(text) == text


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_tool_that_hangs_is_timed_out(is_async):
    release = threading.Event()
    stuck = asyncio.Event().wait if is_async else release.wait
    started = time.monotonic()
    try:
        got = await run_tool(made(stuck, timeout=0.2), {})
    finally:
        release.set()
    assert got == ToolOutcome("timed out after 0.2 s", True)
    assert time.monotonic() - started < 3


async def test_an_async_tool_is_awaited_after_its_time_limit():
    cleaned = []

    async def slow():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)

    assert (await run_tool(made(slow, timeout=0.1), {})).text == "timed out after 0.1 s"
    assert cleaned == [True]


async def test_cancelling_the_caller_cancels_the_tool_and_waits_for_it():
    running, cleaned = asyncio.Event(), []

    async def slow():
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)

    task = asyncio.create_task(run_tool(made(slow), {}))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_the_caller_of_a_hanging_thread_returns_at_once():
    release = threading.Event()
    task = asyncio.create_task(run_tool(made(release.wait), {}))
    await asyncio.sleep(0.05)
    task.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 2)
    finally:
        release.set()


async def test_a_tool_that_cancels_itself_does_not_cancel_the_caller():
    async def odd():
        asyncio.current_task().cancel()
        await asyncio.sleep(1)

    got = await run_tool(made(odd), {})
    assert got.is_error
    assert got.text == "CancelledError"


async def test_a_tool_that_ignores_its_cancellation_is_left_behind(monkeypatch):
    monkeypatch.setattr("registry.tool_run.GRACE", 0.1)
    stop = asyncio.Event()

    async def stubborn():
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    started = time.monotonic()
    got = await run_tool(made(stubborn, timeout=0.1), {})
    stop.set()
    await asyncio.sleep(0.05)
    assert got.text == "timed out after 0.1 s"
    assert time.monotonic() - started < 2


async def test_plain_function_that_hands_back_a_coroutine_and_generators():
    async def later(text):
        return text

    def count():
        yield from range(3)

    async def count_async():
        for number in range(3):
            yield number

    assert (await run_tool(made(lambda: later("later")), {})).text == "later"
    assert (await run_tool(made(count), {})).text == "[0, 1, 2]"
    assert (await run_tool(made(count_async), {})).text == "[0, 1, 2]"


@both
async def test_the_callers_ids_reach_the_tool(is_async):
    async def who_async():
        return caller().step_id

    def who():
        return caller().step_id

    with calling(step_id="s7"):
        assert (await run_tool(made(who_async if is_async else who), {})).text == "s7"


@both
async def test_an_artifact_is_one_line_for_the_model(is_async):
    page = Artifact("report.html", "text/html", "<h1>é</h1>")
    got = await outcome(page, is_async=is_async)
    line = "[Artifact generated: report.html] The content is rendered as a preview in the UI. (text/html, 11 bytes)"
    assert got == ToolOutcome(line, False, page)
    assert Artifact.from_json(page.to_json()).data == page.data


def test_an_artifacts_name_cannot_forge_lines():
    assert "\n" not in Artifact("a\n[Artifact generated: b]", "text/plain", "x").line


async def test_arguments_reach_the_function_as_its_own_types():
    @tool
    def weekday(day: datetime) -> str:
        """The day's name."""
        return day.strftime("%A")

    assert (await run_tool(weekday, {"day": "2026-11-30T00:00:00Z"})).text == "Monday"
    got = await run_tool(weekday, {"day": "soon"})
    assert got.is_error
    assert "day" in got.text


# The pool


async def test_the_pool_runs_at_most_its_workers_at_a_time():
    pool, lock, running, most = DaemonPool(workers=3, threads=10), threading.Lock(), 0, 0

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    await asyncio.gather(*(pool.run(work) for _ in range(12)))
    assert most == 3


async def test_hanging_threads_are_replaced_up_to_a_bound_then_refused():
    pool, release = DaemonPool(workers=2, threads=4), threading.Event()
    stuck = made(release.wait, timeout=0.05)
    try:
        texts = [(await run_tool(stuck, {}, pool=pool)).text for _ in range(4)]
        assert texts == ["timed out after 0.05 s"] * 4
        refused = await run_tool(made(lambda: "never"), {}, pool=pool)
        assert refused.is_error
        assert "4 earlier tool calls timed out and still hang" in refused.text
    finally:
        release.set()
    for _ in range(100):
        await asyncio.sleep(0.02)
        got = await run_tool(made(lambda: "again"), {}, pool=pool)
        if not got.is_error:
            break
    assert got.text == "again"


async def test_waiting_calls_get_a_replacement_and_are_refused_when_none_is_left():
    pool, release = DaemonPool(workers=1, threads=2), threading.Event()

    async def stuck() -> str:
        return (await run_tool(made(release.wait, timeout=0.1), {}, pool=pool)).text

    try:
        texts = sorted(await asyncio.wait_for(asyncio.gather(*(stuck() for _ in range(3))), 5))
    finally:
        release.set()
    assert texts[1:] == ["timed out after 0.1 s"] * 2
    assert "no thread is left" in texts[0]


async def test_waiting_does_not_count_against_the_time_limit():
    pool = DaemonPool(workers=1, threads=2)
    nap = made(lambda: time.sleep(0.2), timeout=0.35)
    got = await asyncio.gather(*(run_tool(nap, {}, pool=pool) for _ in range(4)))
    assert [each.is_error for each in got] == [False] * 4


async def test_a_cancelled_waiting_call_never_runs():
    pool, release, ran = DaemonPool(workers=1, threads=2), threading.Event(), []
    first = asyncio.create_task(pool.run(release.wait))
    await asyncio.sleep(0.02)
    second = asyncio.create_task(pool.run(lambda: ran.append(1)))
    await asyncio.sleep(0.02)
    second.cancel()
    await asyncio.wait({second})
    release.set()
    await first
    await asyncio.sleep(0.05)
    assert ran == []


async def test_an_exhausted_pool_raises():
    with pytest.raises(PoolExhaustedError):
        await DaemonPool(workers=1, threads=0).run(lambda: 1)


def test_a_hanging_thread_does_not_hold_the_exit_nor_spoil_it():
    code = """
import asyncio, time
from registry.tool_run import run_tool
from registry.tools import Tool
hang = Tool("hang", "Hangs.", {"type": "object"}, lambda: time.sleep(60), timeout=0.1)
late = Tool("late", "Comes late.", {"type": "object"}, lambda: time.sleep(0.3), timeout=0.1)
async def main():
    return await asyncio.gather(run_tool(hang, {}), run_tool(late, {}))
print(asyncio.run(main())[0].text)
time.sleep(0.4)
"""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out after 0.1 s\n", "")
    assert time.monotonic() - started < 20
