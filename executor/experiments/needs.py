"""Libraries that experiments need and that not everybody has."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from registry.errors import ConfigError


def needed(module: str) -> Any:
    """Imports a module of the extra `experiments`. Raises ConfigError, which says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # something else is missing: installing the extra would not help
        raise ConfigError(
            f'{module.partition(".")[0]} is not installed: pip install "dagwright[experiments]"'
        ) from None
