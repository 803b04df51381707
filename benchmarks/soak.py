"""`python -m benchmarks.soak [--kills N] [--seed N] [--heartbeat SECONDS]`: kills without end, and what came of them.

The same engine as the test of twenty kills, for as long as one likes: workers, the server, a host's supervisor,
PostgreSQL, or all of them at once, are killed with -9 at random moments while jobs of all kinds run. Ends with 1 where
anything was lost or happened twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import tempfile
import time
from pathlib import Path

from tests.support.chaos import world
from tests.support.chaos_checks import Found
from tests.support.chaos_storm import kinds, storm


async def soak(kills: int, seed: int, heartbeat: float, home: Path) -> Found:
    """So many kills; what came of them."""
    began = time.monotonic()

    def told(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    async with world(home, seed, heartbeat_timeout=heartbeat) as all_of_it:
        await all_of_it.start_server(workers=1)
        await all_of_it.start_host(workers=1)
        found = await storm(all_of_it, kinds(kills, seed), told)
    found.figures["seconds"] = round(time.monotonic() - began)
    return found


def main() -> int:
    """Prints the figures and the faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--heartbeat", type=float, default=1.0)
    parser.add_argument("--keep", action="store_true", help="keep the folder with the processes' logs")
    options = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # connections break all the time
    folder = Path(tempfile.mkdtemp(prefix="dagwright-soak-"))
    print(f"seed {options.seed}, {options.kills} kills, in {folder}", flush=True)
    try:
        found = asyncio.run(soak(options.kills, options.seed, options.heartbeat, folder))
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found.figures, indent=1))
    for fault in found.faults:
        print(f"FAULT {fault[:2000]}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
