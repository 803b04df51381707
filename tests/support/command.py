"""Runs the real command in a process of its own, in an environment that holds nothing but what the test gives it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes import ProviderFake

ROOT = Path(__file__).parents[2]
MODULE = ("-m", "executor.cli")
PATIENCE = 45.0
"""Seconds that any wait may take on a busy machine."""
NO_LOCAL_SERVERS = (
    "-c",
    "import registry.environment as e; e.find_local = lambda *a, **k: (); "
    "from executor.cli import main; raise SystemExit(main())",
)
"""The same command where no model server listens on this machine, whatever does listen here."""


@dataclass(frozen=True)
class Ended:
    """How the command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The one JSON value on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(home: Path, **variables: str) -> dict[str, str]:
    """A clean environment: HOME and all folders below it are the test's."""
    folders = {name: str(home / name.lower()) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")}
    base = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    return {**base, **folders, **variables}


def openai(fake: ProviderFake, key: str = "k") -> dict[str, str]:
    """Variables that lead to the fake by chat completions."""
    return {"OPENAI_BASE_URL": fake.openai_url, "OPENAI_API_KEY": key, "DAGWRIGHT_MODEL": "fake-model"}


async def command(
    *words: str,
    home: Path,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    start: Sequence[str] = MODULE,
) -> Ended:
    """Runs the command to its end, in the folder `home`."""
    process = await started(*words, home=home, env=env, start=start)
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate(None if stdin is None else stdin.encode())
    finally:
        await ended(process)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def started(
    *words: str, home: Path, env: Mapping[str, str] | None = None, start: Sequence[str] = MODULE
) -> asyncio.subprocess.Process:
    """The running command, its three streams piped."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, *start, *words, cwd=home, env=environment(home, **(env or {})),
        stdin=pipe, stdout=pipe, stderr=pipe, limit=2**24,
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> None:
    """Sees to it that the process is gone."""
    if process.returncode is None:
        process.kill()
    await process.wait()


class Terminal:
    """The master's side of a pseudo-terminal. `raw` is all that the command wrote to it."""

    def __init__(self, fd: int, process: asyncio.subprocess.Process) -> None:
        self.fd, self.process, self.raw = fd, process, b""
        self._more = asyncio.Event()

    @property
    def text(self) -> str:
        """What was written, without the escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw.decode("utf-8", "replace")).replace("\r", "")

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self.fd, text.encode())

    async def until(self, seen: str | Callable[[str], bool]) -> None:
        """Waits until a pattern was written."""
        found = seen if callable(seen) else lambda text: re.search(seen, text) is not None
        async with asyncio.timeout(PATIENCE):
            while not found(self.text):
                self._more.clear()
                await self._more.wait()

    def readable(self) -> None:
        """Takes in what was written."""
        try:
            data = os.read(self.fd, 2**16)
        except OSError:  # the other side is closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self.fd)
        self.raw += data
        self._more.set()

    async def end(self) -> int:
        """Waits for the command's end; its exit code."""
        async with asyncio.timeout(PATIENCE):
            code = await self.process.wait()
        os.set_blocking(self.fd, False)
        before = -1
        while len(self.raw) > before:  # what it wrote last may still be on its way
            before = len(self.raw)
            self.readable()
        return code


@asynccontextmanager
async def on_terminal(
    *words: str, home: Path, env: Mapping[str, str], columns: int = 100, rows: int = 30
) -> AsyncIterator[Terminal]:
    """The command on a terminal of its own, which is its controlling one, as in a shell."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def controlling() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    loop = asyncio.get_running_loop()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *MODULE, *words, cwd=home, env=environment(home, TERM="xterm-256color", **env),
        stdin=slave, stdout=slave, stderr=slave, preexec_fn=controlling,
    )  # fmt: skip
    os.close(slave)
    terminal = Terminal(master, process)
    loop.add_reader(master, terminal.readable)
    try:
        yield terminal
    finally:
        await ended(process)
        loop.remove_reader(master)
        os.close(master)
