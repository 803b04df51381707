"""A storm: jobs of all kinds come without a pause while one part after the other is killed; then it gets quiet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from tests.support.chaos import World
from tests.support.chaos_checks import Found, examined
from tests.support.chaos_work import Work, works

MIX = ("worker",) * 5 + ("server",) * 2 + ("postgres",) * 2 + ("host",)
"""Ten kills."""
AT_ONCE = 10
"""Jobs that are under way."""
LEAST = 3
"""Jobs that have an owner when something is killed."""
PAUSE = (0.8, 3.5)
"""Seconds from one kill to the next."""
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
            await asyncio.sleep(world.random.uniform(*PAUSE))
            await _busy(world)
            struck = await world.strike(blow)
            told(f"{number + 1}/{len(blows)} {blow}: {len(struck.running)} jobs were running")
        calm.set()
    await rested(world)
    return await examined(world)


async def rested(world: World) -> None:
    """Returns when every job is at its end; what was left undecided meanwhile is decided."""
    await world.serves()
    left = await world.all_rest()
    assert not left, f"on their way still: {left}"
    world.deciding = False
    for job_id, call_id in list(world.undecided):
        await world.decide(job_id, call_id)
    left = await world.all_rest()
    assert not left, f"decided, and on their way still: {left}"


async def _users(world: World, source: Iterator[Work], calm: asyncio.Event) -> None:
    """Begins a job whenever there is room for one."""
    query = "select count(*) from dw_jobs where ended_at is null and batch is null and status <> 'needs_decision'"
    while not calm.is_set():
        (row,) = await world.sql(query)
        for _ in range(AT_ONCE - row["count"]):
            await world.begin(next(source))
        await asyncio.sleep(0.2)


async def _busy(world: World) -> None:
    """Returns when some jobs are running: a kill that meets nobody proves nothing."""
    for _ in range(150):
        rows = await world.sql("select from dw_jobs where owner is not null and ended_at is null")
        if len(rows) >= LEAST:
            return
        await asyncio.sleep(0.1)
