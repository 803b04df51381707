"""Where tools' artifacts are kept: files for the reader's eyes, of which the model sees one line."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from .result_text import Artifact
from .text import clean, cut_end
from .threads import shared_pool

MAX_NAME_CHARS = 120


class ArtifactStore(Protocol):
    """Keeps the artifacts of one job."""

    async def put(self, artifact: Artifact) -> Artifact:
        """Keeps an artifact; the one given back has the name it is kept under, which no other has."""

    async def get(self, name: str) -> Artifact:
        """A kept artifact; raises KeyError."""

    def names(self) -> tuple[str, ...]:
        """The names of all that is kept, in the order in which they came."""


@dataclass(slots=True)
class MemoryArtifacts:
    """Keeps artifacts in memory, for tests and for jobs nobody wants files of."""

    _kept: dict[str, Artifact]

    def __init__(self) -> None:
        self._kept = {}

    async def put(self, artifact: Artifact) -> Artifact:
        """Keeps it."""
        kept = replace(artifact, name=free_name(artifact.name, self._kept))
        self._kept[kept.name] = kept
        return kept

    async def get(self, name: str) -> Artifact:
        """A kept artifact; raises KeyError."""
        return self._kept[name]

    def names(self) -> tuple[str, ...]:
        """The names of all that is kept."""
        return tuple(self._kept)


class FolderArtifacts:
    """Keeps the artifacts of one job as files in a folder of its own, which is made with the first one. `known`: for a
    job that goes on, the names and types of those that its log tells of; another file was kept by a call that died
    before its end was told: where that call is made again, the name is its own."""

    def __init__(self, folder: str | os.PathLike[str], known: Mapping[str, str] | None = None) -> None:
        self.folder = Path(folder)
        self._mimes = dict(known or {})
        self._owns = known is not None

    async def put(self, artifact: Artifact) -> Artifact:
        """Writes it; the file is whole or not there. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        there = set() if self._owns else {path.name for path in self.folder.iterdir()}
        kept = replace(artifact, name=free_name(artifact.name, there | set(self._mimes)))
        self._mimes[kept.name] = kept.mime  # taken before anything waits
        returned = await shared_pool().run(lambda: _write(self.folder, kept))
        if returned.error is not None:
            del self._mimes[kept.name]
            raise returned.error
        return kept

    async def get(self, name: str) -> Artifact:
        """A kept artifact; raises KeyError."""
        if name not in self._mimes:
            raise KeyError(name)
        returned = await shared_pool().run((self.folder / name).read_bytes)
        if returned.error is not None:
            raise KeyError(name)
        return Artifact(name, self._mimes[name], returned.value)

    def names(self) -> tuple[str, ...]:
        """The names of all that is kept."""
        return tuple(self._mimes)


def _write(folder: Path, artifact: Artifact) -> None:
    handle, path = tempfile.mkstemp(prefix=".", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(artifact.data)
        Path(path).rename(folder / artifact.name)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def plain_name(name: str) -> str:
    """A file name out of whatever a tool calls its artifact: no folders, no odd characters, never empty or hidden."""
    last = PurePosixPath(clean(name).replace("\\", "/")).name
    plain = re.sub(r"[^\w.() -]+", "_", last).strip(" .")
    stem, dot, ending = plain.rpartition(".")
    if len(plain) > MAX_NAME_CHARS and dot and len(ending) <= 10:
        plain = cut_end(stem, MAX_NAME_CHARS - len(ending) - 1, "") + dot + ending
    return cut_end(plain, MAX_NAME_CHARS, "") or "unnamed"


def free_name(name: str, taken: object) -> str:
    """The plain name, numbered where it is taken: report.html, report-2.html, …"""
    plain = plain_name(name)
    stem, dot, ending = plain.rpartition(".")
    if not dot:
        stem, ending = plain, ""
    candidate, number = plain, 1
    while candidate in taken:  # type: ignore[operator]
        number += 1
        candidate = f"{stem}-{number}{dot}{ending}"
    return candidate
