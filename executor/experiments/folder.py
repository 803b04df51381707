"""The folder of a run: what was run, what came of it, what is needed to go on. It needs no other file than its own."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from executor.log.group_commit import WriteFailedError
from registry.errors import ConfigError, UsageError
from registry.messages import canonical_json
from registry.whole_files import appendable, put_whole

from .codec import (
    answer_from_json,
    answer_to_json,
    arm_to_json,
    grade_from_json,
    grade_to_json,
    outcome_from_json,
    outcome_to_json,
    task_from_json,
    task_to_json,
)
from .experiment_file import experiment_of
from .taken_up import differences
from .types import Cell, Experiment, Grade, Outcome, RecordedAnswer, RecordedModel

FORMAT = 1
"""The version of what stands in the folder."""
EXPERIMENT, TASKS, RECORDED, OUTCOMES, GRADES = (
    "experiment.json", "tasks.jsonl", "recorded.jsonl", "outcomes.jsonl", "grades.jsonl",
)  # fmt: skip
KEY_BYTES = 32


class Folder:
    """A run's folder. Outcomes are appended by one process at a time (see `locked`), and are on disk when `append`
    returns; a line that a dying process had begun is cut off. Everything else is written as a whole or not at all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | os.PathLike[str], experiment: Experiment) -> Folder:
        """A new folder for a run. Raises UsageError where there is one already, or something else."""
        folder = cls(path)
        if folder.exists():
            raise UsageError(f"{folder.path} has a run in it already")
        try:
            folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.jobs.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder.path} can't be made: {error.strerror or error}") from None
        folder._put(experiment, time.time(), secrets.token_hex(KEY_BYTES))
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Folder:
        """The folder of a run that there is. Raises UsageError where there is none."""
        folder = cls(path)
        if not folder.exists():
            raise UsageError(f"{folder.path} is no run's folder: there is no {EXPERIMENT} in it")
        return folder

    def exists(self) -> bool:
        """Whether a run is in it."""
        return (self.path / EXPERIMENT).is_file()

    # What is in it

    @property
    def jobs(self) -> Path:
        """Where the jobs' logs are."""
        return self.path / "jobs"

    @property
    def calls(self) -> Path:
        """The call cache's file, where no other one is given."""
        return self.path / "calls.sqlite"

    @property
    def started_at(self) -> float:
        """When the run began, in seconds since the epoch."""
        return float(self._about["started_at"])

    @property
    def key(self) -> bytes:
        """The run's random key; whoever has it can guess the markers of its jobs."""
        return bytes.fromhex(self._about["key"])

    @property
    def fingerprint(self) -> str:
        """Of the tasks, the arms and the seed."""
        return str(self._about["fingerprint"])

    @cached_property
    def experiment(self) -> Experiment:
        """What is run. Raises ConfigError where this version can't read it."""
        about = self._about
        tasks = list(self._lines(TASKS, task_from_json))
        return experiment_of(
            about["source"],
            base=about["base"],
            path=str(self.path / EXPERIMENT),
            tasks=tasks,
            recorded=self._recorded(),
        )

    def outcomes(self) -> list[Outcome]:
        """What has come of the cells so far, in the order in which they ended."""
        found: dict[Cell, Outcome] = {}
        for outcome in self._lines(OUTCOMES, outcome_from_json):
            found.setdefault(outcome.cell, outcome)
        return list(found.values())

    def grades(self) -> list[Grade]:
        """The grades that were last put."""
        return list(self._lines(GRADES, grade_from_json))

    # What is put into it

    def append(self, *outcomes: Outcome) -> None:
        """Adds outcomes; they are on disk when it returns. It may take some milliseconds."""
        with self.appending() as file:
            file.write(b"".join(map(self.line, outcomes)))
            file.flush()
            os.fsync(file.fileno())

    def appending(self) -> IO[bytes]:
        """The file of the outcomes, open for more `line`s, one process at a time. Raises WriteFailedError."""
        try:
            return appendable(self.path / OUTCOMES)
        except OSError as error:
            raise WriteFailedError(f"{self.path / OUTCOMES} can't be written: {error.strerror or error}") from None

    @staticmethod
    def line(outcome: Outcome) -> bytes:
        """An outcome as a line of the file."""
        return _line(outcome_to_json(outcome))

    def put_grades(self, grades: Iterable[Grade]) -> None:
        """Puts all grades, instead of those that there were."""
        self.write(GRADES, b"".join(_line(grade_to_json(grade)) for grade in grades))

    def write(self, name: str, data: bytes | str) -> None:
        """Writes a file of the folder, such as report.md or plots/cost.svg: it is there as a whole, or as it was.

        Raises WriteFailedError.
        """
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put_whole(path, data.encode("utf-8", "replace") if isinstance(data, str) else data)
        except OSError as error:
            raise WriteFailedError(f"{path} can't be written: {error.strerror or error}") from None

    def take_up(self, experiment: Experiment) -> None:
        """Goes on with this experiment, which may have more tasks, arms and repeats than the one before. Raises
        ConfigError, which says what has changed otherwise."""
        before = self.experiment
        changed = differences(before, experiment)
        now = _files(experiment)
        changed += [
            f"{name} has other contents now" for name, was in self._about["files"].items() if now.get(name, was) != was
        ]
        if changed:
            told = "\n".join(f"  {text}" for text in changed)
            raise ConfigError(
                f"{self.path} holds a run of another experiment; only tasks, arms and repeats may be added:\n{told}\n"
                "Give another folder with --output."
            )
        self._put(experiment, self.started_at, self._about["key"])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else runs in the folder meanwhile. Raises UsageError where somebody does; a process that dies lets it
        go."""
        import fcntl

        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.path / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"another process runs the experiment in {self.path}") from None
            yield

    # Inside

    @cached_property
    def _about(self) -> Mapping[str, Any]:
        path = self.path / EXPERIMENT
        try:
            about: Mapping[str, Any] = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
        if not isinstance(about, Mapping) or about.get("format") != FORMAT:
            known = about.get("format") if isinstance(about, Mapping) else "none"
            raise ConfigError(f"{path}: its format is {known}, this version knows {FORMAT}")
        return about

    def _put(self, experiment: Experiment, started_at: float, key: str) -> None:
        about = {
            "format": FORMAT,
            "version": _version(),
            "name": experiment.name,
            "started_at": started_at,
            "fingerprint": fingerprint(experiment),
            "base": None if experiment.base is None else str(experiment.base),
            "files": _files(experiment),
            "key": key,
            "source": experiment.source,
        }
        self.write(TASKS, b"".join(_line(task_to_json(task)) for task in experiment.tasks))
        answers = (
            _line({"model": name, "task": task, **answer_to_json(answer), **_model_line(model)})
            for name, model in experiment.recorded.items()
            for task, answer in model.answers.items()
        )
        self.write(RECORDED, b"".join(answers))
        self.write(EXPERIMENT, json.dumps(about, ensure_ascii=False, indent=1, default=str))
        with suppress(OSError):
            (self.path / EXPERIMENT).chmod(0o600)  # it has the key
        for name in ("_about", "experiment"):
            self.__dict__.pop(name, None)

    def _recorded(self) -> dict[str, RecordedModel]:
        found: dict[str, RecordedModel] = {}
        for model, task, answer in self._lines(RECORDED, _recorded_line):
            answers = found.setdefault(model.name, model).answers
            assert isinstance(answers, dict)
            answers[task] = answer
        return found

    def _lines(self, name: str, read: Callable[[Mapping[str, Any]], Any]) -> Iterator[Any]:
        """What a file has, line by line. The last line counts only as a whole."""
        path = self.path / name
        if not path.is_file():
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield read(json.loads(line))
                except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
                    raise ConfigError(f"{path}:{number}: cannot be read: {type(error).__name__}: {error}") from None


def fingerprint(experiment: Experiment) -> str:
    """A hash of what decides what is run: tasks, arms, seed, repeats."""
    about = {
        "seed": experiment.seed,
        "repeats": experiment.repeats,
        "tasks": [task_to_json(task) for task in experiment.tasks],
        "arms": [arm_to_json(arm) for arm in experiment.arms],
    }
    return sha256(canonical_json(about).encode("utf-8", "surrogatepass")).hexdigest()


def _model_line(model: RecordedModel) -> dict[str, Any]:
    return {"roles": list(model.roles), "model_id": model.model}


def _recorded_line(data: Mapping[str, Any]) -> tuple[RecordedModel, str, RecordedAnswer]:
    model = RecordedModel(data["model"], {}, tuple(data["roles"]), data["model_id"])
    return model, data["task"], answer_from_json(data)


def _files(experiment: Experiment) -> dict[str, str]:
    """The policies' files that arms name, with a hash of what is in them."""
    found = {}
    for arm in experiment.arms:
        name = arm.routing.get("file") if isinstance(arm.routing, Mapping) else None
        if isinstance(name, str):
            path = (experiment.base or Path()) / Path(name).expanduser()
            with suppress(OSError):
                found[name] = sha256(path.read_bytes()).hexdigest()
    return found


def _line(data: Mapping[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), default=str)
    return text.encode("ascii") + b"\n"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dagwright")
    except PackageNotFoundError:
        return "unknown"
