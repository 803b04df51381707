"""An event loop whose time jumps to the next timer whenever nothing else is left to do: waits cost nothing, and many
sleepers wake in the right order."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everybody waits, and nothing will wake them")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `now` is its time in seconds."""

    def __init__(self) -> None:
        self.now = 1_000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class VirtualClock:
    """The running virtual loop's time, as a clock for models."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An asynchronous test on a virtual loop: hours take no time, and a wait without end is an error at once."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        run_virtually(test(*args, **named))

    return run
