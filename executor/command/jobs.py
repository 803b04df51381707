"""`dagwright jobs list | show ID | events ID | cancel ID`: the service's jobs, those of all keys."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar, get_args

from executor.job_types import JobStatus
from executor.results import rfc3339
from executor.store.database import Database, Row
from executor.store.fold import end_cancelled, job_json, listed
from executor.store.jobs import JobStore
from registry.errors import UsageError
from registry.text import cut_end

from .database import opened
from .out import json_text, note, safe, say, say_json, show
from .run import EXIT_CODES
from .values import count_of

SHOWN = 20
"""Jobs that are listed where nothing is said."""
PAGE = 500
"""Events that are read at once."""


class NoSuchJobError(UsageError):
    """There is no such job."""

    code: ClassVar[str] = "no_such_job"


async def jobs(options: argparse.Namespace) -> int:
    """Shows jobs, or ends one."""
    if options.action == "list":
        limit = count_of(options.limit, "--limit") or SHOWN
        if options.status not in (None, *get_args(JobStatus)):
            raise UsageError(f"--status {options.status}: must be one of {', '.join(get_args(JobStatus))}")
        async with opened(options) as database:
            return await _list(database, options, limit)
    act = {"show": _show, "events": _events, "cancel": _cancel}[options.action]
    async with opened(options) as database:
        row = await database.row("command.job", options.id)
        if row is None:
            raise NoSuchJobError(f"there is no job {options.id!r}: `dagwright jobs list` shows the latest")
        return await act(database, row, options)


async def _list(database: Database, options: argparse.Namespace, limit: int) -> int:
    rows = await database.rows("command.jobs", options.status, limit)
    if options.json:
        say_json({"jobs": [listed(row) for row in rows]})
        return 0
    for row in rows:
        goal = cut_end(" ".join(row["goal"].split()), 80)
        say(safe(f"{row['id']}  {row['status']:<15}  {rfc3339(row['created_at'].timestamp())}  {goal}"))
    if not rows:
        say("no jobs")
    return 0


async def _show(database: Database, row: Row, options: argparse.Namespace) -> int:
    """The job; the exit code tells how it ended, 0 while it has not."""
    shown = await job_json(database, row)
    if options.json:
        say_json(shown)
    else:
        _told(shown)
    return 0 if row["ended_at"] is None else EXIT_CODES.get(row["status"], 1)


def _told(shown: dict[str, Any]) -> None:
    """The job for readers: the answer on stdout, what it is and where it stands on stderr."""
    note(safe(f"{shown['id']}: {shown['status']} ({shown['mode']}), created {shown['created_at']}"))
    note(safe(f"goal: {cut_end(' '.join(shown['goal'].split()), 200)}"))
    for step in shown["steps"]:
        why = f": {cut_end(step['error'], 200)}" if step["error"] else ""
        note(safe(f"  {step['id']}  {step['status']}{why}"))
    usage = shown["usage"]
    cost = "unknown" if usage["cost_usd"] is None else f"{usage['cost_usd']} USD"
    note(f"{usage['calls']} model calls, {usage['input_tokens']} + {usage['output_tokens']} tokens, cost {cost}")
    if shown["error"]:
        note(safe(f"error: {shown['error']}"))
    if shown["answer"]:
        show(shown["answer"])


async def _events(database: Database, row: Row, options: argparse.Namespace) -> int:
    """The events so far, as JSON lines; with --json one object that holds them."""
    after, found = 0, []
    while page := await database.rows("log.read_events", row["id"], after, False, PAGE):
        for event in page:
            shown = {"job_id": row["id"], **event, "ts": event["ts"]}
            if options.json:
                found.append(shown)
            elif not say(json_text(shown, indent=None)):
                return 0
        after = page[-1]["seq"]
    if options.json:
        say_json({"events": found})
    return 0


async def _cancel(database: Database, row: Row, options: argparse.Namespace) -> int:
    """Ends a job that nobody runs at once, and asks the worker of another one to."""
    asked = await JobStore(database).cancel(row["tenant"], row["id"])
    if asked is not None and asked["owner"] is None:
        await end_cancelled(database, row["id"])
    now = await database.row("command.job", row["id"])
    assert now is not None
    if options.json:
        say_json(await job_json(database, now))
    elif asked is None:
        say(f"{row['id']} has ended before: {row['status']}")
    else:
        say(f"{row['id']}: {'is being cancelled' if now['ended_at'] is None else now['status']}")
    return 0
