"""A whole experiment, from where it stands: cells in the seed's order, a few at a time, each outcome on disk before the
next cell begins in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from agent.context import FATAL
from executor.experiments.cells import cells_of
from executor.experiments.folder import Folder
from executor.experiments.outcome_of import outcome_of, spent_in
from executor.experiments.types import Cell, Experiment, Outcome, Task
from executor.job_options import JobOptions
from executor.log.file import UNREADABLE, ReadLog, read_log
from executor.log.group_commit import GroupCommit
from registry.budget import NOTHING, Amount
from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import ConfigError
from registry.messages import LLMResult
from registry.models import ModelRegistry
from registry.reply_cache import ReplyCache
from registry.tools import ToolRegistry

from .arm_setup import ArmSetup
from .budget import RunBudget, spent_for
from .cell import CellError, Shop, run_cell
from .stopping import Stop

if TYPE_CHECKING:
    from executor.settings_model import Settings

TOGETHER = 500
"""Recorded outcomes that are written at once."""
RunStatus = Literal["done", "interrupted", "budget_exceeded", "incomplete"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands. `begun` are cells that ended since it went on, `spent` is in USD, of the whole run; `cost` is
    what all cells together would have cost without the cache, None where nothing is known."""

    ended: int
    cells: int
    begun: int
    running: int
    spent: Decimal
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended.

    `done`: each cell has its outcome. `interrupted` and `budget_exceeded`: the others go on when it does.
    `incomplete`: `failed` says for cells why they could not be run.
    """

    status: RunStatus
    ended: int
    cells: int
    spent: Amount = NOTHING
    failed: dict[Cell, str] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Cells without an outcome."""
        return self.cells - self.ended


OnProgress = Callable[[Progress], None]


