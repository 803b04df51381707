"""One cell's job: begun, or taken up from its log, and run to its end, unless it is put down before."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from executor.experiments.cell_job import job_of_cell
from executor.experiments.types import Cell, Experiment, Task
from executor.hooks_config import build_hooks
from executor.job import JobRunner
from executor.job_state import JobState
from executor.job_types import JobRequest
from executor.log.file import UNREADABLE, FileLog, ReadLog, read_log
from executor.log.group_commit import GroupCommit
from executor.recovery import JobPast
from registry.artifacts import FolderArtifacts
from registry.clock import SYSTEM_CLOCK, Clock, FixedDay
from registry.errors import DagwrightError, UsageError
from registry.messages import Event
from registry.models import ModelRegistry
from registry.reply_cache import ReplyCache
from registry.tools import ToolRegistry

from .arm_setup import ArmSetup
from .budget import RunBudget
from .stopping import Stop, cut, put_down

LAST_WORD = 5.0
"""Seconds that a job which is cancelled has to come to its end."""
MARKER_CHARS = 12
"""As many hexadecimal digits as `agent.trust.new_marker` gives."""


class CellError(DagwrightError):
    """The cell can't be run."""

    code = "cell_not_run"


@dataclass(frozen=True, slots=True)
class Shop:
    """What all cells of a run are run with. `key` is the run's own, `day` the date in prompts; `cache` None: replies
    are not kept."""

    experiment: Experiment
    models: ModelRegistry
    tools: ToolRegistry
    logs: Path
    artifacts: Path
    key: bytes
    day: date
    budget: RunBudget
    stop: Stop
    writer: GroupCommit
    cache: ReplyCache | None = None
    clock: Clock = SYSTEM_CLOCK

    def job_id(self, cell: Cell) -> str:
        """The cell's job: the same one whenever it goes on."""
        return f"job_{self._digest('job', *map(str, cell))[:24]}"

    def log_of(self, cell: Cell) -> Path:
        """The file of its log."""
        return self.logs / f"{self.job_id(cell)}.jsonl"

    def marker(self, cell: Cell) -> str:
        """The code that delimits data in the cell's prompts: nobody can guess it, and it is the same for all arms, so
        that they ask in the same words."""
        return self._digest("marker", cell.task, str(cell.repeat))[:MARKER_CHARS]

    def models_of(self, cell: Cell, events: Sequence[Event]) -> ModelRegistry:
        """The models, their replies shared by all cells that ask the same in the same repeat."""
        if self.cache is None:
            return self.models
        seen = [
            event.payload["reply_key"] for event in events if event.channel == "turn" and "reply_key" in event.payload
        ]
        replies = self.cache.for_job(str(cell.repeat), seen)
        return self.models.each(lambda llm: llm.remembering(replies))

    def _digest(self, *names: str) -> str:
        return hmac.new(self.key, "\0".join(names).encode("utf-8", "surrogatepass"), "sha256").hexdigest()


async def run_cell(shop: Shop, cell: Cell, task: Task, arm: ArmSetup, known: ReadLog) -> ReadLog | None:
    """Runs the cell's job; its log, whole, or None where it was put down. `known` is what the log has already.
    Cancelled, it is put down at once. Raises CellError for a job that can't be made."""
    path, job_id = shop.log_of(cell), shop.job_id(cell)
    log = FileLog(job_id, path, shop.writer, seq=len(known.events), clock=shop.clock)
    try:
        ended = await _run(shop, cell, _runner(shop, cell, task, arm, log, known.events))
    finally:
        await log.release()
    return await asyncio.to_thread(read_log, path, job_id) if ended else None


def _runner(
    shop: Shop, cell: Cell, task: Task, arm: ArmSetup, log: FileLog, events: Sequence[Event]
) -> tuple[JobRunner, asyncio.Event]:
    behind = shop.budget.for_cell()
    try:
        past = JobPast.read(events) if events else None
        for name in () if past is None else past.models:
            shop.models.get(name)  # its steps' agents belong to these
        artifacts = FolderArtifacts(shop.artifacts / log.job_id, _artifacts_in(events))
        state = JobState(
            _request(shop, cell, task, arm),
            shop.models_of(cell, events),
            shop.tools,
            log=log,
            hooks=build_hooks(arm.options.hooks),
            options=arm.options,
            artifacts=artifacts,
            clock=FixedDay(shop.day, shop.clock),
            past=past,
            marker=shop.marker(cell),
            behind=behind,
        )
    except UNREADABLE as error:
        raise CellError(f"its log can't be read by this version: {type(error).__name__}: {error}") from None
    except DagwrightError as error:
        raise CellError(str(error)) from None
    return JobRunner(state), behind.used_up


def _request(shop: Shop, cell: Cell, task: Task, arm: ArmSetup) -> JobRequest:
    job = job_of_cell(shop.experiment, arm.arm, task)
    about = {"experiment": shop.experiment.name, "arm": cell.arm, "task": cell.task, "repeat": cell.repeat}
    kind = {} if task.kind is None else {"kind": task.kind}
    return JobRequest(
        job.goal,
        arm.plans.get(task.id),
        job.mode,  # type: ignore[arg-type]  # checked when the file was read
        answer_mode=arm.settings.answer_mode,
        metadata={**about, **kind},
        budget=arm.budget,
    )


def _artifacts_in(events: Sequence[Event]) -> dict[str, str]:
    told = [event.payload["artifact"] for event in events if event.payload.get("artifact")]
    return {artifact["name"]: artifact["mime"] for artifact in told}


async def _run(shop: Shop, cell: Cell, made: tuple[JobRunner, asyncio.Event]) -> bool:
    """Whether the job came to its end."""
    runner, used_up = made
    async with asyncio.TaskGroup() as group:
        job = group.create_task(_job(runner), name=f"job {cell}")
        watch = group.create_task(put_down(runner, job, shop.stop, used_up), name=f"put down {cell}")
        try:
            await asyncio.wait({job})
        except asyncio.CancelledError:
            cut(runner, job)
            await asyncio.wait({job}, timeout=LAST_WORD)
            raise
        watch.cancel()
    return not runner.handed_over


async def _job(runner: JobRunner) -> None:
    with suppress(UsageError):  # the job's account says it
        await runner.run()
