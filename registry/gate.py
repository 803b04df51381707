"""Admission to a provider: one gate for each address, key and model, shared by all that runs in the process."""

from __future__ import annotations

import asyncio
import threading
from bisect import insort
from collections import deque
from collections.abc import Hashable
from contextlib import AbstractAsyncContextManager
from hashlib import blake2b
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from .clock import Clock
from .errors import LLMError
from .gate_limits import NO_LIMITS, Start
from .gate_rules import Traffic, again, is_refusal
from .retry import Tries

if TYPE_CHECKING:
    from .llm import LLM
    from .llm_types import Prepared
    from .messages import Usage

BYTES_PER_TOKEN = 4
"""Of a request's body: the rule of thumb of 4 characters a token, with the JSON around them as a margin."""
OUTPUT_GUESS = 1_024
"""Output tokens reckoned with at the entrance where a call sets no limit."""
OUTPUT_MOST = 4_096
"""Output tokens reckoned with at most: limits that are sent are mostly far above what is then written."""
KEPT = 64
"""Gates that were refused and are remembered although no model uses them at the moment."""
_SOON = 1e-6
"""Seconds that are no wait: sleeps end a little early, and sums of floating-point numbers differ."""


class Gate(Protocol):
    """Admission to a provider, shared by all callers of one provider, key and model."""

    def enter(self, llm: LLM, prepared: Prepared, tries: Tries | None = None) -> AbstractAsyncContextManager[Admission]:
        """Waits for a place; leaving gives it back, and an LLMError that passes through tells how it went. Raises the
        provider's last refusal where that keeps the call outside for longer than its `tries` have time."""

    def hold(self, error: LLMError, wait: float) -> float:
        """A call was refused or broke off and should be tried again in `wait` seconds. Returns how many of them the
        caller waits by itself: 0 where the gate keeps everybody, this caller too, at its entrance."""


class Admission(Protocol):
    """One call's place inside a gate."""

    def used(self, usage: Usage | None) -> None:
        """What the call took in truth, in place of what was thought when it was let in."""


