"""`python -m executor.embedded_child DATA_DIR`: owns an embedded PostgreSQL until its standard input closes.

Says on standard output, in one JSON line, that the server is ready or why it isn't. Exits with 1 when the server has
died, so that whoever supervises this process starts another one.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from executor.embedded import SOCKET, START_SECONDS, USER, VERSION, EmbeddedError, Place, place_of

LOOK = 0.5
"""Seconds between looks whether the server lives."""
LOCK_SECONDS = 15.0
"""How long the end of an earlier child is waited for."""
STOP_SECONDS = 20.0
"""How long an orderly stop may take; then the server is told to quit at once, and recovers at its next start."""
LOG_BYTES = 10_000_000
"""Size from which on the server's log is begun anew."""


def main() -> int:
    """Runs the child; its exit code."""
    signal.signal(signal.SIGTERM, _ended)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        place = place_of(Path(sys.argv[1]))
        _make_folders(place)
        with _locked(place.folder / "lock"):
            server = Server(place)
            try:
                server.start()
                _tell({"ready": True})
                return _watch(server)
            finally:
                server.stop()
    except (EmbeddedError, OSError) as error:
        _tell({"error": str(error)})
        return 2


def _ended(*_: Any) -> NoReturn:
    sys.exit(0)


def _tell(what: Mapping[str, Any]) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def _watch(server: Server) -> int:
    while server.alive():
        ready, _, _ = select.select([sys.stdin], [], [], LOOK)
        if ready and not os.read(sys.stdin.fileno(), 1024):
            return 0
    return 1


def _make_folders(place: Place) -> None:
    place.folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    for folder in {place.folder, place.sockets}:
        folder.mkdir(mode=0o700, exist_ok=True)
        if place.user is not None:
            os.chown(folder, *place.user)
        owner = os.geteuid() if place.user is None else place.user[0]
        if folder.is_symlink() or folder.stat().st_uid != owner:
            raise EmbeddedError(f"{folder} belongs to somebody else")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one child owns a server. Raises EmbeddedError where another one does."""
    until = time.monotonic() + LOCK_SECONDS
    with path.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise EmbeddedError(
                        f"another `dagwright serve` uses the database in {path.parent}: use its address, or give this "
                        "one a data folder of its own (DAGWRIGHT_DATA_DIR)"
                    ) from None
                time.sleep(0.1)
        yield


class Server:
    """The PostgreSQL of a place: one that this process starts, or one that runs already."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._own: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    def start(self) -> None:
        """Returns when the server takes connections. Raises EmbeddedError."""
        self._check_version()
        if not (self.place.data / "PG_VERSION").exists():
            self._create()
        until = time.monotonic() + START_SECONDS
        self._pid = self._running()
        if self._pid is None:
            self._launch()
        while not self._is_ready():
            if not self.alive():
                raise EmbeddedError(f"the server ended at its start: {self._last_words()}")
            if time.monotonic() > until:
                raise EmbeddedError(f"the server was not ready after {START_SECONDS:g} s: {self._last_words()}")
            time.sleep(0.05)

    def alive(self) -> bool:
        """Whether the server's process is there."""
        if self._own is not None:
            return self._own.poll() is None
        return self._pid is not None and _is_postgres(self._pid)

    def stop(self) -> None:
        """Ends the server, in order if it can be."""
        for sent, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
            until = time.monotonic() + seconds
            if self.alive() and self._pid is not None:
                os.kill(self._pid, sent)
            while self.alive() and time.monotonic() < until:
                time.sleep(0.02)

    def _check_version(self) -> None:
        file = self.place.data / "PG_VERSION"
        if file.exists() and (made := file.read_text().strip()) != str(VERSION):
            raise EmbeddedError(
                f"the database in {self.place.data} was made by PostgreSQL {made}, and this is {VERSION}: move it with "
                "pg_dump, or set DATABASE_URL"
            )

    def _create(self) -> None:
        """A new database; it gets its name only when it is whole."""
        new = self.place.folder / "data.new"
        if new.exists():
            self._run("rm", "-rf", str(new))  # what a start that was killed has left
        self._run(
            str(self.place.programs / "initdb"), "-D", str(new), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale",
            "--no-instructions",
        )  # fmt: skip
        new.rename(self.place.data)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, check=False, **self._as_user())
        if done.returncode:
            raise EmbeddedError(f"{Path(command[0]).name} failed: {done.stderr.decode(errors='replace').strip()}")

    def _as_user(self) -> dict[str, Any]:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "HOME": str(self.place.folder)}
        options: dict[str, Any] = {"env": environment, "cwd": "/", "umask": 0o077}
        if self.place.user is not None:
            uid, gid = self.place.user
            options |= {"user": uid, "group": gid, "extra_groups": []}
        return options

    def _running(self) -> int | None:
        """The process of a server that runs already; a note of one that has died is removed."""
        note = self.place.data / "postmaster.pid"
        try:
            pid = int(note.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        if _is_postgres(pid):
            return pid
        note.unlink(missing_ok=True)  # another program may have the number now, and the server would not start
        return None

    def _launch(self) -> None:
        place, written = self.place, self.place.folder / "log"
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(place.sockets),
            "unix_socket_permissions": "0700",
        }
        mode = "wb" if written.exists() and written.stat().st_size > LOG_BYTES else "ab"
        with written.open(mode) as output:
            self._own = subprocess.Popen(
                [str(place.programs / "postgres"), "-D", str(place.data),
                 *(part for name, value in options.items() for part in ("-c", f"{name}={value}"))],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **self._as_user(),
            )  # fmt: skip
        self._pid = self._own.pid

    def _is_ready(self) -> bool:
        """Whether the server says so; pg_ctl waits for the same, but not as long as a recovery may take."""
        try:
            lines = (self.place.data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[7].strip() == "ready" and (self.place.sockets / SOCKET).exists()

    def _last_words(self) -> str:
        with suppress(OSError):
            return (self.place.folder / "log").read_text(errors="replace")[-500:].strip()
        return "it left no log"


def _is_postgres(pid: int) -> bool:
    """Whether a process lives and is a PostgreSQL; its number may have gone to another program."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        found = subprocess.run(["ps", "-o", "comm=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return "postgres" in found.stdout
    name, _, rest = status.partition("(")[2].rpartition(")")
    return "postgres" in name and rest.split()[0] != "Z"


if __name__ == "__main__":
    sys.exit(main())
