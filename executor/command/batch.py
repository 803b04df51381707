"""`dagwright batch FILE.jsonl`: thousands of goals through a running service, their results as JSON lines.

It goes over HTTP rather than to the database: then it works from any host, with a key that names the tenant and no
password of the database, and a batch of a hundred megabytes passes the same checks as everybody's.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from executor.settings import read_environment
from registry.errors import UsageError

from .out import note, on_terminal, say_json, show
from .remote import KEY_VARIABLE, Remote, address
from .setup import settings_of

PIECE = 1 << 16
"""Bytes of the file that are sent at once."""
LOOK = (0.2, 2.0)
"""Seconds between two looks at the counts: the first and the longest."""
QUIET = 10.0
"""Seconds between two lines of progress where no terminal shows them."""
CANCELLED = 130
COUNTS = ("succeeded", "errored", "canceled", "expired")


async def batch(options: argparse.Namespace) -> int:
    """Sends the lines, waits, prints the results. 0: all succeeded, 3: some, 1: none, 130: it was cancelled."""
    if (options.file is None) == (options.id is None):
        raise UsageError("give a FILE of JSON lines, or --id of a batch that was sent before")
    if options.cancel and options.id is None:
        raise UsageError("--cancel ends a batch that was sent before: give its --id")
    if options.mode is not None and options.id is not None:
        raise UsageError("--mode goes with a FILE: a batch that was sent has its mode")
    settings = settings_of(options)
    key = read_environment().get(KEY_VARIABLE) or None
    async with Remote.open(address(options.url, settings), key) as service:
        if options.id is None:
            told = await _send(service, options.file, options.mode or "run")
        else:
            told = await _known(service, options.id, cancel=options.cancel)
        note(f"batch {told['id']}: {told['counts']['total']:,} items")
        if options.detach:
            if options.json:
                say_json(told)
            return 0
        told = await _ended(service, told)
        await _results(service, told, options)
    return _exit_code(told["counts"])


async def _send(service: Remote, file: str, mode: str) -> dict[str, Any]:
    """Sends the file as it is read; the key makes one batch of it, however often it has to be sent."""
    headers = {"Content-Type": "application/jsonl", "Idempotency-Key": uuid.uuid4().hex}
    return await service.ask("POST", "/v1/batches", headers=headers, body=_body(file), mode=mode)


def _body(file: str) -> Callable[[], Any]:
    """What gives the file from its beginning, as often as it is asked."""
    if file == "-":
        text = sys.stdin.buffer.read()
        return lambda: text
    try:
        with Path(file).open("rb"):
            return lambda: _pieces(Path(file))
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror or error}") from None


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


async def _known(service: Remote, batch_id: str, *, cancel: bool) -> dict[str, Any]:
    if not batch_id.replace("_", "").isalnum() or not batch_id.isascii():
        raise UsageError(f"--id {batch_id}: must be the id of a batch, such as batch_0123abcd")
    if cancel:
        return await service.ask("POST", f"/v1/batches/{batch_id}/cancel")
    return await service.ask("GET", f"/v1/batches/{batch_id}")


async def _ended(service: Remote, told: dict[str, Any]) -> dict[str, Any]:
    """Waits for the end and shows where the batch stands meanwhile. Ctrl-C leaves it: it goes on by itself."""
    progress, wait = Progress(), LOOK[0]
    try:
        while told["status"] != "ended":
            progress.show(told["counts"])
            await asyncio.sleep(wait)
            wait = min(1.5 * wait, LOOK[1])
            told = await service.ask("GET", f"/v1/batches/{told['id']}")
        progress.show(told["counts"], last=True)
    except asyncio.CancelledError:
        progress.end()
        note(f"the batch goes on: `dagwright batch --id {told['id']}` takes it up, with --cancel it ends it")
        raise
    return told


class Progress:
    """One line on stderr: written over on a terminal, else repeated now and then."""

    def __init__(self) -> None:
        self._live = on_terminal(sys.stderr)
        self._next = 0.0
        self._open = False

    def show(self, counts: dict[str, int], *, last: bool = False) -> None:
        """Where the batch stands."""
        now = asyncio.get_running_loop().time()
        if not self._live and now < self._next and not last:
            return
        self._next = now + QUIET
        done = counts["total"] - counts["processing"]
        parts = [f"{counts[name]:,} {name}" for name in COUNTS if counts[name]]
        line = f"{done:,} of {counts['total']:,}{': ' if parts else ''}{', '.join(parts)}"
        if self._live:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
            self._open = True
            if last:
                self.end()
        else:
            note(line)

    def end(self) -> None:
        """Nothing is written over the line any more."""
        if self._open:
            note("")
            self._open = False


async def _results(service: Remote, told: dict[str, Any], options: argparse.Namespace) -> None:
    """The results into the file, else to stdout; with --json the batch, and the results where no file has them."""
    lines = _whole_lines(service.stream(f"/v1/batches/{told['id']}/results"))
    if options.output is not None:
        await _into(Path(options.output), lines)
        note(f"results: {options.output}")
        if options.json:
            say_json(told)
    elif options.json:
        results = [json.loads(line) async for piece in lines for line in piece.split("\n") if line]
        say_json({**told, "results": results})
    else:
        async for piece in lines:
            show(piece, end="")


async def _into(path: Path, lines: AsyncIterator[str]) -> None:
    """Writes a file that is either whole or not there."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            async for piece in lines:
                _write(file, piece)
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _write(file: IO[str], text: str) -> None:
    file.write(text)


async def _whole_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The text, each piece ending with a line."""
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    async for piece in pieces:
        text, newline, rest_ = (rest + decoder.decode(piece)).rpartition("\n")
        rest = rest_
        if newline:
            yield text + newline
    if rest:
        yield rest + "\n"


def _exit_code(counts: dict[str, int]) -> int:
    if counts["succeeded"] == counts["total"]:
        return 0
    if counts["canceled"] and not counts["processing"]:
        return CANCELLED
    return 3 if counts["succeeded"] else 1
