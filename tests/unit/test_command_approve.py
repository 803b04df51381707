"""Asking on a terminal, without one: what is shown, which lines answer, what becomes of the others."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from agent.waits import ApprovalRequest, Decision, PendingCall
from executor.command import approve
from executor.command.approve import Asker, can_ask, decision_of, question
from executor.command.keyboard import Keyboard
from executor.command.out import safe
from executor.command.show import PlainView
from executor.command.table import MORE_ABOVE, Frame, picture, question_lines
from executor.command.view import PROMPT, JobView, StepLine
from registry.messages import Event


def pending(name: str = "send", step: str | None = "s1", **args: Any) -> PendingCall:
    return PendingCall(f"job/{step}/1/1/1", name, args, ApprovalRequest("it may change things", 7_200.0), step)


class View(PlainView):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, ...]] = []
        self.told: list[str] = []

    def ask(self, question: tuple[str, ...]) -> None:
        self.asked.append(question)

    def tell(self, line: str) -> None:
        self.told.append(line)


class Typing:
    """Stands for the keyboard: what is being typed, and whether it can be read."""

    def __init__(self, text: str = "", active: bool = True) -> None:
        self.text, self.active = text, active


def asker(text: str = "", active: bool = True) -> tuple[Asker, View, Typing]:
    view, keys = View(), Typing(text, active)
    made = Asker(view)
    made.listen(keys)  # type: ignore[arg-type]
    return made, view, keys


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


# What is typed


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("y", Decision(True)),
        (" YES ", Decision(True)),
        ("n", Decision(False)),
        ("no: too dear", Decision(False, "too dear")),
        ("N, ask Bob first", Decision(False, "ask Bob first")),
        ("yes but once", Decision(True, "but once")),
        ("not now", None),
        ("yesterday", None),
        ("also in French", None),
        ("", None),
        ("1", None),
    ],
)
def test_y_and_n_decide_and_may_say_why(line: str, decision: Decision | None) -> None:
    assert decision_of(line) == decision


async def test_the_next_line_answers() -> None:
    ask, view, _ = asker()
    assert not ask.takes("y")  # nothing is asked: a follow-up
    task = asyncio.create_task(ask(pending(to="bob")))
    await settled()
    assert view.asked == [question(pending(to="bob"))]
    assert ask.takes("hello")
    assert view.told == ["A call waits for your word: type y or n, and why if you like."]
    assert not task.done()
    assert ask.takes("no, wrong Bob")
    assert await task == Decision(False, "wrong Bob", "user")
    assert view.asked[1:] == [()]
    assert not ask.takes("hello")
    assert not ask.takes("no, in French")
    assert ask.takes("n")  # too late
    assert view.told[1:] == ["Not taken: no question stood when this was typed."]


async def test_calls_are_asked_for_one_after_the_other() -> None:
    ask, view, _ = asker()
    tasks = [asyncio.create_task(ask(pending(f"t{n}"))) for n in range(3)]
    await settled()
    assert [lines[0].split()[5].rstrip(";") for lines in view.asked] == ["t0"]
    assert ask.takes("y first")
    assert ask.takes("y")  # typed before the next question could be seen
    assert view.told == ["Not taken: no question stood when this was typed."]
    await settled()
    assert [task.done() for task in tasks] == [True, False, False]
    assert ask.takes("n second")
    await settled()
    assert ask.takes("y third")
    assert [(await task).reason for task in tasks] == ["first", "second", "third"]
    assert [bool(lines) for lines in view.asked] == [True, False] * 3


async def test_a_wait_that_ends_takes_its_question_back() -> None:
    ask, view, _ = asker()
    first, second, third = (asyncio.create_task(ask(pending(f"t{n}"))) for n in range(3))
    await settled()
    second.cancel()  # not even asked yet
    first.cancel()
    await settled()
    assert (first.cancelled(), second.cancelled(), third.done()) == (True, True, False)
    assert "t2" in view.asked[-1][0]
    assert ask.takes("y")
    assert (await third).approve
    assert [lines[0] for lines in view.asked if lines and "t1" in lines[0]] == []


async def test_a_line_that_was_begun_before_the_question_is_a_follow_up() -> None:
    ask, view, keys = asker("yes and ")
    task = asyncio.create_task(ask(pending()))
    await settled()
    assert view.told == ["The line you are typing is still a follow-up: end or erase it, then answer y or n."]
    ask.typed()
    assert not ask.takes("yes and in French")
    keys.text = ""
    ask.typed()
    assert ask.takes("y")
    assert (await task).approve


async def test_a_line_that_was_erased_is_none() -> None:
    ask, _, keys = asker("yes and ")
    task = asyncio.create_task(ask(pending()))
    await settled()
    keys.text = ""
    ask.typed()
    assert ask.takes("n")
    assert not (await task).approve


async def test_without_a_keyboard_or_after_its_end_calls_are_rejected_at_once() -> None:
    ask, view, _ = asker(active=False)
    why = "it needs a human's approval, and nobody can be asked: the terminal can't be read"
    assert await ask(pending()) == Decision(False, why, "nobody")
    ask, view, _ = asker()
    tasks = [asyncio.create_task(ask(pending(f"t{n}"))) for n in range(2)]
    await settled()
    ask.end()
    why = "it needs a human's approval, and nobody can be asked: the terminal's input has ended"
    assert [await task for task in tasks] == [Decision(False, why, "nobody")] * 2
    assert len(view.asked) == 2
    ask.end()


async def test_the_end_of_the_input_is_heard() -> None:
    read, write = os.pipe()
    ended = asyncio.Event()
    try:
        with Keyboard(lambda line: None, fd=read, on_end=ended.set):
            os.close(write)
            async with asyncio.timeout(5):
                await ended.wait()
    finally:
        os.close(read)


@pytest.mark.parametrize("closed", ["stdin", "stderr"])
def test_both_ends_must_be_a_terminal(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approve, "on_terminal", lambda stream: True)
    assert can_ask()
    monkeypatch.setattr(approve, "on_terminal", lambda stream: stream is not getattr(sys, closed))
    assert not can_ask()


# What is shown


def test_a_question_says_who_what_why_and_how_long() -> None:
    assert question(pending(to="bob", body="zwei\nzeilen ✓", count=2)) == (
        "step s1 wants to call send (it may change things); it waits 2 h at most",
        '  to: "bob"',
        '  body: "zwei\\nzeilen ✓"',
        "  count: 2",
    )
    assert question(pending(step=None))[0].startswith("the agent wants to call send")
    assert question(pending())[1:] == ("  no arguments",)


def test_secrets_are_not_shown() -> None:
    lines = "\n".join(question(pending(password="hunter2hunter2", to="sk-" + "a1B2" * 12)))
    assert "hunter2" not in lines
    assert "a1B2a1B2" not in lines


def test_long_arguments_are_cut_and_say_so() -> None:
    lines = question(pending(body="x" * 5_000, **{f"a{n}": "y" * 500 for n in range(20)}))
    assert "characters cut]" in lines[1]
    assert len(lines[1]) < 700
    assert len("\n".join(lines)) < 4_200


@pytest.mark.parametrize(
    ("seconds", "told"), [(86_400, "24 h"), (7_199, "120 min"), (5_400, "90 min"), (119, "119 s"), (0.5, "0.5 s")]
)
def test_times_are_told_in_the_usual_unit(seconds: float, told: str) -> None:
    call = PendingCall("c", "send", {}, ApprovalRequest("", seconds))
    assert question(call)[0] == f"the agent wants to call send; it waits {told} at most"


hostile = st.text(st.sampled_from("ab \n\t\x1b\u202e日é✓\\"), max_size=80)


@given(st.lists(hostile, max_size=8), st.integers(0, 8), st.integers(1, 120), st.integers(4, 40), st.none() | hostile)
@settings(deadline=None, max_examples=150)
def test_a_question_fits_into_the_picture(
    args: list[str], steps: int, width: int, height: int, typed: str | None
) -> None:
    call = pending(**{f"a{n}": text for n, text in enumerate(args)})
    view = JobView("executing", 1, {f"s{n}": StepLine(f"s{n}", "do it", n, "running") for n in range(steps)})
    frame = Frame(width, height, 1.0, 1.0, typed, question=question(call))
    lines = [line.plain for line in picture(view, frame)]
    assert len(lines) <= max(height, 6)
    for line in lines:
        assert cell_len(line) <= max(1, width - 1)
        assert safe(line) == line
    asked, whole = question_lines(frame)
    assert 1 <= len(asked) <= max(2, height // 2)
    if typed is None:
        assert asked.pop() == PROMPT
    parts = [safe(re.sub(r"\s", " ", part)) for part in frame.question]
    assert ("".join(asked) == "".join(parts)) == whole
    assert whole or MORE_ABOVE in asked or len(asked) == 1


def test_the_picture_of_a_question() -> None:
    steps = {"s1": StepLine("s1", "Tell Bob", 1, "waiting", "small", "", 1.0)}
    view = JobView("executing", 1, steps)
    frame = Frame(72, 24, 9.0, 7.0, "", question=question(pending(to="bob")))
    assert [line.plain.rstrip() for line in picture(view, frame)] == [
        "⠴ executing · 0 of 1 steps · 9 s",
        "gen   step                                      model    time      cost",
        "1 ─ ? s1 Tell Bob                               small",
        "step s1 wants to call send (it may change things); it waits 2 h at most",
        '  to: "bob"',
        "type y or n, and why if you like; Ctrl-C stops",
    ]
    ended = [line.plain for line in picture(view, Frame(72, None, 9.0, 7.0, ended=True, question=frame.question))]
    assert not any("wants to call" in line for line in ended)


def test_plain_lines_of_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    PlainView().ask(question(pending(to="\x1b[2Jbob")))
    PlainView().ask(())
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[1:] == ['  to: "\\u001b[2Jbob"', PROMPT]


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({"status": "waiting", "reason": "it may\nchange things"},
         "s1: send waits for approval - it may change things {'to': 'bob'}"),
        ({"status": "waiting"}, "s1: send waits for approval - {'to': 'bob'}"),
        ({"status": "approved", "decided_by": "user", "reason": ""}, "s1: send approved by user"),
        ({"status": "rejected", "decided_by": "user", "reason": "no"}, "s1: send rejected by user - no"),
        ({"status": "rejected", "decided_by": "nobody", "reason": "nobody can be asked"},
         "s1: send rejected - nobody can be asked"),
        ({"status": "expired", "decided_by": "deadline", "reason": "nobody decided within 5 s"},
         "s1: send expired - nobody decided within 5 s"),
        ({"status": "cancelled", "reason": "it may change things"}, "s1: send cancelled"),
    ],
)  # fmt: skip
def test_approval_events_are_told(payload: dict[str, Any], told: str) -> None:
    event = Event("job_1", 1, 1.0, "approval", "s1",
                  {"call_id": "c", "tool_name": "send", "tool_args": {"to": "bob"}, **payload})  # fmt: skip
    assert JobView().apply(event) == told
