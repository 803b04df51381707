"""Logging of the command: to stderr, readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import sys

from executor.logging_setup import configure_logging

from .out import note, on_terminal


def configure(level: str = "warning") -> None:
    """Warnings and worse by default: progress is the view's business. `note` writes to standard error as it is when a
    line is written: the live view puts itself in front of it."""
    configure_logging(level, write=note, terminal=on_terminal(sys.stderr))
