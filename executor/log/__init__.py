"""A job's history: one ordered list of events, and who may read what of it."""

from __future__ import annotations

from .memory import MemoryLog

__all__ = ["MemoryLog"]
