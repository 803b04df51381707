"""Running a model's Python in a sandbox: an interpreter of its own (pydantic-monty) in a process of its own.

The sandbox has no files, no network, no environment and no host objects; its worker process is new for each call and
ends with it. Time, memory, recursion and calls to the host are limited inside, and a worker that ignores its time limit
is killed from outside, so that the thread which waits for it ends too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.errors import DagwrightError
from registry.result_text import MAX_INT_BITS
from registry.text import clean, cut_middle
from registry.tools import Tool, tool

TIME_LIMIT = 10.0
"""Seconds of computing in a call."""

GRACE = 1.0
"""Seconds past the time limit after which the worker process is killed."""

MEMORY_LIMIT = 64 * 2**20
"""Bytes of the sandbox's heap."""

RECURSION_LIMIT = 500
HOST_CALLS = 100
"""Refused calls to the host (files, environment) in one run before it is stopped."""

OUTPUT_LIMIT = 20_000
"""Characters that are kept of what is printed, and of the value."""

ERROR_LIMIT = 4_000
"""Characters of an error with its traceback."""

CODE_LIMIT = 100_000
"""Characters of code."""

DEPTH_LIMIT = 50
"""Levels of a nested value that are shown."""

MODULES = (
    "asyncio base64 bisect collections copy csv dataclasses datetime decimal functools hashlib itertools json math "
    "random re time typing unicodedata"
)
"""Modules of use that the sandbox has."""

HAS_ONLY = f"The sandbox has no files, no network and no other modules than: {MODULES.replace(' ', ', ')}."
_FOREIGN = ("PermissionError", "ModuleNotFoundError", "ImportError", "is not supported in this environment")


class PythonError(DagwrightError, ValueError):
    """The code failed."""

    code = "run_python"


