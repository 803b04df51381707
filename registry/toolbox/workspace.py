"""A folder that file access can't leave: not by `..`, absolute paths, links or odd names.

Each component of a path is opened relative to the one before it without following links, so that nothing swapped in
between leads out. Where the platform has no such calls (Windows), components are checked for links before use.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from registry.errors import DagwrightError

MAX_READ = 2_000_000
"""Bytes of a file that are read."""

MAX_WRITE = 5_000_000
"""Bytes a file may be written with."""

MAX_PATH_CHARS = 1_000
MAX_LISTED = 1_000
MAX_LIST_DEPTH = 20

_DIR_FD = {os.open, os.mkdir, os.stat, os.unlink, os.rename} <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW
_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NOFOLLOW  # a pipe must not block the open
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
_WINDOWS = os.name == "nt"
_WINDOWS_TRAPS = re.compile(
    r".*[. ]|.*[<>:\"|?*].*|(con|prn|aux|nul|conin\$|conout\$|clock\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE
)
"""Names that Windows takes for something else: "dir. " for "dir", "a:b" for a stream of a, "nul.txt" for a device."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class WorkspaceError(DagwrightError, ValueError):
    """The file can't be reached in the workspace."""

    code = "workspace"


@dataclass(frozen=True, slots=True)
class FileData:
    """The first bytes of a file and its full size in bytes."""

    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder (`kind` "folder") or something that is not followed ("link", "other"); `size` is in bytes."""

    path: str
    kind: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class _At:
    """An open folder: its descriptor, or its path where the platform has no relative calls."""

    fd: int | None
    path: Path

    def name(self, name: str) -> str:
        return name if self.fd is not None else str(self.path / name)

    def lstat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(self.name(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None


def parts_of(path: str) -> tuple[str, ...]:
    """The components of a path inside the workspace; () is the workspace itself. Raises WorkspaceError."""
    shown = repr(path if len(path) <= 100 else path[:100] + "…")
    if _CONTROL.search(path):
        raise WorkspaceError(f"the path {shown} has control characters")
    if len(path) > MAX_PATH_CHARS:
        raise WorkspaceError(f"the path {shown} is too long")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise WorkspaceError(f"the path {shown} is not valid text") from None
    if path.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z]:", path):
        raise WorkspaceError(f"the path {shown} is absolute: paths are relative to the workspace")
    if "\\" in path:
        raise WorkspaceError(f"the path {shown} has backslashes: folders are separated by /")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if any(part.startswith("..") and not part.strip(". ") for part in parts):  # ".. " may count as ".."
        raise WorkspaceError(f"the path {shown} leads up: '..' is not allowed")
    if _WINDOWS and any(_WINDOWS_TRAPS.fullmatch(part) for part in parts):
        raise WorkspaceError(f"the path {shown} has a name that Windows takes for something else")
    return parts


class Workspace:
    """Files under `root`, a folder that exists; the root itself may be reached through links."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()

    def read(self, path: str, limit: int = MAX_READ) -> FileData:
        """At most `limit` bytes of a file. Raises WorkspaceError."""
        *folder, name = self._file(path)
        with self._clear(path), self._folder(folder) as at:
            self._regular(at, name, path)
            fd = os.open(at.name(name), _FILE, dir_fd=at.fd)
            with os.fdopen(fd, "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise WorkspaceError(f"{path!r} is not a regular file")
                return FileData(file.read(limit), status.st_size)

    def write(self, path: str, data: bytes) -> bool:
        """Puts a file in place in one step, folders made as needed; whether it is new. Raises WorkspaceError."""
        if len(data) > MAX_WRITE:
            raise WorkspaceError(f"{len(data):,} bytes are too many for a file: at most {MAX_WRITE:,}")
        *folder, name = self._file(path)
        with self._clear(path), self._folder(folder, create=True) as at:
            before = self._regular(at, name, path, must_exist=False)
            new = f".{uuid.uuid4().hex}.tmp"
            fd = os.open(at.name(new), _NEW, 0o666, dir_fd=at.fd)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    if before is not None and hasattr(os, "fchmod"):
                        os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode) & 0o777)
                os.replace(at.name(new), at.name(name), src_dir_fd=at.fd, dst_dir_fd=at.fd)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(at.name(new), dir_fd=at.fd)
                raise
        return before is None

    def entries(self, path: str = "", *, recursive: bool = False) -> tuple[list[Entry], bool]:
        """The entries of a folder, sorted, and whether some were left out. Raises WorkspaceError."""
        parts = parts_of(path)
        found: list[Entry] = []
        with self._clear(path), self._folder(parts) as at:
            complete = self._walk(at, "/".join(parts), found, MAX_LIST_DEPTH if recursive else 0)
        return found[:MAX_LISTED], not complete or len(found) > MAX_LISTED

    def _walk(self, at: _At, prefix: str, found: list[Entry], depth: int) -> bool:
        with os.scandir(at.path if at.fd is None else at.fd) as found_here:
            names = sorted(entry.name for entry in found_here)
        complete = True
        for name in names:
            if len(found) > MAX_LISTED:
                return False
            status = at.lstat(name)
            if status is None:  # gone meanwhile
                continue
            entry = Entry(f"{prefix}/{name}" if prefix else name, _kind(status), status.st_size)
            found.append(entry)
            if entry.kind == "folder" and depth > 0:
                with self._down(at, name) as inner:
                    complete = self._walk(inner, entry.path, found, depth - 1) and complete
        return complete

    def _file(self, path: str) -> tuple[str, ...]:
        parts = parts_of(path)
        if not parts or path.endswith("/"):
            raise WorkspaceError(f"{path!r} names no file")
        return parts

    def _regular(self, at: _At, name: str, path: str, *, must_exist: bool = True) -> os.stat_result | None:
        status = at.lstat(name)
        if status is None:
            if must_exist:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return None
        kind = _kind(status)
        if kind == "link":
            raise WorkspaceError(f"{path!r} is a link: links are not followed")
        if kind == "folder":
            raise WorkspaceError(f"{path!r} is a folder, not a file")
        if kind != "file":
            raise WorkspaceError(f"{path!r} is not a regular file")
        return status

    @contextmanager
    def _folder(self, parts: Sequence[str], *, create: bool = False) -> Iterator[_At]:
        at = _At(os.open(self._root, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0)) if _DIR_FD else None, self._root)
        try:
            for part in parts:
                if create and at.lstat(part) is None:
                    with suppress(FileExistsError):
                        os.mkdir(at.name(part), dir_fd=at.fd)
                inner = self._enter(at, part)
                self._close(at)
                at = inner
            yield at
        finally:
            self._close(at)

    @contextmanager
    def _down(self, at: _At, name: str) -> Iterator[_At]:
        inner = self._enter(at, name)
        try:
            yield inner
        finally:
            self._close(inner)

    def _enter(self, at: _At, name: str) -> _At:
        status = at.lstat(name)
        if status is not None and _kind(status) == "link":
            raise WorkspaceError(f"{name!r} is a link: links are not followed")
        if status is not None and _kind(status) != "folder":
            raise WorkspaceError(f"{name!r} is not a folder")
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return _At(os.open(name, _FOLDER, dir_fd=at.fd) if at.fd is not None else None, at.path / name)

    def _close(self, at: _At) -> None:
        if at.fd is not None:
            os.close(at.fd)

    @contextmanager
    def _clear(self, path: str) -> Iterator[None]:
        """Operating system errors in words that name the path as it was given, not the machine's folders."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise WorkspaceError(f"{path!r} does not exist in the workspace") from None
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise WorkspaceError(f"{path!r} leads through a link or a file: not followed") from None
            raise WorkspaceError(f"{path!r}: {error.strerror or type(error).__name__}") from None


def _kind(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode) or bool(getattr(status, "st_reparse_tag", 0)):
        return "link"
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    return "file" if stat.S_ISREG(status.st_mode) else "other"
