"""How a run is told to stop, and how a job of it is put down: as it stands, to go on later."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from executor.job import JobRunner

GRACE = 4.0
"""Seconds that calls under way have once a run is to stop: what they bring is then known when it goes on."""
SETTLE = 0.05
"""Seconds that a job has after its last call: that may have been all it needed for its end."""
TOOLS = 10.0
"""Seconds that tools have to end where only they are at work."""


class Stop:
    """Told once, a run begins nothing new and gives what is under way GRACE seconds; told twice, it stops at once.
    Whatever is cut goes on when the run does."""

    def __init__(self) -> None:
        self.told, self.over = asyncio.Event(), asyncio.Event()

    def tell(self) -> None:
        """Stops the run."""
        if self.told.is_set():
            self.over.set()
        else:
            self.told.set()
            asyncio.get_running_loop().call_later(GRACE, self.over.set)


async def put_down(runner: JobRunner, job: asyncio.Task[None], stop: Stop, used_up: asyncio.Event) -> None:
    """Once the run is to stop, or its budget does not allow a call of this job's, the job begins nothing new; when
    nothing of it is under way any more, or the time for that is over, it is cut."""
    await first_of(stop.told.wait(), used_up.wait())
    runner.state.activity.close()
    await first_of(_rest(runner), stop.over.wait())
    cut(runner, job)


def cut(runner: JobRunner, job: asyncio.Task[None]) -> None:
    """Ends the work here without a word, unless it has come to its end by itself."""
    if runner.state.ended is None and not runner.cancelling and not job.done():
        runner.handed_over = True
        runner.state.log.seal()
        job.cancel()


async def _rest(runner: JobRunner) -> None:
    """Returns when no model is at work for the job any more, and no tool, unless that takes longer: it may be waiting
    for a call of a model that the budget does not allow."""
    activity = runner.state.activity
    while not activity.still:
        with suppress(TimeoutError):
            async with asyncio.timeout(TOOLS):
                await activity.rest()
        if not activity.models:
            break
    await asyncio.sleep(SETTLE)


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Returns when the first of them is over; the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wait) for wait in waits]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
