"""Keys from memory: looked up once for all who wait, believed for a short time, never after a change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from executor.service import keyring
from executor.service.keyring import KEPT, Keyring, Watch
from executor.store.database import BusyError
from executor.store.keys import Key, KeyStore, Limits, Proof, proof_of
from registry.testing import FakeClock


class Store:
    """A table of keys that answers when it is let to."""

    def __init__(self, *valid: Proof) -> None:
        self.keys = {proof: Key(f"key_{number}", "k", Limits()) for number, proof in enumerate(valid)}
        self.configured = bool(valid)
        self.asked: list[tuple[Proof, ...]] = []
        self.error: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def valid(self, proofs: Iterable[Proof]) -> tuple[bool, dict[Proof, Key]]:
        wanted = tuple(proofs)
        self.asked.append(wanted)
        found = {proof: self.keys[proof] for proof in wanted if proof in self.keys}
        configured = self.configured
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return configured, found


def proof(number: int) -> Proof:
    found = proof_of(f"secret {number}", None)
    assert found is not None
    return found


def ring(store: Store, clock: Any = None) -> Keyring:
    return Keyring(cast(KeyStore, store), clock or FakeClock())


async def test_a_key_is_looked_up_once_in_a_while() -> None:
    store, clock = Store(proof(1)), FakeClock()
    keys = ring(store, clock)
    for _ in range(3):
        assert (await keys.asker(proof(1))).key is not None
        assert (await keys.asker(proof(2))).key is None
    assert len(store.asked) == 2
    del store.keys[proof(1)]
    await clock.sleep(KEPT - 0.1)
    assert (await keys.asker(proof(1))).key is not None
    await clock.sleep(0.1)
    assert (await keys.asker(proof(1))).key is None


async def test_one_looks_up_for_all_who_wait() -> None:
    known = [proof(number) for number in range(50)]
    store = Store(*known)
    store.open.clear()
    keys = ring(store)
    waiting = [asyncio.create_task(keys.asker(one)) for one in [*known, *known, None]]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting[0].cancel()  # the first one asks just now; that it leaves must cost nobody anything
    await asyncio.sleep(0)
    store.open.set()
    first, *others = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert [getattr(one, "key", None) for one in others] == [
        *(store.keys[one] for one in known[1:]),
        *store.keys.values(),
        None,
    ]
    assert len(store.asked) == 2
    assert not keys._wanted


async def test_what_is_looked_up_while_keys_change_is_not_remembered() -> None:
    store = Store(proof(1))
    store.open.clear()
    keys = ring(store)
    asking = asyncio.create_task(keys.asker(proof(1)))
    await asyncio.sleep(0.01)
    del store.keys[proof(1)]
    keys.changed()
    store.open.set()
    assert (await asking).key is not None  # it asked before
    assert (await keys.asker(proof(1))).key is None


async def test_no_more_is_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "MOST", 10)
    store = Store(proof(1))
    keys = ring(store)
    for number in range(2, 100):
        await keys.asker(proof(number))
    assert len(keys._known) == 10
    assert (await keys.asker(proof(1))).key is not None


async def test_one_failure_is_the_answer_of_all_who_wait() -> None:
    store = Store(proof(1))
    store.open.clear()
    keys = ring(store)
    asking = [asyncio.create_task(keys.asker(proof(number))) for number in range(5)]
    await asyncio.sleep(0.01)
    store.error = BusyError()
    store.open.set()
    told = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(one) for one in told} == {BusyError}
    assert len(store.asked) == 1
    store.error = None
    assert (await keys.asker(proof(1))).key is not None


async def test_requests_end_with_their_key_and_no_others() -> None:
    store = Store(proof(1), proof(2))
    watch = Watch(ring(store))
    ended: list[str] = []
    async with watch.watching():
        with (
            watch.over(proof(1), lambda: ended.append("mine")),
            watch.over(proof(2), lambda: ended.append("another's")),
        ):
            with watch.over(proof(1), lambda: ended.append("one that is over")):
                pass
            del store.keys[proof(1)]
            watch.changed()
            async with asyncio.timeout(10):
                while not ended:
                    await asyncio.sleep(0.01)
    assert ended == ["mine"]
    assert not watch._going
