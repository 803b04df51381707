"""SQL stands in files, each statement under its name: `-- name: NAME`, then comments, then the statement."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def statements(file: str) -> dict[str, str]:
    """The statements of a file in `sql/`, by name."""
    text = files("executor.store").joinpath("sql", f"{file}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def statement(name: str) -> str:
    """The statement `file.name`. Raises KeyError."""
    file, _, own = name.partition(".")
    return statements(file)[own]
