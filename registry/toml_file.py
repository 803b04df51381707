"""Configuration files: where they are looked for, and how their mistakes are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from .errors import ConfigError

FOLDER = "dagwright"
LONGEST_SHOWN = 80
"""Characters of a wrong value in a message."""


def find_file(
    name: str,
    path: str | os.PathLike[str] | None,
    variable: str,
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
) -> Path | None:
    """A configuration file: `path`, the one that `variable` names, `name` in `cwd`, `name` in the user's folder; None
    where there is none. One that was asked for and is not there is a ConfigError."""
    here = Path(cwd) if cwd is not None else Path.cwd()
    for asked, said_by in ((path, "the command"), (env.get(variable) or None, variable)):
        if asked is not None:
            found = here / Path(asked).expanduser()
            if not found.is_file():
                raise ConfigError(f"{found}: no such file ({said_by} asks for it)")
            return found
    return next((file for file in (here / name, config_folder(env) / name) if file.is_file()), None)


def config_folder(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The user's configuration folder for us, by the rules of the platform; it need not exist."""
    home = Path(env.get("HOME") or Path.home())
    if platform == "win32":
        return Path(env.get("APPDATA") or home / "AppData" / "Roaming") / FOLDER
    if platform == "darwin":
        return home / "Library" / "Application Support" / FOLDER
    base = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    return (base if base.is_absolute() else home / ".config") / FOLDER  # relative ones are void, says the XDG rule


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A TOML file; floats come as Decimal, as they are written. Raises ConfigError."""
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file, parse_float=Decimal)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """What a misspelt name may have meant, as the end of a message: the nearest known one, else all of them."""
    import difflib

    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"


class Table:
    """A table of a TOML file, read key by key; each mistake is a ConfigError that names file, table and key."""

    def __init__(self, path: str | os.PathLike[str], name: str, values: Mapping[str, Any]) -> None:
        self.path, self.name, self.values = path, name, values

    def wrong(self, key: str, right: str) -> NoReturn:
        """Raises the error for the value of a key; `right` says what it must be."""
        raise ConfigError(f"{self.path}: [{self.name}] {key} = {shown(self.values.get(key))}: {right}")

    def only(self, known: Iterable[str]) -> None:
        """Refuses keys that are not known."""
        known = tuple(known)
        for key in self.values:
            if key not in known:
                raise ConfigError(f"{self.path}: [{self.name}] unknown key {key!r}: {nearest(key, known)}")

    def text(self, key: str, *, needed: str = "") -> str | None:
        """A text; `needed` says what it is, where it must be there."""
        value = self.values.get(key)
        if value is None and not needed:
            return None
        if value is None:
            raise ConfigError(f"{self.path}: [{self.name}] {key} is missing: {needed}")
        if not isinstance(value, str) or not value.strip():
            self.wrong(key, "must be a text in quotes")
        return value.strip()

    def count(self, key: str, unit: str) -> int | None:
        """A whole number from 1."""
        value = self.values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            self.wrong(key, f"must be a whole number of {unit}, at least 1, without quotes")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self.wrong(key, "must be true or false, without quotes")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of different texts."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.wrong(key, 'must be a list of texts, such as ["general"]')
        if len(set(value)) < len(value):
            self.wrong(key, "names something twice")
        return tuple(value)

    def table(self, key: str, known: Iterable[str]) -> Table | None:
        """A table inside this one."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(key, "must be a table, such as { NAME = VALUE }")
        inner = Table(self.path, f"{self.name}.{key}", value)
        inner.only(known)
        return inner


def shown(value: Any) -> str:
    """A value of a TOML file as it may stand in a message: written the TOML way, and not without end."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value) if isinstance(value, int | Decimal) else repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
