"""Logging, set up at the edge by the command or the service: one pipeline for our own lines and those of libraries,
JSON off a terminal, readable on one. Nothing leaves it unredacted."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import structlog

from registry.context import caller
from registry.redaction import redact, redact_fields

__all__ = ["configure_logging"]

Write = Callable[[str], Any]
"""Takes one line, or a readable traceback of several, without the newline at its end."""
CHATTY = (
    "aiohttp", "anthropic", "asyncio", "httpcore", "httpcore2", "httpx", "httpx2", "mcp", "openai", "opentelemetry",
    "pgqueuer", "primp", "rustls", "trafilatura", "urllib3",
)  # fmt: skip
"""Libraries that log every request as information, and what is in it as debugging: they are heard from warnings on, and
with our level at debug from information on, so that no conversation gets into a log."""


def configure_logging(level: str = "info", *, write: Write | None = None, terminal: bool = False) -> None:
    """Sets up structlog and the standard library's logging. May be called again; the last call holds.

    `level`: debug, info, warning or error. `write` takes the lines (default: standard error, one write per line);
    `terminal`: readable lines instead of JSON. Uncaught exceptions go the same way.
    """
    write = write or _to_stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    before, after = _before(), _after(terminal=terminal)
    structlog.configure(
        processors=[*before, *after],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=_Lines(write)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    _take_over_stdlib(number, write, before, after)
    _catch_uncaught()


def bind_caller(logger: Any, method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Adds the job, the step and the attempt on whose behalf the line is written."""
    who = caller()
    if who.job_id:
        fields.setdefault("job_id", who.job_id)
    if who.step_id is not None:
        fields.setdefault("step_id", who.step_id)
        fields.setdefault("attempt", who.attempt)
    return fields


def _mask(logger: Any, method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return redact_fields(fields)


def _mask_line(logger: Any, method: str, line: Any) -> Any:
    """Once more at the end: objects become text only when the line is made."""
    return redact(str(line))


def _before() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        bind_caller,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _after(*, terminal: bool) -> list[structlog.typing.Processor]:
    if terminal:
        plain = structlog.dev.plain_traceback
        renderer: Any = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain)
        return [_mask, renderer, _mask_line]
    renderer = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    return [structlog.processors.format_exc_info, _mask, renderer, _mask_line]


class _Lines:
    """What structlog prints to: each line is handed on whole."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, text: str) -> None:
        """Takes a line, or the newline after it."""
        if text.strip():
            self._write(text.rstrip("\n"))

    def flush(self) -> None:
        """Every line is written at once."""


class _Bridge(logging.Handler):
    """Sends the lines of libraries through our pipeline."""

    def __init__(self, write: Write, formatter: logging.Formatter) -> None:
        super().__init__()
        self._write = write
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line; a line that can't be made costs nothing but itself."""
        try:
            self._write(self.format(record))
        except Exception:  # noqa: BLE001 - as in every handler of the standard library
            self.handleError(record)


def _take_over_stdlib(
    number: int, write: Write, before: list[structlog.typing.Processor], after: list[structlog.typing.Processor]
) -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Bridge)]:
        root.removeHandler(handler)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *after],
    )
    root.addHandler(_Bridge(write, formatter))
    root.setLevel(number)
    heard = logging.INFO if number <= logging.DEBUG else max(number, logging.WARNING)
    for name in CHATTY:
        logging.getLogger(name).setLevel(heard)


def _catch_uncaught() -> None:
    """Uncaught exceptions are logged, and so redacted, instead of printed; others' hooks are left alone."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _uncaught
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _uncaught_in_thread


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    structlog.get_logger(__name__).critical("uncaught_exception", exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _to_stderr(line: str) -> None:
    stream = sys.stderr  # as it is now: it may be replaced while we run
    if stream is not None:
        stream.write(line + "\n")
        stream.flush()
