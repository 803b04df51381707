"""Which MCP servers there are, as `[mcp.NAME]` tables of a TOML file say."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from registry.errors import ConfigError
from registry.toml_file import Table, nearest

TIMEOUT = 60.0
"""Seconds a call may take unless the server's table says otherwise."""

KEYS = (
    "command", "args", "env", "cwd", "url", "headers", "tools", "read_only", "idempotent", "timeout", "required",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEMED = re.compile(r"(?:(Bearer|Basic|Token) +)?([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server: a `command` that is started and spoken to over its standard streams, or a `url`.

    `env` and `headers` give, for each variable or header of the server's, the name of the variable of our environment
    that holds its value (`headers`: after a scheme such as `Bearer`, if one is wanted); no value stands here. `tools`
    are the only ones taken, by the server's names (None: all). `read_only` and `idempotent` are the names of tools that
    the operator vouches for, or `("*",)` for all: what the server says of itself is a stranger's word. `timeout` is
    seconds a call. `required`: a job is not started without the server.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] | None = None
    read_only: tuple[str, ...] = ()
    idempotent: tuple[str, ...] = ()
    timeout: float = TIMEOUT
    required: bool = False

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ConfigError(f"[mcp.{self.name}] needs either command or url")

    def __str__(self) -> str:
        host = "" if self.url is None else urlsplit(self.url).hostname
        return f"{self.name} ({f'at {host}' if self.command is None else Path(self.command).name})"

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that the server is given. Raises ConfigError where one is not set."""
        return {name: self._value(source, env) for name, source in self.env.items()}

    def header_values(self, env: Mapping[str, str]) -> dict[str, str]:
        """The headers that the server is sent. Raises ConfigError where a variable is not set."""
        values = {}
        for name, source in self.headers.items():
            scheme, _, variable = source.rpartition(" ")
            value = self._value(variable, env)
            values[name] = f"{scheme.strip()} {value}" if scheme else value
        return values

    def _value(self, variable: str, env: Mapping[str, str]) -> str:
        value = env.get(variable, "")
        if not value.strip():
            raise ConfigError(f"[mcp.{self.name}] needs the variable {variable}, which is not set")
        return value


def servers_from_toml(path: str | os.PathLike[str], value: Any) -> tuple[McpServer, ...]:
    """The servers of the `mcp` table of a TOML file. Raises ConfigError, which names table and key."""
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise ConfigError(f"{path}: mcp must be tables, one for each server: [mcp.NAME]")
    return tuple(_server(Path(path), name, table) for name, table in value.items())


def _server(path: Path, name: str, values: Mapping[str, Any]) -> McpServer:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{path}: [mcp.{name}]: a server's name is 1 to 32 of A-Z a-z 0-9 _ -")
    table = Table(path, f"mcp.{name}", values)
    table.only(KEYS)
    command, url = table.text("command"), table.text("url")
    if (command is None) == (url is None):
        raise ConfigError(f"{path}: [mcp.{name}] needs either command or url")
    for key in ("args", "env", "cwd") if command is None else ("headers",):
        if key in values:
            raise ConfigError(f"{path}: [mcp.{name}] {key} is for servers with {'command' if url else 'url'}")
    if url is not None:
        _check_url(table, url)
    folder = table.text("cwd")
    return McpServer(
        name,
        command,
        _arguments(table),
        _sources(table, "env", _VARIABLE),
        path.parent / Path(folder).expanduser() if folder else None,
        url,
        _sources(table, "headers", _SCHEMED),
        table.texts("tools") if "tools" in values else None,
        _vouched(table, "read_only"),
        _vouched(table, "idempotent"),
        _seconds(table),
        table.flag("required"),
    )


def _check_url(table: Table, url: str) -> None:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(f"{table.path}: [{table.name}] url must be an address with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{table.path}: [{table.name}] url holds a user or password: use headers")


def _arguments(table: Table) -> tuple[str, ...]:
    value = table.values.get("args", [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        table.wrong("args", 'must be a list of texts, such as ["--verbose"]')
    return tuple(value)


def _sources(table: Table, key: str, pattern: re.Pattern[str]) -> dict[str, str]:
    """Names of variables. A wrong value is not shown: it may be a key that somebody wrote into the file."""
    value = table.values.get(key, {})
    if key == "env" and isinstance(value, list):
        value = dict(zip(value, value, strict=True)) if all(isinstance(item, str) for item in value) else None
    if not isinstance(value, dict) or not all(
        name.strip() and isinstance(source, str) and pattern.fullmatch(source) for name, source in value.items()
    ):
        form = (
            'such as ["NAME"] or { NAME = "OTHER_NAME" }'
            if key == "env"
            else 'such as { Authorization = "Bearer NAME" }'
        )
        raise ConfigError(
            f"{table.path}: [{table.name}] {key} holds names of environment variables, not their values, {form}"
        )
    return dict(value)


def _vouched(table: Table, key: str) -> tuple[str, ...]:
    if isinstance(table.values.get(key), bool):
        return ("*",) if table.values[key] else ()
    return table.texts(key)


def _seconds(table: Table) -> float:
    value = table.values.get("timeout", TIMEOUT)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not 0 < value < 86_400:
        table.wrong("timeout", "must be a number of seconds, more than 0")
    return float(value)


def missing_names(wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    """For each name that the configuration has and the server has not, what it may have meant."""
    return [
        f"{name!r} ({nearest(name, there)})" if there else repr(name)
        for name in wanted
        if name != "*" and name not in there
    ]
