"""Calls of models that died with their worker: a job with a budget stores each before it is sent."""

from __future__ import annotations

from registry.errors import AbandonedError
from registry.messages import Event


class LostCalls:
    """The calls that were about to be sent, and of whose end the log knows nothing. They may have been answered, and
    paid for: each counts as one that was cut off, at what it may have cost at most."""

    def __init__(self) -> None:
        self._open: dict[int, Event] = {}

    def hear(self, event: Event) -> None:
        """The job's next event."""
        told = event.payload
        match event.channel:
            case "budget" if told["reason"] == "reserved":
                self._open[told["reserved"]] = event
            case "budget" if told["reason"] == "released":
                self._open.pop(told["reserved"], None)
            case "turn":
                self._open.pop(told.get("reserved", 0), None)

    def turns(self) -> tuple[Event, ...]:
        """A `turn` for each that is open, as it would stand in the log if it had been cut off."""
        return tuple(map(_turn, self._open.values()))


def _turn(reserved: Event) -> Event:
    error = AbandonedError()
    told = {name: value for name, value in reserved.payload.items() if name != "reason"}
    told |= {"attempt": 1, "started_at": reserved.ts, "elapsed": 0.0, "result": None, "usage": None}
    told["error"] = {"code": error.code, "message": str(error)}
    return Event(reserved.job_id, reserved.seq, reserved.ts, "turn", reserved.step_id, told)
