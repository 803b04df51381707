"""Logging of the command: structlog to stderr, readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import argparse
import logging
import sys

import structlog


def configure(options: argparse.Namespace) -> None:
    """Warnings and worse by default: progress is the view's business."""
    level = getattr(logging, (options.log_level or "warning").upper())
    terminal = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(ensure_ascii=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if terminal else (structlog.processors.format_exc_info,)),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
