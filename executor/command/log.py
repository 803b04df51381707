"""Logging of the command: structlog to stderr, readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from .out import note, on_terminal, safe


class _Stderr:
    """Standard error as it is when a line is written: the live view puts itself in front of it."""

    def write(self, text: str) -> None:
        if text.strip():
            note(text.rstrip("\n"))

    def flush(self) -> None:
        """Every line is flushed as it is written."""


def configure(level: str = "warning") -> None:
    """Warnings and worse by default: progress is the view's business."""
    terminal = on_terminal(sys.stderr)
    renderer: Any = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    if terminal:
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if terminal else (structlog.processors.format_exc_info,)),
            renderer,
            lambda logger, method, line: safe(str(line)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=_Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
