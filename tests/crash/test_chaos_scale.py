"""A second worker process does a second worker's work."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale import measured

LEAST = 1.4
"""Times the jobs per minute; `make bench` shows 1.9 and more where nothing else runs on the machine."""


@pytest.mark.heavy
@pytest.mark.timeout(240)
async def test_two_workers_do_more_than_one(tmp_path: Path) -> None:
    rates = []
    for workers in (1, 2):
        home = tmp_path / str(workers)
        home.mkdir()
        rates.append(await measured(home, workers, waves=2))
    assert rates[1] >= LEAST * rates[0], f"jobs per minute with one worker and with two: {rates}"
