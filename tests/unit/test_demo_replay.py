"""The replay of a recorded run: the events as they were, at a pace to watch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.demo.replay import Recording, gaps, read_recording, replay, write_recording
from registry.errors import ConfigError
from registry.messages import Event

EVENTS = (
    Event("job_1", 1, 100.0, "phase", None, {"phase": "planning"}),
    Event("job_1", 2, 131.5, "plan", None, {"steps": [{"id": "s1"}]}),
    Event("job_1", 3, 131.6, "step", "s1", {"type": "thinking", "status": "start", "iteration": 1}),
    Event("job_1", 4, 190.0, "done", None, {"answer": "Grüße", "status": "completed"}),
)
RECORDING = Recording("2026-11-30", "some-model", "Compare two cities", EVENTS, {"machine": "2 cores"})


def test_recording_round_trips(tmp_path: Path) -> None:
    write_recording(tmp_path / "r.jsonl", RECORDING)
    read = read_recording(tmp_path / "r.jsonl")
    assert read == RECORDING
    assert read.label == "recorded on 2026-11-30 with some-model"


async def test_replay_hands_on_every_event_with_capped_waits() -> None:
    seen: list[Event] = []
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    await replay(RECORDING, seen.append, max_gap=0.4, max_total=6.0, sleep=sleep)
    assert tuple(seen) == EVENTS
    assert slept == pytest.approx([0.4, 0.1, 0.4])


async def test_replay_of_a_long_run_fits_the_total() -> None:
    events = tuple(Event("job_1", n, float(n), "step", None, {}) for n in range(1, 500))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    await replay(Recording("d", "m", "g", events), lambda event: None, max_gap=0.4, max_total=3.0, sleep=sleep)
    assert sum(slept) == pytest.approx(3.0)


@given(st.lists(st.floats(0, 1e9), max_size=40), st.floats(0.01, 2), st.floats(0.1, 10))
@settings(deadline=None, max_examples=100)
def test_gaps_are_never_negative_nor_too_long(times: list[float], max_gap: float, max_total: float) -> None:
    waits = gaps(times, max_gap, max_total)
    assert len(waits) == len(times)
    assert all(0 <= wait <= max_gap for wait in waits)
    assert sum(waits) <= max_total * 1.000001


@pytest.mark.parametrize("text", ["", "no JSON\n", '{"date": "2026-11-30"}\n', '[1]\n{"seq": 1}\n'])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(ConfigError, match="no recording"):
        read_recording(tmp_path / "r.jsonl")


def test_missing_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_recording(tmp_path / "none.jsonl")
