"""The command's parts without a process: safe output, the line editor, the picture, platforms without signals."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from executor.command import keyboard, out
from executor.command.keyboard import Keyboard, LineEditor, no_signal, on_signal
from executor.command.out import json_text, safe
from executor.command.table import Frame, picture
from executor.command.view import JobView, StepLine, account
from registry.messages import Event

# Output


@given(st.text(st.characters(codec=None)))
@settings(deadline=None)
def test_safe_text_cannot_steer(text: str) -> None:
    shown = safe(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert safe(shown) == shown


@given(st.recursive(st.text(st.characters(codec=None)) | st.integers(), st.lists, max_leaves=5))
@settings(deadline=None)
def test_json_is_the_same_data_and_cannot_steer(data: Any) -> None:
    text = json_text(data)
    assert json.loads(text) == data
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text)


def test_ordinary_text_is_left_alone() -> None:
    for text in ("zeile eins\nzwei\tdrei", "日本語 ✓ é", "\U0001f469\u200d\U0001f467", "\u05d0\u200f \u0639"):
        assert safe(text) == text


def test_a_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    assert not out.say("x")
    monkeypatch.setattr(sys, "stderr", None)
    assert not out.note("x")
    assert not out.on_terminal(sys.stdout)


# What is typed


@pytest.mark.parametrize(
    ("keys", "lines", "left"),
    [
        (b"one\rtwo\nthr", ["one", "two"], "thr"),
        (b"ab\x7f\x7f\x7fc\r", ["c"], ""),
        (b"one two  \x17three\r", ["onethree"], ""),
        (b"gone\x15kept\r", ["kept"], ""),
        (b"a\x1b[A\x1b[1;5Cb\x1bOPc\x1bxd\r", ["abcd"], ""),
        ("é日\r".encode(), ["é日"], ""),
        (b"\x00\x01a\x9b\r", ["a\ufffd"], ""),
    ],
)
def test_keys_become_lines(keys: bytes, lines: list[str], left: str) -> None:
    editor = LineEditor()
    got = [line for at in range(len(keys)) for line in editor.feed(keys[at : at + 1])]
    assert (got, editor.text) == (lines, left)
    assert LineEditor().feed(keys) == lines


class LoopWithoutWatching(asyncio.SelectorEventLoop):
    """As on platforms where loops watch neither signals nor terminals."""

    def add_signal_handler(self, *args: Any) -> None:
        raise NotImplementedError

    def remove_signal_handler(self, sig: int) -> bool:
        raise NotImplementedError

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        if fd == 0:
            raise NotImplementedError
        super().add_reader(fd, callback, *args)


def test_without_signal_handlers_of_the_loop_pythons_own_are_used() -> None:
    async def main() -> list[str]:
        told: list[str] = []
        loop = asyncio.get_running_loop()
        on_signal(loop, "SIGINT", lambda: told.append("interrupted"))
        on_signal(loop, "SIGNONE", lambda: told.append("never"))
        try:
            with Keyboard(told.append, fd=0) as keys:
                assert not keys.active
                keys.echo(False)
                assert not keys.quiet
                os.kill(os.getpid(), signal.SIGINT)
                async with asyncio.timeout(5):
                    while not told:
                        await asyncio.sleep(0.01)
        finally:
            no_signal(loop, "SIGINT")
            no_signal(loop, "SIGNONE")
        return told

    before = signal.getsignal(signal.SIGINT)
    try:
        with asyncio.Runner(loop_factory=LoopWithoutWatching) as runner:
            assert runner.run(main()) == ["interrupted"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_terminal_without_termios_is_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "termios", None)
    master, slave = os.openpty()
    told: list[str] = []
    try:
        with Keyboard(told.append, fd=slave) as keys:
            keys.echo(False)
            assert keys.active
            assert not keys.quiet
            os.write(master, b"more\n")
            async with asyncio.timeout(5):
                while not told:
                    await asyncio.sleep(0.01)
    finally:
        os.close(master)
        os.close(slave)
    assert told == ["more"]


async def test_in_the_background_the_terminal_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyboard, "_in_foreground", lambda fd: False)
    master, slave = os.openpty()
    told: list[str] = []
    try:
        with Keyboard(told.append, fd=slave) as keys:
            keys.echo(False)
            assert not keys.quiet
            os.write(master, b"x\n")
            await asyncio.sleep(0.05)
    finally:
        os.close(master)
        os.close(slave)
    assert told == []


# The picture

STATUSES = ("pending", "running", "waiting", "completed", "failed", "skipped", "cancelled")
wide = st.text(st.sampled_from("ab \n\x1b\u202e日é✓"), max_size=60)


@st.composite
def views(draw: st.DrawFn) -> JobView:
    steps = {}
    for number in range(draw(st.integers(0, 40))):
        status = draw(st.sampled_from(STATUSES))
        started = None if status == "pending" else 1.0
        step = StepLine(f"s{number}", draw(wide), draw(st.integers(1, 12)), status, draw(wide), draw(wide), started)
        step.duration = 12.5 if status in ("completed", "failed") else None
        step.cost = draw(st.sampled_from([None, "0", "0.00001", "12.345678"]))
        step.error = draw(wide)
        steps[step.id] = step
    return JobView(draw(wide), draw(st.integers(0, 3)), steps, draw(wide), draw(st.integers(0, 3)))


@given(views(), st.integers(1, 200), st.integers(1, 60), st.none() | wide, st.booleans())
@settings(deadline=None, max_examples=80)
def test_no_picture_is_larger_than_the_terminal(
    view: JobView, width: int, height: int, typed: str | None, unicode: bool
) -> None:
    view.phase = "executing"
    lines = picture(view, Frame(width, height, 3.0, 20.0, typed, unicode=unicode))
    assert len(lines) <= max(height, 6)
    for line in lines:
        assert cell_len(line.plain) <= max(1, width - 1)
        assert safe(line.plain) == line.plain
        assert "\n" not in line.plain


@given(views(), st.integers(40, 200))
@settings(deadline=None, max_examples=30)
def test_the_last_picture_has_every_step(view: JobView, width: int) -> None:
    view.phase = "executing"
    text = "\n".join(line.plain for line in picture(view, Frame(width, None, 3.0, 20.0, ended=True)))
    assert all(re.search(rf"\b{name}\b", text) for name in view.steps)


def test_what_runs_is_always_in_the_picture() -> None:
    steps = {f"s{n}": StepLine(f"s{n}", "do it", 1 + n // 20, "completed") for n in range(40)}
    steps["s3"].status = steps["s37"].status = "running"
    steps["s20"].status = "failed"
    text = "\n".join(line.plain for line in picture(JobView("executing", 1, steps), Frame(80, 10, 1.0, 1.0)))
    for name in ("s3", "s37", "s20"):
        assert re.search(rf"[▶✗] {name} ", text)
    assert "… and 34 completed" in text


def test_the_picture_of_a_diamond() -> None:
    steps = {
        "s1": StepLine("s1", "Collect", 1, "completed", "small", "", 1.0, 3.25, "0.0012"),
        "s2": StepLine("s2", "Left", 2, "running", "large", "web_fetch", 5.0),
        "s3": StepLine("s3", "Right", 2, "failed", "large", "", 5.0, 1.0, None, error="llm_error: no"),
        "s4": StepLine("s4", "Join", 3),
    }
    view = JobView("executing", 2, steps)
    lines = [line.plain.rstrip() for line in picture(view, Frame(72, 24, 9.0, 7.0, ""))]
    assert lines == [
        "⠴ executing · round 2 · 2 of 4 steps · 9 s",
        "gen   step                                      model    time      cost",
        "1 ─ ✓ s1 Collect                                small   3.2 s   $0.0012",
        "2 ┌ ▶ s2 Left ← web_fetch                       large   2.0 s",
        "  └ ✗ s3 Right ← llm_error: no                  large   1.0 s   unknown",
        "3 ─ · s4 Join",
        "type a line to add to the goal; Ctrl-C stops",
    ]
    steps["s4"].task = "Join " * 30
    plain = picture(view, Frame(72, 24, 9.0, 7.0, "more", unicode=False))
    assert all(line.plain.isascii() for line in plain)


# The fold of events


def event(channel: str, payload: dict[str, Any], step_id: str | None = None) -> Event:
    return Event("job_1", 1, 100.0, channel, step_id, payload)


def test_a_new_round_keeps_what_was_kept_and_renumbers_it() -> None:
    view = JobView()
    step = {"dependencies": [], "task": "t"}
    plan = {"round": 1, "repairs": [], "warnings": [], "kept": []}
    both = [{**step, "id": "a"}, {**step, "id": "b"}]
    view.apply(event("plan", {**plan, "steps": both, "generations": [["a", "b"]]}))
    view.apply(event("step_progress", {"status": "running", "model": "m"}, "b"))
    view.apply(event("step_progress", {"status": "completed", "model": "m", "duration": 2.0, "usage": None}, "b"))
    view.apply(event("plan", {**plan, "round": 2, "steps": both, "kept": ["b"], "generations": [["a"], ["b"]]}))
    assert (view.steps["b"].status, view.steps["b"].generation, view.steps["a"].status) == ("completed", 2, "pending")
    assert view.apply(event("answer", {"status": "delta", "content": "x"})) is None
    assert view.apply(event("answer", {"status": "reset"})) == "the answer begun is void"
    assert view.text == ""


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"cost_usd": "0.12", "partial": False, "unpriced_calls": 0}, "7 + 3 tokens, $0.12"),
        ({"cost_usd": None, "partial": True, "unpriced_calls": 1}, "7 + 3 tokens, cost unknown"),
        ({"cost_usd": "0.12", "partial": True, "unpriced_calls": 0},
         "7 + 3 tokens (some calls are not counted: their usage is unknown), $0.12 at least"),
    ],
)  # fmt: skip
def test_the_account(usage: dict[str, Any], told: str) -> None:
    done = {
        "status": "completed",
        "elapsed": 1.5,
        "usage": {"calls": 1, "input_tokens": 7, "output_tokens": 3, **usage},
    }
    line = f"completed in 1.5 s: 1 model call, {told}"
    assert account(done) == line
    assert account({**done, "error": "why"}) == f"{line}\ncause: why"