class _Printed:
    """Keeps the start of what is printed; the rest is counted only, so that a flood costs no memory."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._left = OUTPUT_LIMIT
        self._dropped = 0

    def __call__(self, stream: str, text: str) -> None:
        kept = text[: self._left]
        if kept:
            self._kept.append(kept)
        self._left -= len(kept)
        self._dropped += len(text) - len(kept)

    @property
    def text(self) -> str:
        text = "".join(self._kept)
        return f"{text}\n[{self._dropped:,} more characters were printed]" if self._dropped else text


def run_python(code: str, *, seconds: float = TIME_LIMIT, memory: int = MEMORY_LIMIT) -> str:
    """What the code prints, and the value of its last expression. Blocks for `seconds` at most, and a little more.

    Raises PythonError with what was printed before, and the error with its line.
    """
    if len(code) > CODE_LIMIT:
        raise PythonError(f"the code has {len(code):,} characters, at most {CODE_LIMIT:,} are taken")
    import pydantic_monty

    printed = _Printed()
    limits: pydantic_monty.ResourceLimits = {
        "max_feed_duration_secs": seconds,
        "max_memory": memory,
        "max_recursion_depth": RECURSION_LIMIT,
        "max_suspensions": HOST_CALLS,
        "max_total_sleep_secs": 0.0,  # sleeping counts for none of the other limits
    }
    pool = pydantic_monty.Monty(min_processes=1, max_processes=1, feed_duration_limit_grace=GRACE)
    try:
        with pool, pool.checkout(limits=limits) as session:
            value = session.feed_run(code, print_callback=printed)
    except pydantic_monty.MontyCrashedError as error:
        late = f"TimeoutError: the code ran longer than {seconds:g} s, and its sandbox was ended"
        raise PythonError(_failed(late if error.timed_out else f"the sandbox died: {error}", printed.text)) from None
    except pydantic_monty.MontyError as error:
        display = getattr(error, "display", error.__str__)
        raise PythonError(_failed(display(), printed.text)) from None
    except (OSError, RuntimeError) as error:
        raise PythonError(f"the sandbox can't be started: {error}") from None
    return _answer(value, printed.text)


def _failed(error: str, printed: str) -> str:
    told = cut_middle(clean(error), ERROR_LIMIT)
    if any(word in told for word in _FOREIGN):
        told = f"{told}\n{HAS_ONLY}"
    return f"{told}\nPrinted before the error:\n{clean(printed)}" if printed else told


def _answer(value: Any, printed: str) -> str:
    parts = [printed.rstrip("\n")] if printed else []
    if value is not None:
        text = Shown(OUTPUT_LIMIT).text(value)
        parts.append(f"Value of the last expression: {text}" if parts else text)
    return "\n".join(parts) or "(nothing was printed, and the last line is no expression with a value)"


class Shown:
    """A value from the sandbox as text of at most `room` characters.

    A small value with shared parts can be endless as text: writing stops where the room ends.
    """

    def __init__(self, room: int) -> None:
        self._left = room
        self._parts: list[str] = []

    def text(self, value: Any) -> str:
        """The value as Python writes it; a text that is the whole value stands as it is."""
        if isinstance(value, str):
            self._add(value)
        else:
            self._write(value, 0)
        return clean("".join(self._parts)) + ("… [cut]" if self._left <= 0 else "")

    def _add(self, text: str) -> None:
        self._parts.append(text[: max(0, self._left)])
        self._left -= len(text)

    def _write(self, value: Any, depth: int) -> None:
        if depth > DEPTH_LIMIT:
            self._add("…")
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            named = zip(value._fields, value, strict=False)
            self._series(f"{type(value).__name__}(", [(f"{name}=", part) for name, part in named], ")", depth)
        elif isinstance(value, Mapping):
            self._pairs(value, depth)
        elif isinstance(value, list | tuple | set | frozenset):
            opening, closing = _BRACKETS.get(type(value), ("[", "]")) if value else (type(value)().__repr__(), "")
            self._series(opening, [("", part) for part in value], closing, depth)
        else:
            self._plain(value, depth)

    def _series(self, opening: str, parts: list[tuple[str, Any]], closing: str, depth: int) -> None:
        self._add(opening)
        for number, (name, part) in enumerate(parts):
            if self._left <= 0:
                return
            self._add(f", {name}" if number else name)
            self._write(part, depth + 1)
        self._add(",)" if closing == ")" and opening == "(" and len(parts) == 1 else closing)

    def _pairs(self, value: Mapping[Any, Any], depth: int) -> None:
        self._add("{")
        for number, (key, part) in enumerate(value.items()):
            if self._left <= 0:
                return
            self._add(", " if number else "")
            self._write(key, depth + 1)
            self._add(": ")
            self._write(part, depth + 1)
        self._add("}")

    def _plain(self, value: Any, depth: int) -> None:
        """A value without parts, or an object of which the host has only a stand-in."""
        if isinstance(value, str | bytes):
            self._add(repr(value[: max(0, self._left)]))
        elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            self._add(f"(an integer of {value.bit_length():,} bits)")  # Python refuses to print it
        elif isinstance(value, BaseException):
            self._series(f"{type(value).__name__}(", [("", part) for part in value.args], ")", depth)
        elif isinstance(attributes := getattr(value, "attributes", None), dict):
            named = [(f"{name}=", part) for name, part in attributes.items()]
            self._series(f"{value.name}(", named, ")", depth)
        else:
            self._add(repr(value))


_BRACKETS = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})")}


def run_python_tool() -> Tool:
    """The tool `run_python`."""

    @tool(
        name="run_python",
        description=f"""Runs Python code in a sandbox and returns what it prints and the value of its last expression.

Use it for calculations over many values, for sorting, counting, converting, parsing and checking data that you put \
into the code. Each call starts afresh: nothing is kept from an earlier one. {HAS_ONLY} Not supported: class \
inheritance, yield and del. Limits: {TIME_LIMIT:g} seconds, \
{MEMORY_LIMIT >> 20} MB, {OUTPUT_LIMIT:,} characters of output.

Args:
    code: The code, several lines where needed; print what is wanted, or end with an expression.""",
        read_only=True,
        idempotent=True,
        timeout=TIME_LIMIT + GRACE + 4,
        max_result_chars=2 * OUTPUT_LIMIT + 500,
    )
    def run(code: str) -> str:
        return run_python(code)

    return run
