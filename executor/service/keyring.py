"""Who asks, from memory: a key is looked up once every few seconds at most, whatever the number of its requests; and
requests under way end when their key is revoked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog

from executor.store.database import BusyError, outages
from executor.store.keys import Asker, KeyStore, Proof
from registry.clock import SYSTEM_CLOCK, Clock

KEPT = 5.0
"""Seconds for which what was looked up is believed, and between two looks at the keys of requests under way: a revoked
key is of no use after it, also where the notification was lost."""
MOST = 10_000
"""Keys and sessions that are remembered at most, wrong ones among them."""
AT_ONCE = 1_000
"""Keys of one statement."""

log = structlog.get_logger(__name__)


class Keyring:
    """The keys of one database as they were some seconds ago at most; `changed` makes it forget them all.

    One request looks up for all that wait: authentication never takes more than one connection of the pool.
    """

    def __init__(self, store: KeyStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store, self._clock = store, clock
        self._known: dict[Proof | None, tuple[float, Asker]] = {}
        self._wanted: dict[Proof | None, int] = {}
        self._turn = asyncio.Lock()
        self._changes = self._failures = 0

    async def asker(self, proof: Proof | None) -> Asker:
        """Who sends a request with this key or session, or with none. Raises BusyError."""
        found = self._remembered(proof)
        if found is None:
            self._wanted[proof] = self._wanted.get(proof, 0) + 1
            try:
                found = await self._in_turn(proof, self._failures)
            finally:
                self._wanted[proof] -= 1
                if not self._wanted[proof]:
                    del self._wanted[proof]
        return found

    async def now(self, proofs: Collection[Proof | None]) -> dict[Proof | None, Asker]:
        """Who these are at this moment."""
        found: dict[Proof | None, Asker] = {}
        wanted = list(proofs)
        for start in range(0, len(wanted), AT_ONCE):
            found |= await self._look_up(wanted[start : start + AT_ONCE])
        return found

    def changed(self) -> None:
        """Keys or sessions were made or revoked: nothing that is known counts any more."""
        self._changes += 1
        self._known.clear()

    def _remembered(self, proof: Proof | None) -> Asker | None:
        at, asker = self._known.get(proof, (0.0, None))
        return asker if asker is not None and self._clock.monotonic() - at < KEPT else None

    async def _in_turn(self, proof: Proof | None, failures: int) -> Asker:
        """Waits for one look-up that is under way, and for its own: of each the database bounds the time. Where one
        failed meanwhile, that is the answer of all who waited."""
        async with self._turn:
            found = self._remembered(proof)
            if found is not None:  # one before looked it up for all
                return found
            if failures != self._failures:
                raise BusyError
            wanted = [proof, *(other for other in self._wanted if other != proof)][:AT_ONCE]
            try:
                return (await self._look_up(wanted))[proof]
            except outages():
                self._failures += 1
                raise

    async def _look_up(self, wanted: list[Proof | None]) -> dict[Proof | None, Asker]:
        now, changes = self._clock.monotonic(), self._changes
        configured, keys = await self._store.valid(proof for proof in wanted if proof is not None)
        found = {proof: Asker(configured, None if proof is None else keys.get(proof)) for proof in wanted}
        if changes == self._changes:  # else it may be of before the change
            for proof, asker in found.items():
                self._known.pop(proof, None)
                self._known[proof] = (now, asker)
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return found


class Watch:
    """The requests under way, by what they were let in with: they end when it is no longer valid."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._going: dict[Proof | None, set[Callable[[], None]]] = {}
        self._news = asyncio.Event()

    @contextmanager
    def over(self, proof: Proof | None, end: Callable[[], None]) -> Iterator[None]:
        """Within the block `end` is called, once, when the proof is no longer valid."""
        ends = self._going.setdefault(proof, set())
        ends.add(end)
        try:
            yield
        finally:
            ends.discard(end)
            if not ends and self._going.get(proof) is ends:
                del self._going[proof]

    def changed(self) -> None:
        """Keys or sessions were made or revoked."""
        self._keyring.changed()
        self._news.set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Looks after the requests within the block."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._watch(), name="keys of requests under way")
            try:
                yield
            finally:
                task.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(KEPT):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            try:
                await self._look()
            except outages() as error:  # nobody is let in meanwhile, either
                log.warning("keys_not_read", error=str(error) or type(error).__name__)

    async def _look(self) -> None:
        for proof, asker in (await self._keyring.now(tuple(self._going))).items():
            if asker.key is None and (proof is not None or asker.configured):
                for end in self._going.pop(proof, set()):
                    end()
