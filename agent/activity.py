"""What is under way in a job at the moment, and whether anything new may begin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """Counts the calls of a job. Its worker asks what still goes on before it lets the job go, and may see to it that
    nothing new begins.

    `models`: calls of models, from when they are sent to their record; `calls`: agents' calls of tools, from the first
    look at them to their result; `running`: those of them whose tool runs.
    """

    __slots__ = ("_closed", "_rest", "asked", "calls", "models", "running")

    def __init__(self) -> None:
        self.models = self.calls = self.running = 0
        self.asked = asyncio.Event()
        """Set by whoever begins to wait for a human."""
        self._closed = False
        self._rest = asyncio.Event()
        self._rest.set()

    @property
    def still(self) -> bool:
        """Whether neither a model nor a tool is at work."""
        return self.models == 0 and self.running == 0

    def close(self) -> None:
        """Nothing new begins from here on."""
        self._closed = True

    async def may_begin(self) -> None:
        """Returns where something new may begin; else stands still until it is cancelled, which is about to happen: the
        job goes on elsewhere from what its log says."""
        if self._closed:
            await asyncio.get_running_loop().create_future()

    async def rest(self) -> None:
        """Returns when neither a model nor a tool is at work."""
        await self._rest.wait()

    def model(self, change: int) -> None:
        """A call of a model begins (1) or is over (-1)."""
        self.models += change
        self._changed()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around all that is done about an agent's call of a tool, waits for a human included."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    @contextmanager
    def run(self) -> Iterator[None]:
        """Around the run of a tool, from the word in the log that it begins to the one that it has ended."""
        self.running += 1
        self._changed()
        try:
            yield
        finally:
            self.running -= 1
            self._changed()

    def _changed(self) -> None:
        if self.still:
            self._rest.set()
        else:
            self._rest.clear()
