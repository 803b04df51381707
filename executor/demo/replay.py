"""A recorded real run, played back in a few seconds so that a newcomer sees what a run looks like.

It shows what was recorded and says so; it never answers anybody's goal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from registry.errors import ConfigError
from registry.messages import Event

RECORDED = Path(__file__).with_name("recorded.jsonl")
MAX_GAP = 0.4
"""Seconds between two events at most."""
MAX_TOTAL = 6.0
"""Seconds for the whole play at most."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A run as it was: when (a date), by which model, for which goal, and its events."""

    date: str
    model: str
    goal: str
    events: Sequence[Event] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Says that this is a recording, and of what."""
        return f"recorded on {self.date} with {self.model}"


def read_recording(path: Path = RECORDED) -> Recording:
    """Reads a recording: a line with date, model, goal and details, then one event a line. Raises ConfigError."""
    try:
        head, *rest = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        events = tuple(
            Event(row["job_id"], row["seq"], row["ts"], row["channel"], row["step_id"], row["payload"]) for row in rest
        )
        return Recording(head["date"], head["model"], head["goal"], events, head.get("details", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no recording of a run: {error!r}") from error


def write_recording(path: Path, recording: Recording) -> None:
    """Writes what `read_recording` reads."""
    head = {
        "date": recording.date,
        "model": recording.model,
        "goal": recording.goal,
        "details": dict(recording.details),
    }
    lines = [head, *(asdict(event) for event in recording.events)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False, default=dict) + "\n" for line in lines), "utf-8")


def gaps(times: Iterable[float], max_gap: float = MAX_GAP, max_total: float = MAX_TOTAL) -> list[float]:
    """The seconds to wait before each event: as recorded, none over `max_gap`, all together at most `max_total`."""
    stamps = list(times)
    waits = [0.0] + [min(max_gap, max(0.0, after - before)) for before, after in pairwise(stamps)]
    scale = min(1.0, max_total / total) if (total := sum(waits)) else 1.0
    return [wait * scale for wait in waits[: len(stamps)]]


async def replay(
    recording: Recording,
    on_event: Callable[[Event], object],
    *,
    max_gap: float = MAX_GAP,
    max_total: float = MAX_TOTAL,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Hands the recorded events, unchanged and in their order, to `on_event`, at a pace that can be watched."""
    for wait, event in zip(gaps((e.ts for e in recording.events), max_gap, max_total), recording.events, strict=True):
        if wait:
            await sleep(wait)
        on_event(event)
