"""Readers that were there all the time: they come back with their last id whenever the stream breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx2

from tests.support.sse import Answer, Sent, sent


class Reader:
    """One reader of a job's events. `events` are the stored ones in the order in which they came, `answer` the text
    that is put together of live and stored pieces; `breaks` counts streams that ended before the job did."""

    def __init__(self, http: httpx2.AsyncClient, url: str, job_id: str, seen: Callable[[Sent], Any]) -> None:
        self._http, self._url, self._job_id, self._seen = http, f"{url}/v1/jobs/{job_id}/events", job_id, seen
        self.events: list[Sent] = []
        self.answer = Answer()
        self.breaks = 0
        self.faults: list[str] = []
        self.ended = False
        self._stopped = False
        self._task: asyncio.Task[Any] | None = None

    async def follow(self) -> None:
        """Reads to the job's end, or until `stop`."""
        self._task = asyncio.current_task()
        try:
            while not self.ended:
                with suppress(httpx2.HTTPError):
                    await self._read()
                self.breaks += not self.ended
                await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            if not self._stopped:
                raise

    def stop(self) -> None:
        """Leaves."""
        self._stopped = True
        if self._task is not None and not self._task.done():
            self._task.cancel()

    async def _read(self) -> None:
        headers = {"last-event-id": str(self.events[-1].id)} if self.events else {}
        async with self._http.stream("GET", self._url, headers=headers, timeout=60) as response:
            if response.status_code != 200:
                return
            async for event in sent(response.aiter_raw()):
                try:
                    self.answer.take(event)
                except AssertionError as error:
                    self.faults.append(f"{event}: {error}")
                if event.id is not None:
                    self.events.append(event)
                    self._seen(event)
                    self.ended = event.channel == "done"
