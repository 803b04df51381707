"""Kill any process at any moment: every job gets to its end, nothing is lost, nothing is done or paid twice."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.chaos import world
from tests.support.chaos_storm import LEAST, kinds, storm

SEED = int(os.environ.get("DAGWRIGHT_TEST_SEED", "20"))
KILLS = 20


@pytest.mark.heavy
@pytest.mark.timeout(420)
async def test_twenty_kills(tmp_path: Path) -> None:
    async with world(tmp_path, SEED, heartbeat_timeout=1.0) as all_of_it:
        await all_of_it.start_server(workers=1)
        await all_of_it.start_host(workers=1)
        found = await storm(all_of_it, kinds(KILLS, SEED))
    told = f"seed {SEED}\n{json.dumps(found.figures, indent=1)}\n"
    assert found.faults == [], told + "\n".join(found.faults)
    assert sum(found.figures["kills"].values()) == KILLS
    busy = [count for count in found.figures["running at a kill"] if count >= LEAST]
    assert len(busy) >= 0.8 * KILLS, told
    assert found.figures["jobs"].get("completed", 0) > KILLS, told  # the faults are no excuse for doing nothing
    assert found.figures["effects"] > KILLS, told
