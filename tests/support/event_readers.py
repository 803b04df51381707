"""Many readers of one job's events in a process of their own: `python -m … URL JOB COUNT`. Says `ready` when all are
connected, and at the end, as JSON, what they got."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sys
import time
from collections import Counter
from hashlib import sha256

import aiohttp

ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
COMMENT = re.compile(rb": keep-alive\n\n")


async def follow(session: aiohttp.ClientSession, url: str, connected: asyncio.Semaphore) -> tuple[str, float]:
    """The whole stream; what tells its events apart from another's (ids in order, and all the bytes), and when it
    ended."""
    last, rest, digest, number = 0, b"", sha256(), 0
    while (response := await session.get(url)).status == 503:  # very many came at once: as it says, again in a moment
        await asyncio.sleep(float(response.headers["Retry-After"]))
    async with response:
        assert response.status == 200
        connected.release()
        async for data in response.content.iter_any():
            whole, cut, rest = (rest + data).rpartition(b"\n\n")
            whole = COMMENT.sub(b"", whole + cut)
            digest.update(whole)
            for found in ID.finditer(whole):
                assert int(found[1]) > last
                last, number = int(found[1]), number + 1
    return f"{number} {last} {digest.hexdigest()}", time.time()


async def main(url: str, job: str, count: int) -> None:
    """Runs the readers."""
    connected = asyncio.Semaphore(0)
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        place = f"{url}/v1/jobs/{job}/events"
        tasks = [group.create_task(follow(session, place, connected)) for _ in range(count)]
        for _ in range(count):
            await connected.acquire()
        print("ready", flush=True)
    results = [task.result() for task in tasks]
    print(json.dumps({"got": Counter(got for got, _ in results), "ended": max(at for _, at in results)}))


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
