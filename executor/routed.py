"""The `route` event of a model's choice. The router's own, which names a mode, is another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Routed:
    """A choice of a routing policy: `policy` is its name, `attempt` the first one on this model, `before` the model
    whose work did not do (None: this is the first one). `asks`: a success is followed by the question how sure the
    model is; `checks`: its result gets the step check."""

    policy: str
    model: str
    reason: str
    score: float | None = None
    attempt: int = 1
    before: str | None = None
    asks: bool = False
    checks: bool = False

    def to_json(self) -> dict[str, Any]:
        """The event's payload."""
        return {
            "policy": self.policy,
            "model": self.model,
            "reason": self.reason,
            "attempt": self.attempt,
            **({} if self.score is None else {"score": self.score}),
            **({} if self.before is None else {"from": self.before}),
            **({"asks": True} if self.asks else {}),
            **({"checks": True} if self.checks else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Routed:
        """Reads what `to_json` wrote."""
        return cls(
            data["policy"],
            data["model"],
            data["reason"],
            data.get("score"),
            data["attempt"],
            data.get("from"),
            data.get("asks", False),
            data.get("checks", False),
        )


def is_choice(payload: Mapping[str, Any]) -> bool:
    """Whether a `route` event's payload is the choice of a model, not the router's word on the job's mode."""
    return "policy" in payload
