"""Asking on the terminal: a call that needs a human's word is shown, and the next typed line decides it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import TYPE_CHECKING

from agent.waits import Decision, PendingCall
from registry.redaction import redact, redact_fields
from registry.text import cut_middle

from .out import on_terminal
from .view import one_line

if TYPE_CHECKING:
    from .keyboard import Keyboard
    from .show import PlainView

VALUE_CHARS = 600
"""Characters of one argument in a question."""
QUESTION_CHARS = 4_000
"""Characters of all arguments in a question."""
MARK = " … [{cut} characters cut] … "
_ANSWER = re.compile(r"(y|yes|n|no)\b[\s,;:.!-]*(.*)", re.IGNORECASE | re.DOTALL)


def can_ask() -> bool:
    """Whether somebody sees a question and can answer it: both ends must be a terminal."""
    return on_terminal(sys.stdin) and on_terminal(sys.stderr)


def decision_of(line: str) -> Decision | None:
    """What a typed line decides: y or n (yes, no), and behind it why. None: neither."""
    found = _ANSWER.fullmatch(line.strip())
    return None if found is None else Decision(found[1].lower().startswith("y"), found[2].strip())


def question(call: PendingCall) -> tuple[str, ...]:
    """What is asked, in lines: who wants to call what and why that needs a word, then the arguments. No secrets; long
    arguments are cut, and say so."""
    who = f"step {call.step_id}" if call.step_id else "the agent"
    reason = f" ({one_line(redact(call.request.reason))})" if call.request.reason else ""
    head = f"{who} wants to call {one_line(call.tool_name)}{reason}; it waits {_span(call.request.deadline)} at most"
    lines = []
    for name, value in redact_fields(call.tool_args).items():
        text = json.dumps(value, ensure_ascii=False, default=str)
        lines.append(f"  {one_line(name)}: {cut_middle(text, VALUE_CHARS, MARK)}")
    return (head, *(cut_middle("\n".join(lines), QUESTION_CHARS, MARK).split("\n") if lines else ("  no arguments",)))


class Asker:
    """Asks for one call after the other; the `approve` of a job that is run on a terminal.

    While a question stands, the next line that is typed answers it, unless it was begun before the question came: then
    it still is what it was meant to be. A lone y or n that comes when a question is gone already is nothing: taken for
    a follow-up it would change the plan. Cancelling the wait takes the question back.
    """

    def __init__(self, view: PlainView) -> None:
        self._view = view
        self._turn = asyncio.Lock()
        self._answer: asyncio.Future[Decision] | None = None
        self._waiting = 0
        self._asked = False
        self._keyboard: Keyboard | None = None
        self._half_typed = False
        self._over = "the terminal can't be read"

    async def __call__(self, call: PendingCall) -> Decision:
        """The decision on a call, as soon as it is its turn and was answered."""
        self._waiting += 1
        try:
            async with self._turn:
                return await self._ask(call)
        finally:
            self._waiting -= 1

    def listen(self, keyboard: Keyboard) -> None:
        """From now on answers come from this keyboard; where it reads nothing, every call is rejected."""
        self._keyboard = keyboard
        self._over = "" if keyboard.active else self._over

    def end(self) -> None:
        """Nobody can answer any more: what waits, and what is still to come, is rejected."""
        self._over = "the terminal's input has ended"
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._unanswered())

    def takes(self, line: str) -> bool:
        """Takes a typed line as an answer; False: it is none of ours."""
        said = decision_of(line)
        if self._answer is None or self._answer.done():
            stray = said is not None and (self._waiting or (self._asked and not said.reason))
            if not stray:
                return False
            self._view.tell("Not taken: no question stood when this was typed.")
        elif self._half_typed:
            self._half_typed = False
            return False
        elif said is None:
            self._view.tell("A call waits for your word: type y or n, and why if you like.")
        else:
            self._answer.set_result(said)
        return True

    def typed(self) -> None:
        """Something was typed: where the line is empty, what was begun before the question is gone."""
        if self._keyboard is not None and not self._keyboard.text:
            self._half_typed = False

    async def _ask(self, call: PendingCall) -> Decision:
        if self._over:
            return self._unanswered()
        self._answer, self._asked = asyncio.get_running_loop().create_future(), True
        self._half_typed = self._keyboard is not None and bool(self._keyboard.text)
        self._view.ask(question(call))
        if self._half_typed:
            self._view.tell("The line you are typing is still a follow-up: end or erase it, then answer y or n.")
        try:
            return await self._answer
        finally:
            self._answer, self._half_typed = None, False
            self._view.ask(())

    def _unanswered(self) -> Decision:
        return Decision(False, f"it needs a human's approval, and nobody can be asked: {self._over}", "nobody")


def _span(seconds: float) -> str:
    """Seconds in the unit that people would use."""
    for unit, length in (("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
