"""What the user types while a job runs: whole lines, read without disturbing the live view."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from .out import on_terminal

_ERASE = ("\x7f", "\b")
_KILL_LINE, _KILL_WORD = "\x15", "\x17"


class LineEditor:
    """Bytes from a terminal become lines. Knows backspace, Ctrl-U and Ctrl-W; arrow keys and the like are ignored."""

    def __init__(self) -> None:
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._escape = ""

    def feed(self, data: bytes) -> list[str]:
        """Takes bytes in; returns the lines that they complete. `text` is the line so far."""
        lines = []
        for char in self._decoder.decode(data):
            if self._escape or char == "\x1b":
                self._escaped(char)
            elif char in "\r\n":
                lines.append(self.text)
                self.text = ""
            elif char in _ERASE:
                self.text = self.text[:-1]
            elif char == _KILL_LINE:
                self.text = ""
            elif char == _KILL_WORD:
                self.text = self.text.rstrip().rpartition(" ")[0]
            elif char.isprintable() or char == "\t":
                self.text += char
        return lines

    def _escaped(self, char: str) -> None:
        """Inside an escape sequence: ESC, one character, or after `[` and `O` all up to a final one."""
        self._escape += char
        body = self._escape[1:]
        if body and (body[0] not in "[O" or (len(body) > 1 and "@" <= char <= "~")):
            self._escape = ""


class Keyboard:
    """Reads a terminal in the event loop: `on_line` gets each line, `on_change` hears of every other key, `on_end` that
    there will be no more.

    Where standard input is no terminal, or the platform can't watch it, nothing is read. While `quiet`, keys are read
    one by one and the terminal does not echo them: whoever draws the screen shows `text`.
    """

    def __init__(
        self,
        on_line: Callable[[str], None],
        on_change: Callable[[], None] = lambda: None,
        fd: int | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        if fd is None:
            fd = sys.stdin.fileno() if on_terminal(sys.stdin) else -1
        self.fd, self.on_line, self.on_change, self.on_end = fd, on_line, on_change, on_end
        self.active = False
        self.quiet = False
        self._editor = LineEditor()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._saved: Any = None

    @property
    def text(self) -> str:
        """The line that is being typed."""
        return self._editor.text

    def __enter__(self) -> Keyboard:
        self._loop = asyncio.get_running_loop()
        if self.fd >= 0:
            try:
                self._loop.add_reader(self.fd, self._readable)
            except (NotImplementedError, OSError):
                return self
            self.active = True
            on_signal(self._loop, "SIGCONT", self._resumed)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.active and self._loop is not None:
            self.echo(True)
            self._loop.remove_reader(self.fd)
            no_signal(self._loop, "SIGCONT")
            self.active = False

    def echo(self, on: bool) -> None:
        """Whether the terminal shows what is typed; without an effect where that can't be set."""
        if not self.active or not _in_foreground(self.fd):
            return
        try:
            import termios
        except ImportError:
            return
        try:
            if on:
                if self._saved is not None:
                    termios.tcsetattr(self.fd, termios.TCSADRAIN, self._saved)
            else:
                if self._saved is None:
                    self._saved = termios.tcgetattr(self.fd)
                modes = [*self._saved[:6], list(self._saved[6])]
                modes[3] &= ~(termios.ECHO | termios.ICANON)
                modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
                termios.tcsetattr(self.fd, termios.TCSADRAIN, modes)
        except (termios.error, OSError):
            return
        self.quiet = not on

    def _resumed(self) -> None:
        """After a stop by job control the shell has set the terminal its own way."""
        if self.quiet:
            self.echo(False)

    def _readable(self) -> None:
        if not _in_foreground(self.fd):
            return
        try:
            data = os.read(self.fd, 4096)
        except OSError:
            data = b""
        if not data:
            assert self._loop is not None
            self._loop.remove_reader(self.fd)  # the terminal is gone, or its input ended
            self.on_end()
            return
        for line in self._editor.feed(data):
            if line.strip():
                self.on_line(line.strip())
        self.on_change()


def on_signal(loop: asyncio.AbstractEventLoop, name: str, action: Callable[[], None]) -> None:
    """Calls `action` in the loop when the signal comes; where loops can't do that, by way of Python's own handler."""
    number = getattr(signal, name, None)
    if number is None:
        return
    try:
        loop.add_signal_handler(number, action)
    except NotImplementedError:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(action))
    except (RuntimeError, ValueError):
        return  # not in the main thread: signals are somebody else's business


def no_signal(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """The end of `on_signal`."""
    number = getattr(signal, name, None)
    if number is None:
        return
    try:
        loop.remove_signal_handler(number)
    except NotImplementedError:
        signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    except (RuntimeError, ValueError):
        return


def interrupt_at_once() -> None:
    """Ctrl-C interrupts what computes, too, not only at the next pause as in an event loop. For commands that write
    files as a whole or not at all."""
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    except ValueError:
        return  # not in the main thread: signals are somebody else's business


def _in_foreground(fd: int) -> bool:
    """Whether we may use the terminal: a process in the background is stopped by the system when it tries."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except (OSError, AttributeError):
        return True  # not our controlling terminal: no job control
