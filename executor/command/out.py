"""Where the command writes: standard output for results, standard error for the rest. A reader that has gone away is
no error, no text of a model or a tool can steer the terminal, and no secret is shown."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, TextIO

from registry.redaction import redact, redact_data

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, colours, sets titles, beeps, or overrides the reading direction, line separators, and half
surrogates, which no terminal takes. Newline and tab stay."""


def safe(text: str) -> str:
    """The text with control characters and direction marks shown as escapes rather than sent."""
    return _STEERING.sub(lambda found: _escape(ord(found[0])), text.replace("\r\n", "\n"))


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def json_text(data: Any, indent: int | None = 1) -> str:
    """JSON in which such characters are escaped; the data is the same."""
    text = json.dumps(redact_data(data), ensure_ascii=not _is_unicode(sys.stdout), indent=indent, default=str)
    return _STEERING.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def say(text: str = "", *, end: str = "\n") -> bool:
    """Writes to standard output, at once; False where nobody reads it any more."""
    return _write(sys.stdout, text + end)


def say_secret(text: str) -> None:
    """Writes to standard output what is masked anywhere else: a secret that is told once, to whoever has it made."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        abandon(sys.stdout)


def say_json(data: Any) -> None:
    """One JSON object on standard output."""
    say(json_text(data))


def show(text: str, *, end: str = "\n") -> bool:
    """Writes a text of a model to standard output: as it is into a file, made safe on a terminal."""
    return say(safe(text) if on_terminal(sys.stdout) else text, end=end)


def note(text: str) -> bool:
    """Writes a line to standard error, made safe."""
    return _write(sys.stderr, safe(text) + "\n")


def on_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; one that is closed or missing is none."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def forgiving() -> None:
    """Characters that the output's encoding does not have are escaped instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _write(stream: TextIO | None, text: str) -> bool:
    if stream is None:
        return False
    try:
        stream.write(redact(text))
        stream.flush()
    except (BrokenPipeError, ValueError):
        abandon(stream)
        return False
    return True


def abandon(stream: TextIO) -> None:
    """Lets what is still to be written go nowhere: the interpreter would complain about it at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
    except (OSError, ValueError):
        return


def _is_unicode(stream: TextIO | None) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")
