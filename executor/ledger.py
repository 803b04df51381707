"""Where every call of a job is written down: for the log, and for what it all cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from registry.llm import LLM, CallRecord, Prepared
from registry.messages import Usage


class Ledger:
    """A job's scope for its models: each try becomes a `turn` event and is added up by role and by model.

    `append(channel, payload, step_id)` is the job's log. Nothing is reserved here: a job without a budget has nothing
    to reserve from.
    """

    def __init__(self, append: Callable[[str, Mapping[str, Any], str | None], None]) -> None:
        self._append = append
        self.usage = Usage.zero()
        self.by_role: dict[str, Usage] = {}
        self.by_model: dict[str, Usage] = {}

    async def reserve(self, llm: LLM, prepared: Prepared) -> Prepared:
        """Lets the call through as it is."""
        return prepared

    def released(self, prepared: Prepared) -> None:
        """Nothing was set aside."""

    async def record(self, record: CallRecord) -> None:
        """Adds one try: a call that failed before it could cost anything counts as no call."""
        self._add(record)

    def abandoned(self, record: CallRecord) -> None:
        """Adds a try that was cancelled on its way: its cost is unknown."""
        self._add(record)

    def _add(self, record: CallRecord) -> None:
        usage = Usage.unknown() if record.usage is None else record.usage
        role = record.caller.role
        self.usage += usage
        self.by_role[role] = self.by_role.get(role, Usage.zero()) + usage
        self.by_model[record.model_name] = self.by_model.get(record.model_name, Usage.zero()) + usage
        self._append("turn", _turn(record), record.caller.step_id)

    def to_json(self) -> dict[str, Any]:
        """The job's usage in the public shape, with its parts by role and by model."""
        return {
            **self.usage.to_json(),
            "by_role": {role: usage.to_json() for role, usage in sorted(self.by_role.items())},
            "by_model": {model: usage.to_json() for model, usage in sorted(self.by_model.items())},
        }


def _turn(record: CallRecord) -> dict[str, Any]:
    return {
        "role": record.caller.role,
        "step_attempt": record.caller.attempt,
        "model": record.model_name,
        "model_id": record.model_id,
        "attempt": record.attempt,
        "started_at": record.started_at,
        "elapsed": record.elapsed,
        "result": None if record.result is None else record.result.to_json(),
        "error": None if record.error is None else {"code": record.error.code, "message": str(record.error)},
        "usage": None if record.usage is None else record.usage.to_json(),
    }
