"""Letters: what is said to a job from outside. Each is written into the job's log before it takes effect, so that
whoever goes on with the job knows from the log what was said, and takes only the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from registry.errors import UsageError
from registry.messages import Event

if TYPE_CHECKING:
    from .job import JobRunner


def note_of(letter_id: int | None, kind: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of the `note` that a letter becomes. It has no id where it was said to the process itself."""
    return {"kind": "letter", "content": "", "id": letter_id, "letter": kind, "said": dict(said)}


def acted(letter_id: int) -> dict[str, Any]:
    """The payload of the `note` that a letter takes effect here and now: the job went on while it was being stored."""
    return {"kind": "acted", "content": "", "id": letter_id}


def ids_in(events: Iterable[Event]) -> set[int]:
    """The letters that stand in a log."""
    return {
        event.payload["id"]
        for event in events
        if event.channel == "note" and event.payload.get("kind") == "letter" and event.payload["id"] is not None
    }


def act(runner: JobRunner, kind: str, said: Mapping[str, Any]) -> None:
    """Does what a letter says. Raises DagwrightError or KeyError where it comes too late or can't be followed: the job
    goes on."""
    match kind:
        case "message":
            runner.send(said["text"])
        case "stop":
            runner.stop()
        case "cancel_step":
            runner.cancel_step(said["step_id"])
        case "decide":
            runner.decide(said["call_id"], said["approve"], said.get("reason") or "", said.get("decided_by") or "user")
        case "cancel":
            runner.cancel()
        case _:
            raise UsageError(f"nobody knows what {kind!r} means")
