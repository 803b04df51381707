"""Waiting for a human: a call that needs a decision is data, and whoever can get the decision is a port."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

DEADLINE = 24 * 3600.0
"""Seconds a call waits for a decision unless something else is said; then it is rejected."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """That a call must be decided by a human first: why, and how many seconds it may wait before it counts as
    rejected."""

    reason: str = ""
    deadline: float = DEADLINE


def merged(requests: Iterable[ApprovalRequest | None]) -> ApprovalRequest | None:
    """One request for all: every reason once, the shortest deadline. None where none asks."""
    asked = [request for request in requests if request is not None]
    if not asked:
        return None
    reasons = dict.fromkeys(request.reason for request in asked if request.reason)
    return ApprovalRequest("; ".join(reasons), min(request.deadline for request in asked))


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that waits. `call_id` is its key, unique in the job and the same after a restart; `tool_args` are the ones
    it will run with. `uncertain`: it was begun by a process that died, and whether it took effect is asked."""

    call_id: str
    tool_name: str
    tool_args: Mapping[str, Any]
    request: ApprovalRequest
    step_id: str | None = None
    uncertain: bool = False


ASKED = ("waiting", "uncertain")
"""Statuses of an `approval` event that say that a human is asked: whether a call may run; whether one took effect."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a human, or a deadline, said to a waiting call; of an uncertain one, whether it took effect."""

    approve: bool
    reason: str = ""
    decided_by: str = "user"


class Waits(Protocol):
    """Gets decisions."""

    async def park(self, call: PendingCall) -> Decision:
        """Waits until the call is decided; meanwhile its step gives up its slot and its clock stands. Never raises but
        when cancelled: where nobody can decide, that is a rejection which says so."""

    def withdrawn(self, call: PendingCall) -> None:
        """A call that was told as waiting before the job's worker changed is not made after all."""


class Nobody:
    """No one can be asked: every call that needs a decision is rejected at once."""

    async def park(self, call: PendingCall) -> Decision:
        """Rejects."""
        return Decision(False, "it needs a human's approval, and nobody can be asked in this run", "nobody")

    def withdrawn(self, call: PendingCall) -> None:
        """Nobody was asked."""
