"""`dagwright replay JOB`: an ended job once more, from its log alone."""

from __future__ import annotations

import argparse

from executor.log.stored import stored_events
from executor.replay.run import NotReplayableError
from executor.replay.run import replay as replayed

from .database import opened
from .jobs import NoSuchJobError
from .out import safe, say, say_json
from .setup import settings_of, tools_of

DEPARTS = 1
"""The exit code of a replay that went another way than the log."""


async def replay(options: argparse.Namespace) -> int:
    """Replays a job and says where it departs; the exit code tells whether it does."""
    tools = tools_of(settings_of(options))
    async with opened(options) as database:
        row = await database.row("command.job", options.id)
        if row is None:
            raise NoSuchJobError(f"there is no job {options.id!r}: `dagwright jobs list` shows the latest")
        if row["ended_at"] is None:
            raise NotReplayableError(
                f"the job {row['id']} is {row['status']}: only a job that has ended can be replayed"
            )
        events = [event async for event in stored_events(database, row["id"])]
    outcome = await replayed(events, tools)
    if options.json:
        say_json(outcome.to_json())
    elif outcome.same:
        say(f"{row['id']}: the same, from {len(events)} events: plans, statuses and answer")
    else:
        for departure in outcome.departures:
            place = "at the log's end" if departure.seq is None else f"at event {departure.seq}"
            say(safe(f"{row['id']} departs {place}: {departure.message}"))
    return 0 if outcome.same else DEPARTS
