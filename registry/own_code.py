"""Code of the user's own, named by its module."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .errors import UsageError
from .toml_file import nearest


def own_object(
    place: str, folder: str | os.PathLike[str] | None, *, kind: str = "", meant: Callable[[Any], bool] | None = None
) -> Any:
    """What stands at a place, `package.module:name`; a module that is not installed is looked for in the folder.
    `kind`, in the plural, and `meant` say what is looked for, so that a misspelt name is told with the nearest. Raises
    UsageError, which says what is wrong with the place."""
    name, _, attribute = place.partition(":")
    if folder is not None and os.fspath(folder) not in sys.path:
        sys.path.append(os.fspath(folder))  # at the end: it replaces nothing that is installed
    try:
        found: Any = import_module(name)
    except Exception as error:
        raise UsageError(f"{name} can't be imported: {told(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            missing = f"{name} has no {attribute}"
            if meant is None:
                raise UsageError(missing)
            there = getattr(found, "__dict__", {}).items()
            names = [known for known, value in there if meant(value)] or [f"no {kind} in it"]
            raise UsageError(f"{missing}: {nearest(attribute, names)}")
        found = getattr(found, part)
    return found


def told(error: Exception) -> str:
    """What went wrong in such code: its kind stands before it, unless the text says enough."""
    return str(error) if isinstance(error, ImportError | UsageError) else f"{type(error).__name__}: {error}"
