"""`dagwright fork JOB --step ID`: a step of an ended job once more, in a new job."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agent.events import OnEvent
from executor.fork import Fork, Told, forked
from executor.job_options import JobOptions
from executor.routing_settings import routing_of
from executor.settings import read_environment
from executor.store.database import POOL_SIZE, Database, Row
from executor.store.fold import job_json
from executor.store.jobs import JobStore
from executor.waits import Approve
from executor.workers.local_job import LOCAL, LocalJob, kept_job
from executor.workers.workshop import Workshop
from registry.config import load_models
from registry.errors import NoModelError
from registry.models import ModelRegistry

from .database import opened
from .jobs import NoSuchJobError
from .out import note, say, say_json
from .run import EXIT_CODES, followed
from .setup import prepared

if TYPE_CHECKING:
    from executor.settings_model import Settings


async def fork(options: argparse.Namespace) -> int:
    """Makes the new job. Where its parent was run by the command, it is run here, and the exit code tells how it ended;
    else it is put into the service's queue."""
    wanted = Fork(options.step, not options.only, options.model)
    async with opened(options, size=POOL_SIZE) as database:
        parent = await database.row("command.job", options.id)
        if parent is None:
            raise NoSuchJobError(f"there is no job {options.id!r}: `dagwright jobs list` shows the latest")
        told = Told.of(await database.rows("fork.told", parent["id"]))
        if parent["request"].get(LOCAL):
            return await _here(database, parent, told, wanted, options)
        new = forked(parent, told, wanted, await _hints(options, parent))
        row, _ = await JobStore(database).create(parent["tenant"], new)
        if options.json:
            say_json(await job_json(database, row))
        else:
            say(row["id"])
            note(f"queued, a fork of {parent['id']}: `dagwright jobs show {row['id']}` tells how it stands")
        return 0


async def _here(database: Database, parent: Row, told: Told, wanted: Fork, options: argparse.Namespace) -> int:
    async with prepared(options) as setup:
        new = forked(parent, told, wanted, _of_the_job(setup.models, parent).hints())

        @asynccontextmanager
        async def begin(on_event: OnEvent, approve: Approve) -> AsyncIterator[LocalJob]:
            shop = Workshop(
                setup.models, setup.tools, setup.settings, partial(_as_the_parent, setup.options),
                on_event=on_event, approve=approve,
            )  # fmt: skip
            async with kept_job(database, new, shop, parent["tenant"]) as handle:
                yield handle

        job = await followed(options, setup, begin)
    for name in job.artifacts:
        note(f"artifact: {name}, in the database")
    return EXIT_CODES[job.status]


async def _hints(options: argparse.Namespace, parent: Row) -> Collection[str] | None:
    """What a step's model may be called, as far as that is known here: workers may have models of their own."""
    if options.model is None:
        return None
    try:
        models = load_models(options.models, read_environment())
    except NoModelError:
        return None
    await models.aclose()
    return _of_the_job(models, parent).hints()


def _as_the_parent(options: JobOptions, settings: Settings) -> JobOptions:
    """The command's options, with the parent's routing: `settings` have it on top."""
    run = replace(options.run, routing=routing_of(settings))
    return replace(options, run=run, roles=dict(settings.roles))


def _of_the_job(models: ModelRegistry, parent: Row) -> ModelRegistry:
    """The models that the parent's steps may use."""
    names: list[str] | None = parent["request"].get("models")
    return models.subset(names) if names else models