async def run_experiment(
    experiment: Experiment,
    folder: Folder,
    models: ModelRegistry | None,
    tools: ToolRegistry | None = None,
    settings: Settings | None = None,
    *,
    options_of: Callable[[Settings], JobOptions] = JobOptions.from_settings,
    calls: Path | None = None,
    stop: Stop | None = None,
    on_progress: OnProgress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> RunEnd:
    """Runs the cells that have no outcome in the folder yet, which is made where there is none.

    `models`, `tools` and `settings` may be missing where all arms are recorded answers. `calls` is the file of the call
    cache, instead of the folder's own. `stop` ends the run before its end; so does a cancellation. In both cases, and
    when the process dies, the same call goes on with it: no cell is run twice, and no reply that was written down is
    asked for again. Raises ConfigError for what can't be run, and UsageError where another process runs in the folder.
    """
    run = _Run(experiment, folder, stop or Stop(), on_progress, clock)
    arms = _arms(experiment, models, tools or ToolRegistry(), settings, options_of)
    if arms and models is not None:
        run.budget.check(models)
    with folder.locked():
        _made(folder, experiment)
        run.known()
        try:
            async with run.writing(), _cache(experiment, bool(arms), calls or folder.calls) as cache:
                await run.recorded()
                if arms and models is not None:
                    await run.jobs(arms, models, tools or ToolRegistry(), cache)
        except BaseExceptionGroup as errors:
            raise _one(errors) from None
        return run.end()


def _arms(
    experiment: Experiment,
    models: ModelRegistry | None,
    tools: ToolRegistry,
    settings: Settings | None,
    options_of: Callable[[Settings], JobOptions],
) -> dict[str, ArmSetup]:
    """The arms of jobs, made ready; those of recorded answers are checked."""
    from executor.experiments.recorded.arm import policy_of_arm

    found = {}
    for arm in experiment.arms:
        if arm.kind == "recorded":
            policy_of_arm(experiment, arm)
        elif models is None or settings is None:
            raise ConfigError(f"arm {arm.name!r} runs jobs: it needs models")
        else:
            found[arm.name] = ArmSetup.of(experiment, arm, models, tools, settings, options_of)
    return found


def _made(folder: Folder, experiment: Experiment) -> None:
    if folder.exists():
        folder.take_up(experiment)
    else:
        Folder.create(folder.path, experiment)


def _cache(experiment: Experiment, wanted: bool, path: Path) -> AbstractAsyncContextManager[ReplyCache | None]:
    return ReplyCache.open(path) if experiment.cache and wanted else nullcontext(None)


class _Run:
    """A run on its way."""

    def __init__(
        self, experiment: Experiment, folder: Folder, stop: Stop, on_progress: OnProgress | None, clock: Clock
    ) -> None:
        self.experiment, self.folder, self.stop, self.clock = experiment, folder, stop, clock
        self.on_progress = on_progress
        self.budget = RunBudget(experiment.budget)
        self.writer = GroupCommit()
        self.file: IO[bytes] | None = None
        self.cells = experiment.size
        self.done: set[Cell] = set()
        self.failed: dict[Cell, str] = {}
        self.begun = self.running = 0
        self.used_up = False
        self.fatal = ""
        self.cost: Decimal | None = None
        self.ids: set[str] = set()
        self.told: list[Mapping[str, Any]] = []  # the turns of cells that have begun and not ended

    def known(self) -> None:
        """Takes up what stands in the folder."""
        for outcome in self.folder.outcomes():
            self._count(outcome)
            self.budget.restore(spent_for(outcome))
        for path in sorted(self.folder.jobs.glob("*.jsonl")):
            if path.stem not in self.ids:
                with suppress(ConfigError, *UNREADABLE):  # its cell says so
                    events = read_log(path, path.stem).events
                    self.budget.restore(spent_in(events))
                    self.told += [event.payload for event in events if event.channel == "turn"]

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Everything is written down within the block, and on disk after it."""
        self.file = self.folder.appending()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.writer.serve(), name="writer")
                yield
                self.writer.end()
        finally:
            self.file.close()

    def end(self) -> RunEnd:
        """How it ended."""
        status: RunStatus = "done"
        if len(self.done) < self.cells:
            status = "incomplete"
            if self.used_up:
                status = "budget_exceeded"
            elif self.stop.told.is_set():
                status = "interrupted"
        return RunEnd(status, len(self.done), self.cells, self.budget.spent, self.failed)

    # Recorded answers

    async def recorded(self) -> None:
        """The outcomes of recorded arms that are not there yet."""
        from executor.experiments.recorded.arm import recorded_outcomes

        waiting: list[Outcome] = []
        for arm in self.experiment.arms:
            if arm.kind != "recorded":
                continue
            for outcome in recorded_outcomes(self.experiment, arm):
                if outcome.cell not in self.done:
                    waiting.append(outcome)
                if len(waiting) >= TOGETHER:
                    await self._put(waiting)
                    waiting = []
                    if self.stop.told.is_set():
                        return
        await self._put(waiting)

    # Jobs

    async def jobs(
        self, arms: dict[str, ArmSetup], models: ModelRegistry, tools: ToolRegistry, cache: ReplyCache | None
    ) -> None:
        """The outcomes of jobs that are not there yet."""
        folder = self.folder
        day = datetime.fromtimestamp(folder.started_at, UTC).date()
        shop = Shop(
            self.experiment, models, tools, folder.jobs, folder.path / "artifacts", folder.key, day,
            self.budget, self.stop, self.writer, cache, self.clock,
        )  # fmt: skip
        if cache is not None:
            await self._share(cache)
        cells = (cell for cell in cells_of(self.experiment) if cell.arm in arms and cell not in self.done)
        async with asyncio.TaskGroup() as group:
            for number in range(min(self.experiment.concurrency, self.cells)):
                group.create_task(self._worker(cells, arms, shop), name=f"cells {number}")

    async def _share(self, cache: ReplyCache) -> None:
        """What cells were told is in the cache before any of them asks, also where the process died in between."""
        for turn in self.told:
            if "reply_key" in turn and "masked" not in turn:
                with suppress(*UNREADABLE):
                    await cache.put(turn["reply_key"], LLMResult.from_json(turn["result"]))
        self.told.clear()

    async def _worker(self, cells: Iterator[Cell], arms: dict[str, ArmSetup], shop: Shop) -> None:
        tasks = {task.id: task for task in self.experiment.tasks}
        for cell in cells:
            if self.stop.told.is_set() or self.used_up or self.fatal:
                return
            self.running += 1
            self._tell()
            try:
                await self._cell(shop, cell, tasks[cell.task], arms[cell.arm])
            finally:
                self.running -= 1

    async def _cell(self, shop: Shop, cell: Cell, task: Task, arm: ArmSetup) -> None:
        job_id = shop.job_id(cell)
        try:
            log: ReadLog | None = await asyncio.to_thread(_log_of, shop.log_of(cell), job_id)
            assert log is not None
            if log.summary is None:
                log = await run_cell(shop, cell, task, arm, log)
        except (CellError, ConfigError) as error:
            self.failed[cell] = str(error)
            return
        if log is None:
            self.used_up |= not self.stop.told.is_set()
            return
        assert log.summary is not None
        outcome = outcome_of(cell, log.summary, log.events, job_id=job_id)
        if outcome.error_code in FATAL:
            self.failed[cell] = self.fatal = outcome.error or str(outcome.error_code)
            return
        self.begun += 1
        await self._put([outcome])

    # Outcomes

    async def _put(self, outcomes: list[Outcome]) -> None:
        """Returns when they are on disk."""
        assert self.file is not None
        for outcome in outcomes:
            self.writer.add(self.file, self.folder.line(outcome))
        await self.writer.written()
        for outcome in outcomes:
            self._count(outcome)
        self._tell()

    def _count(self, outcome: Outcome) -> None:
        self.done.add(outcome.cell)
        if outcome.job_id is not None:
            self.ids.add(outcome.job_id)
        if outcome.cost is not None:
            self.cost = (self.cost or Decimal(0)) + outcome.cost

    def _tell(self) -> None:
        if self.on_progress is not None:
            spent = self.budget.spent.usd
            self.on_progress(Progress(len(self.done), self.cells, self.begun, self.running, spent, self.cost))


def _log_of(path: Path, job_id: str) -> ReadLog:
    """The log of a cell's job. One that ended because nothing could succeed, for want of a valid key say, is put aside:
    the job is begun anew."""
    log = read_log(path, job_id)
    if log.summary is None or log.summary["error_code"] not in FATAL:
        return log
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}.jsonl")).exists():
        number += 1
    path.rename(aside)
    return ReadLog()


def _one(error: BaseException) -> BaseException:
    """The exception inside groups: the first of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
