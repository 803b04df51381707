"""Calls of a job that wait for a human: asked for, decided, or out of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from agent.waits import ASKED, Decision, Nobody, PendingCall
from registry.clock import SYSTEM_CLOCK, Clock
from registry.errors import UsageError
from registry.messages import Event
from registry.redaction import redact

Approve = Callable[[PendingCall], Awaitable[Decision]]
"""Asks a human; it may take its time, and is cancelled when the call is decided elsewhere."""

GRACE = 5.0
"""Seconds a question that nobody needs an answer to any more may take to end."""

log = structlog.get_logger(__name__)


NO_WORD = frozenset({"deadline", "job", "nobody"})
"""Who "decided" where no human did: that is a rejection, and says nothing of whether a call took effect."""


@dataclass(slots=True)
class _Waiting:
    """A call that waits now; `until`: seconds since the epoch at which its time is over."""

    call: PendingCall
    until: float
    decided: asyncio.Future[Decision] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(slots=True)
class _Told:
    """What was told of a question: until when it stands, and what was decided, if anything was."""

    until: float
    decision: Decision | None = None


class JobWaits:
    """The job's side of the port: `park` is called by agents, `settle` by whoever ends their steps, `decide` by whoever
    speaks for the human.

    `tell(payload, step_id)` writes an `approval` event. `parked(step_id)` gives up a step's slot and stops its clock
    within its block. With `approve` that function is asked; with `open_to_decisions` somebody holds the job's handle.
    With neither, nobody can be asked and every call is rejected at once.
    """

    def __init__(
        self,
        tell: Callable[[dict[str, Any], str | None], None],
        parked: Callable[[str | None], AbstractAsyncContextManager[None]],
        *,
        approve: Approve | None = None,
        open_to_decisions: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._tell, self._parked, self._approve, self._clock = tell, parked, approve, clock
        self._open = open_to_decisions
        self._waiting: dict[str, _Waiting] = {}
        self._told: dict[tuple[str, bool], _Told] = {}  # by the call's key, and whether its effect was asked for
        self._early: dict[str, Decision] = {}
        self._closed: str | None = None

    def restore(self, approvals: Iterable[Event]) -> None:
        """Takes up what the log says: who was told to wait waits again without being told, for the rest of its time;
        what was decided stands."""
        asked: dict[str, bool] = {}
        for event in approvals:
            told, call_id, status = event.payload, event.payload["call_id"], event.payload["status"]
            if status in ASKED:
                asked[call_id] = status == "uncertain"
                self._told[call_id, asked[call_id]] = _Told(event.ts + told["deadline"])
                continue
            place = call_id, asked.get(call_id, False)
            if status == "cancelled":
                self._told.pop(place, None)
                continue
            decision = Decision(status == "approved", told.get("reason") or "", told.get("decided_by") or "user")
            self._told[place] = _Told(event.ts, decision)

    def known(self, call_id: str, decision: Decision) -> None:
        """A decision that came before its call waits, or waits again: it holds as soon as it does."""
        self._early[call_id] = decision

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait, in the order in which they came."""
        return tuple(waiting.call for waiting in self._waiting.values() if not waiting.decided.done())

    @property
    def due(self) -> float | None:
        """Seconds until the first of those that wait is out of time; None where none waits."""
        ends = [waiting.until for waiting in self._waiting.values() if not waiting.decided.done()]
        return max(0.0, min(ends) - self._clock.time()) if ends else None

    def decide(self, call_id: str, approve: bool, reason: str = "", decided_by: str = "user") -> None:
        """Decides a call. Raises UsageError where none of this id waits, and for an `approve` that is no bool: "no" is
        true to Python."""
        if not isinstance(approve, bool):
            raise UsageError(f"approve must be True or False, not {approve!r}")
        decision, waiting = Decision(approve, reason, decided_by), self._waiting.get(call_id)
        if waiting is not None and not waiting.decided.done():
            waiting.decided.set_result(decision)
        elif waiting is None and call_id not in self._early and self._will_wait(call_id):
            self._early[call_id] = decision
        else:
            known = ", ".join(call.call_id for call in self.pending) or "none"
            raise UsageError(f"no call {call_id!r} waits for a decision; waiting: {known}")

    def _will_wait(self, call_id: str) -> bool:
        """Whether the call was told to wait, by another worker, and has not come to it again."""
        asked = (self._told.get((call_id, uncertain)) for uncertain in (False, True))
        return any(told is not None and told.decision is None for told in asked)

    def reject_all(self, reason: str) -> None:
        """Rejects all calls that wait, and those that come: a model's reply under way may still ask for one."""
        self._closed = reason
        for waiting in self._waiting.values():
            if not waiting.decided.done():
                waiting.decided.set_result(Decision(False, reason, "job"))

    async def park(self, call: PendingCall) -> Decision:
        """Waits for the decision on a call; see `agent.waits.Waits`."""
        told = self._told.get((call.call_id, False))
        if told is not None and told.decision is not None:
            return told.decision
        decision = None
        if self._closed is not None:
            decision = Decision(False, self._closed, "job")
        elif self._nobody_for(call):
            decision = await Nobody().park(call)
        if decision is not None:
            self._say(call, "rejected", decision)
            return decision
        return await self._asked(call, told)

    async def settle(self, call: PendingCall) -> Decision | None:
        """Asks a human whether a call took effect that was begun by a process which died; a call that was decided is
        not asked for again. None: nobody can be asked, or nobody said anything within the time, or the job ends."""
        call = replace(call, uncertain=True)
        told = self._told.get((call.call_id, True))
        if told is None or told.decision is None:
            if self._closed is not None or self._nobody_for(call):
                if told is not None:
                    self._say(call, "cancelled")
                return None
            decision = await self._asked(call, told)
        else:
            decision = told.decision
        return None if decision.decided_by in NO_WORD else decision

    def withdrawn(self, call: PendingCall) -> None:
        """A call that was told as waiting, before, is not made after all."""
        if self._told.pop((call.call_id, call.uncertain), None) is not None:
            self._say(call, "cancelled")

    def _nobody_for(self, call: PendingCall) -> bool:
        return self._approve is None and not self._open and call.call_id not in self._early

    async def _asked(self, call: PendingCall, told: _Told | None) -> Decision:
        """Waits, and says what it came to; that it waits is said unless it was `told`."""
        place = call.call_id, call.uncertain
        if told is None:
            told = _Told(self._clock.time() + call.request.deadline)
            self._say(call, "uncertain" if call.uncertain else "waiting")
        waiting = self._waiting[call.call_id] = _Waiting(call, told.until)
        if (early := self._early.pop(call.call_id, None)) is not None:
            waiting.decided.set_result(early)
        try:
            async with self._parked(call.step_id):
                decision, expired = await self._decision(waiting)
                del self._waiting[call.call_id]
                self._told[place] = _Told(told.until, decision)
                self._say(call, _status(call, decision, expired=expired), decision)
        except asyncio.CancelledError:
            if self._waiting.pop(call.call_id, None) is not None:
                self._say(call, "cancelled")
            raise
        finally:
            self._waiting.pop(call.call_id, None)
        return decision

    async def _decision(self, waiting: _Waiting) -> tuple[Decision, bool]:
        """The first word that comes: a decision from outside, the one asked for, or that the time is over."""
        asking: set[asyncio.Future[Any]] = {waiting.decided}
        if self._approve is not None and not waiting.decided.done():
            asking.add(asyncio.create_task(_asked(self._approve, waiting.call)))
        deadline = waiting.call.request.deadline
        try:
            left = max(0.0, min(deadline, waiting.until - self._clock.time()))
            done, _ = await asyncio.wait(asking, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(asking - {waiting.decided})
        if not done:
            return Decision(False, f"nobody decided within {deadline:g} s", "deadline"), True
        return _said(waiting.decided if waiting.decided in done else done.pop()), False

    def _say(self, call: PendingCall, status: str, decision: Decision | None = None) -> None:
        payload: dict[str, Any] = {
            "call_id": call.call_id,
            "tool_name": call.tool_name,
            "tool_args": dict(call.tool_args),
            "status": status,
            "reason": call.request.reason if decision is None else decision.reason,
        }
        if decision is None:
            payload["deadline"] = call.request.deadline
        else:
            payload["decided_by"] = decision.decided_by
        self._tell(payload, call.step_id)


def _status(call: PendingCall, decision: Decision, *, expired: bool) -> str:
    if expired:
        return "expired"
    if call.uncertain and decision.decided_by in NO_WORD:
        return "cancelled"
    return "approved" if decision.approve else "rejected"


async def _asked(approve: Approve, call: PendingCall) -> Decision:
    return await approve(call)


async def _ended(asking: set[asyncio.Future[Any]]) -> None:
    """Nobody needs an answer any more: whoever is still being asked is told, and left behind if deaf."""
    for asked in asking:
        asked.cancel()
    if not asking:
        return
    _left_behind.update(asking)
    for asked in asking:
        asked.add_done_callback(_left_behind.discard)
    await asyncio.wait(asking, timeout=GRACE)


_left_behind: set[asyncio.Future[Any]] = set()
"""Questions that ignored their cancellation: the loop itself holds only weak references."""


def _said(asked: asyncio.Future[Any]) -> Decision:
    """What was said. One who could not be asked has not approved."""
    if asked.cancelled():
        return Decision(False, "the question was withdrawn", "nobody")
    error = asked.exception()
    if error is not None:
        log.warning("approval_failed", error=redact(f"{type(error).__name__}: {error}"))
        return Decision(False, f"the approval could not be asked for: {type(error).__name__}", "nobody")
    said = asked.result()
    if isinstance(said, Decision) and isinstance(said.approve, bool):
        return said
    return Decision(False, "no decision came of the question", "nobody")
