"""A storm: jobs of all kinds come without a pause while one part after the other is killed; then it gets quiet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from tests.support.chaos import World
from tests.support.chaos_checks import Found, examined
from tests.support.chaos_work import Work, works

MIX = ("worker",) * 5 + ("server", "server", "postgres", "host", "everything")
"""Ten kills."""
AT_ONCE = 10
"""Jobs that are under way."""
LEAST = 3
"""Jobs that have an owner when something is killed."""
PROGRESS = (10, 2)
"""Replies and effects between two kills, at least."""
PAUSE = (0.0, 2.0)
"""Seconds from then to the next kill."""
BATCH = 6
"""Items of a batch; one comes with every tenth kill."""


def kinds(count: int, seed: int) -> list[str]:
    """What is killed, in the seed's order."""
    drawn = [kind for _ in range(-(-count // len(MIX))) for kind in MIX][:count]
    random.Random(seed).shuffle(drawn)
    return drawn


async def storm(world: World, blows: Sequence[str], told: Callable[[str], None] = lambda text: None) -> Found:
    """Strikes all these blows while jobs run, waits until all rests, has what waits decided, and looks at it all."""
    source, batches = works(world.seed), works(world.seed, batch=BATCH * (len(blows) // 10 + 1))
    calm = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_users(world, source, calm))
        for number, blow in enumerate(blows):
            if number % 10 == 0:
                group.create_task(world.begin_batch(list(islice(batches, BATCH))))
            await _at_work(world)
            await asyncio.sleep(world.random.uniform(*PAUSE))
            struck = await world.strike(blow)
            told(f"{number + 1}/{len(blows)} {blow}: {len(struck.running)} jobs were running")
        calm.set()
    await rested(world)
    return await examined(world)


async def rested(world: World) -> None:
    """Returns when every job is at its end; what was left undecided meanwhile is decided."""
    await world.serves()
    await _none_left(world)
    world.deciding, world.sparing = True, False
    for job_id, call_id in list(world.undecided):
        await world.decide(job_id, call_id)
    await _none_left(world, decided=True)


async def _none_left(world: World, *, decided: bool = False) -> None:
    left = await world.all_rest(decided=decided)
    told = [f"{row['goal']} {row['status']} of {row['owner']}, last:" for row in left]
    for place, row in enumerate(left):
        query = "select seq, channel, step_id, payload from dw_events where job = $1 order by seq desc limit 12"
        told[place] += "".join(f"\n  {str(dict(event))[:300]}" for event in await world.sql(query, row["id"]))
        told[place] += f"\n  queued: {await world.sql('select * from pgqueuer where dedupe_key = $1', row['id'])}"
    assert not left, "on their way still: " + "\n".join(told)


async def _users(world: World, source: Iterator[Work], calm: asyncio.Event) -> None:
    """Begins a job whenever there is room for one."""
    query = "select count(*) from dw_jobs where ended_at is null and batch is null and status <> 'needs_decision'"
    while not calm.is_set():
        (row,) = await world.sql(query)
        for _ in range(AT_ONCE - row["count"]):
            await world.begin(next(source))
        await asyncio.sleep(0.2)


async def _at_work(world: World) -> None:
    """Returns when there is work to be lost: jobs are running, and something has been done since the last kill. On a
    machine that is too slow for that, after a while."""
    replies, effects = len(world.model.book), len(world.effects())
    for _ in range(300):
        rows = await world.sql("select from dw_jobs where owner is not null and ended_at is null")
        done = len(world.model.book) - replies, len(world.effects()) - effects
        if len(rows) >= LEAST and done[0] >= PROGRESS[0] and done[1] >= PROGRESS[1]:
            return
        await asyncio.sleep(0.1)
