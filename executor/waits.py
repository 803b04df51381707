"""Calls of a job that wait for a human: asked for, decided, or out of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent.waits import Decision, Nobody, PendingCall
from registry.errors import UsageError
from registry.redaction import redact

Approve = Callable[[PendingCall], Awaitable[Decision]]
"""Asks a human; it may take its time, and is cancelled when the call is decided elsewhere."""

GRACE = 5.0
"""Seconds a question that nobody needs an answer to any more may take to end."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Waiting:
    call: PendingCall
    until: float
    """When its time is over, by the loop's clock."""
    decided: asyncio.Future[Decision] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class JobWaits:
    """The job's side of the port: `park` is called by agents, `decide` by whoever speaks for the human.

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
    ) -> None:
        self._tell, self._parked, self._approve = tell, parked, approve
        self._open = open_to_decisions
        self._waiting: dict[str, _Waiting] = {}
        self._closed: str | None = None

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait, in the order in which they came."""
        return tuple(waiting.call for waiting in self._waiting.values())

    @property
    def due(self) -> float | None:
        """Seconds until the first of them has waited for long enough; None: none waits."""
        now = asyncio.get_running_loop().time()
        return min((max(0.0, waiting.until - now) for waiting in self._waiting.values()), default=None)

    def decide(self, call_id: str, approve: bool, reason: str = "", decided_by: str = "user") -> None:
        """Decides a call. Raises UsageError where none of this id waits, and for an `approve` that is no bool: "no" is
        true to Python."""
        if not isinstance(approve, bool):
            raise UsageError(f"approve must be True or False, not {approve!r}")
        waiting = self._waiting.get(call_id)
        if waiting is None or waiting.decided.done():
            known = ", ".join(self._waiting) or "none"
            raise UsageError(f"no call {call_id!r} waits for a decision; waiting: {known}")
        waiting.decided.set_result(Decision(approve, reason, decided_by))

    def reject_all(self, reason: str) -> None:
        """Rejects all calls that wait, and those that come: a model's reply under way may still ask for one."""
        self._closed = reason
        for waiting in self._waiting.values():
            if not waiting.decided.done():
                waiting.decided.set_result(Decision(False, reason, "job"))

    async def park(self, call: PendingCall) -> Decision:
        """Waits for the decision on a call; see `agent.waits.Waits`."""
        if self._approve is None and not self._open:
            decision = await Nobody().park(call)
            self._say(call, "rejected", decision)
            return decision
        if self._closed is not None:
            decision = Decision(False, self._closed, "job")
            self._say(call, "rejected", decision)
            return decision
        until = asyncio.get_running_loop().time() + call.request.deadline
        waiting = self._waiting[call.call_id] = _Waiting(call, until)
        self._say(call, "waiting")
        try:
            async with self._parked(call.step_id):
                decision, expired = await self._decision(waiting)
                del self._waiting[call.call_id]
                self._say(call, "expired" if expired else "approved" if decision.approve else "rejected", decision)
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
        if self._approve is not None:
            asking.add(asyncio.create_task(_asked(self._approve, waiting.call)))
        try:
            deadline = waiting.call.request.deadline
            left = waiting.until - asyncio.get_running_loop().time()
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
