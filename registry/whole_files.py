"""Files that survive the death of whoever writes them: whole ones, and such of lines."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

PIECE = 65_536
"""Bytes that are looked through at once."""


def appendable(path: Path) -> IO[bytes]:
    """A file of lines, open for more of them; a last line that is not whole is cut off. Raises OSError."""
    file = path.open("a+b")
    end = keep = file.seek(0, os.SEEK_END)
    while keep:
        start = max(0, keep - PIECE)
        file.seek(start)
        place = file.read(keep - start).rfind(b"\n")
        keep = start + place + 1
        if place >= 0:
            break
    if keep < end:
        file.truncate(keep)
    file.seek(0, os.SEEK_END)
    if not end:
        sync_folder(path.parent)
    return file


def put_whole(path: Path, data: bytes) -> None:
    """Writes a file: it is there and on disk as a whole, or as it was. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """What was made in a folder is on disk, where the platform can say so."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
