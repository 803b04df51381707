"""Code of the user's own, named by its module."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from .errors import UsageError


def own_module(name: str, folder: str | os.PathLike[str] | None) -> ModuleType:
    """The module of this name; one that is not installed is looked for in this folder. Raises whatever importing it
    raises."""
    if folder is not None and os.fspath(folder) not in sys.path:
        sys.path.append(os.fspath(folder))  # at the end: it replaces nothing that is installed
    return import_module(name)


def told(error: Exception) -> str:
    """What went wrong in such code: its kind stands before it, unless the text says enough."""
    return str(error) if isinstance(error, ImportError | UsageError) else f"{type(error).__name__}: {error}"