class ProviderGate:
    """Keeps a model's limits, and holds everybody at the entrance when the provider refuses one.

    Those who wait are let in in order: who was refused before goes first, the least refused first, then by arrival.
    The first in line sleeps until its time and wakes the next, so that there is no task beside the callers. Usable
    from several event loops, one after another or at once in several threads.
    """

    def __init__(self, traffic: Traffic | None = None) -> None:
        self.traffic = traffic or Traffic()
        self._inside: set[Place] = set()
        self._line: list[Place] = []
        self._calm = True
        self._tickets = count(1)
        self._lock = threading.Lock()

    @property
    def in_flight(self) -> int:
        """Calls inside."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """Callers in line."""
        return len(self._line)

    def enter(self, llm: LLM, prepared: Prepared, tries: Tries | None = None) -> Place:
        """A place for one call. See `Gate`."""
        return Place(self, llm, prepared, tries or Tries(float("inf")))

    def hold(self, error: LLMError, wait: float) -> float:
        """The gate holds everybody after a refusal; after anything else the caller waits by itself."""
        return 0.0 if is_refusal(error) else wait

    # What a place does

    def come_in(self, place: Place, now: float) -> bool:
        """Lets a call in at once where nobody waits and nothing is limited."""
        if not self._calm or (place.llm.limits is not NO_LIMITS and place.llm.limits != NO_LIMITS):
            return False
        place.start = self.traffic.started(now, place.tokens)
        self._inside.add(place)
        return True

    def line_up(self, place: Place, now: float) -> None:
        """Puts a call in line."""
        with self._lock:
            if self._line and self._line[0].loop.is_closed():
                self._line = [other for other in self._line if not other.loop.is_closed()]
            self._calm = False
            self.traffic.arrives(now, len(self._line))
            place.tries.ticket = place.tries.ticket or next(self._tickets)
            insort(self._line, place)

    def step_up(self, place: Place) -> float:
        """Lets a call in and returns 0 if it is its turn; else the seconds to wait, infinite: until it is woken.
        Raises the refusal that keeps it outside for too long."""
        with self._lock:
            now = place.llm.clock.monotonic()
            traffic, deadline = self.traffic, place.tries.deadline
            wait = float("inf")
            if self._line[0] is place:
                wait = traffic.wait(now, place.llm.limits, place.tokens, self._room(place))
            refusal = traffic.refusal(now)
            late = wait < float("inf") and now + wait > deadline
            if refusal is not None and (late or traffic.hopeless(now, deadline)):
                place.tries.over = True
                raise again(refusal)
            if wait > _SOON:
                return wait
            place.start = traffic.started(now, place.tokens)
            self._inside.add(place)
            self._out_of_line(place, now)
            return 0.0

    def step_out(self, place: Place) -> None:
        """Takes a call out of the line that gave up."""
        with self._lock:
            if place in self._line:
                self._out_of_line(place, place.llm.clock.monotonic())

    def leave(self, place: Place, error: BaseException | None) -> None:
        """A call is over."""
        start = place.start
        assert start is not None
        refused = isinstance(error, LLMError) and is_refusal(error)
        if self._calm and not refused:
            self._inside.discard(place)
            start.ended = place.llm.clock.monotonic()
            if self._calm:  # else someone lined up in another thread, and may have counted this place
                return
        with self._lock:
            self._inside.discard(place)
            now = place.llm.clock.monotonic()
            if refused:
                assert isinstance(error, LLMError)
                self.traffic.refused(start, error, place.llm.retry, now, len(self._inside))
                _remember(self)
            else:
                self.traffic.ended(start, now, well=error is None)
            self._calm = not self._line and self.traffic.calm(now)
            self._wake_first()

    def corrected(self) -> None:
        """A call took more or fewer tokens than was thought."""
        if not self._calm:
            with self._lock:
                self._wake_first()

    # Inside the lock

    def _room(self, place: Place) -> int:
        """Calls in flight; those of loops that were closed under them are none."""
        if place.llm.limits.concurrency is not None and len(self._inside) >= place.llm.limits.concurrency:
            self._inside = {other for other in self._inside if not other.loop.is_closed()}
        return len(self._inside)

    def _out_of_line(self, place: Place, now: float) -> None:
        first = self._line[0] is place
        self._line.remove(place)
        self._calm = not self._line and self.traffic.calm(now)
        if first:
            self._wake_first()

    def _wake_first(self) -> None:
        while self._line and not self._line[0].wake():
            del self._line[0]


class Place:
    """One call at a gate: in line, inside, or gone. An asynchronous context manager, and the call's `Admission`."""

    __slots__ = ("_gate", "_scope", "_woken", "llm", "loop", "start", "tokens", "tries")

    def __init__(self, gate: ProviderGate, llm: LLM, prepared: Prepared, tries: Tries) -> None:
        self._gate, self.llm, self.tries = gate, llm, tries
        bound = prepared.output_bound
        self.tokens = len(prepared.body) // BYTES_PER_TOKEN + min(OUTPUT_GUESS if bound is None else bound, OUTPUT_MOST)
        self.loop = asyncio.get_running_loop()
        self.start: Start | None = None
        self._scope: asyncio.Timeout | None = None
        self._woken = False

    def __lt__(self, other: Place) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[bool, int, int]:
        return (self.tries.attempt == 1, self.tries.attempt, self.tries.ticket)

    async def __aenter__(self) -> Place:
        gate, clock = self._gate, self.llm.clock
        came = clock.monotonic()
        if gate.come_in(self, came):
            return self
        gate.line_up(self, came)
        try:
            while wait := gate.step_up(self):
                await self._pause(clock, wait)
        except BaseException:
            gate.step_out(self)
            raise
        if gate.traffic.refusal(now := clock.monotonic()) is None:
            self.tries.deadline += now - came  # what others' calls take is no fault of the provider
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave(self, error)

    def used(self, usage: Usage | None) -> None:
        """The tokens the provider counted."""
        if usage is not None and self.start is not None:
            self.start.tokens = usage.input_tokens + usage.output_tokens
            self._gate.corrected()

    def wake(self) -> bool:
        """Ends this place's pause. False where its event loop is closed and it will never be used."""
        if self.loop is _running_loop():
            self._rouse()
            return True
        try:
            self.loop.call_soon_threadsafe(self._rouse)
        except RuntimeError:
            return False
        return True

    def _rouse(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            self._woken = True
            scope.reschedule(self.loop.time())

    async def _pause(self, clock: Clock, seconds: float) -> None:
        """Waits so long, or until woken. The time limit without a time is what wakes: no task is needed."""
        self._woken = False
        try:
            async with asyncio.timeout(None) as self._scope:
                if seconds == float("inf"):
                    await self.loop.create_future()
                else:
                    await clock.sleep(seconds)
        except TimeoutError:
            if not self._woken:
                raise
        finally:
            self._scope = None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# One gate per address, key and model

_gates: WeakValueDictionary[Hashable, ProviderGate] = WeakValueDictionary()
_refused: deque[ProviderGate] = deque(maxlen=KEPT)


def shared_gate(address: str, key: str | None, model: str, clock: Clock) -> ProviderGate:
    """The process's gate for a model at a server's address with a key; a clock of one's own has gates of its own."""
    secret = blake2b((key or "").encode(), digest_size=16).digest()
    name = (_server(address), secret, model, clock)
    gate = _gates.get(name)
    if gate is None:
        gate = _gates[name] = ProviderGate()
    return gate


def _server(address: str) -> str:
    """The same server under the addresses that different APIs want."""
    parts = urlsplit(address)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}{path}"


def _remember(gate: ProviderGate) -> None:
    """What a refusal taught outlives the model that was refused."""
    if gate not in _refused:
        _refused.append(gate)


def forget_gates() -> None:
    """Forgets what refusals taught: models made from now on get fresh gates. For tests."""
    _refused.clear()
    _gates.clear()
