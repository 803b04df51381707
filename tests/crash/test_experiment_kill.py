"""`dagwright experiment run` is killed again and again: what was written down is not asked for again, and the report is
that of a run that nothing happened to."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import ProviderFake, View, brain
from tests.support.command import PATIENCE, command, ended, started
from tests.support.experiment_files import NAMES, paid, put, report_of, turns

if sys.platform == "win32":
    pytest.skip("kills and locks of POSIX", allow_module_level=True)

RUN = ("experiment", "run", "e.toml")
KEY = {"OPENAI_API_KEY": "k"}
AT_ONCE = 2 * 2
"""Calls that may be under way: cells at once, by steps of the plan at once."""


class Calls:
    """Answers, and says when a number of calls more have come."""

    def __init__(self) -> None:
        self.count = 0
        self.wanted = 0
        self.there = asyncio.Event()

    def after(self, calls: int) -> asyncio.Event:
        self.wanted, self.there = self.count + calls, asyncio.Event()
        return self.there

    async def __call__(self, view: View) -> Any:
        self.count += 1
        if self.count == self.wanted:
            self.there.set()
        await asyncio.sleep(0.03)
        return brain(view)


@pytest.mark.parametrize(
    ("kills", "cache"), [((9,), False), pytest.param((1, 5, 2, 13, 8), True, marks=pytest.mark.heavy),
                         pytest.param((3, 3, 3, 3, 3, 3, 3, 3), False, marks=pytest.mark.heavy)]
)  # fmt: skip
async def test_a_killed_run_goes_on_and_repeats_nothing(kills: tuple[int, ...], cache: bool, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    async with ProviderFake(brain, models=NAMES) as fake:
        put(whole, fake, cache=cache)
        assert (await command(*RUN, home=whole, env=KEY)).code == 0
        straight = len(fake.requests)
    calls, run = Calls(), cut / "runs" / "sums"
    async with ProviderFake(calls, models=NAMES) as fake:
        put(cut, fake, cache=cache)
        lost = 0
        for more in kills:
            known = paid(turns(run))
            before = calls.count
            await _killed_after(more, cut, calls)
            came = paid(turns(run)) - known
            assert came <= calls.count - before
            lost += calls.count - before - came
            assert calls.count - before - came <= AT_ONCE, "more was lost than was under way"
        logs = {log.name: log.read_bytes().split(b"\n")[:-1] for log in (run / "jobs").iterdir()}
        result = await command(*RUN, home=cut, env=KEY)
        assert result.code == 0, result.err
        assert "Traceback" not in result.err
        assert fake.refusals == []
        assert calls.count == straight + lost, "a reply that was written down was asked for again"
    assert paid(turns(run)) == straight
    for name, lines in logs.items():
        now = (run / "jobs" / name).read_bytes().split(b"\n")
        assert now[: len(lines)] == lines, "what was written stands"
    assert report_of(run) == report_of(whole / "runs" / "sums")


async def _killed_after(more: int, home: Path, calls: Calls) -> None:
    there = calls.after(more)
    process = await started(*RUN, home=home, env=KEY)
    try:
        async with asyncio.timeout(PATIENCE):
            waiting = {asyncio.ensure_future(there.wait()), asyncio.ensure_future(process.wait())}
            _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        assert there.is_set(), "it ended before it could be killed"
    finally:
        await ended(process)
    await asyncio.sleep(0.1)  # what the fake was about to answer goes nowhere
