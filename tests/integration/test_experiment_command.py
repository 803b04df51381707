"""`dagwright experiment run` in a process of its own, over real HTTP: run, interrupted, gone on with."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import BAD_KEY, ProviderFake, View, brain
from tests.support.command import PATIENCE, ROOT, Ended, command, ended, on_terminal, openai, started
from tests.support.experiment_files import NAMES, paid, put, report_of, turns
from tests.support.experiments import recorded

RUN = ("experiment", "run", "e.toml")
KEY = {"OPENAI_API_KEY": "k"}


class Moment:
    """A script in which the call `at` says that it is there, and is answered late."""

    def __init__(self, at: int, wait: float = 0.5) -> None:
        self.at, self.wait, self.calls = at, wait, 0
        self.there = asyncio.Event()

    async def __call__(self, view: View) -> Any:
        self.calls += 1
        if self.calls == self.at:
            self.there.set()
            await asyncio.sleep(self.wait)
        await asyncio.sleep(0.005)
        return brain(view)


async def killed(home: Path, moment: Moment, sign: signal.Signals) -> Ended:
    """The command, which gets a signal when a call is there."""
    process = await started(*RUN, home=home, env=KEY)
    try:
        async with asyncio.timeout(PATIENCE):
            await moment.there.wait()
            process.send_signal(sign)
            out, err = await process.communicate()
    finally:
        await ended(process)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def test_a_run_is_judged_and_reported_and_the_second_time_nothing_is_left(tmp_path: Path) -> None:
    async with ProviderFake(brain, models=NAMES) as fake:
        put(tmp_path, fake)
        first = await command(*RUN, home=tmp_path, env=KEY)
        assert first.code == 0, first.err
        assert "9 of 9 cells" in first.err
        assert "strong" in first.out
        assert "Traceback" not in first.err
        calls = len(fake.requests)
        again = await command(*RUN, "--json", home=tmp_path, env=KEY)
        assert again.code == 0, again.err
        assert len(fake.requests) == calls
        assert fake.refusals == []
    told = again.data
    assert (told["status"], told["cells"], told["ended"], told["failed"]) == ("done", 9, 9, [])
    assert {arm["name"]: arm["quality"]["mean"] for arm in told["report"]["arms"]} == {
        "agent": 1, "plan": 1, "strong": 1,
    }  # fmt: skip
    run = tmp_path / "runs" / "sums"
    there = {path.name for path in run.iterdir()}
    assert {
        "experiment.json", "tasks.jsonl", "outcomes.jsonl", "jobs", "calls.sqlite", "grades.jsonl", "report.md",
        "report.html", "report.csv", "report.json",
    } <= there  # fmt: skip
    assert paid(turns(run)) == calls
    assert any(turn.get("cached") for turn in turns(run)), "the arms share the planner's call"


@pytest.mark.parametrize("at", [12, pytest.param(2, marks=pytest.mark.heavy)])
async def test_ctrl_c_stops_within_seconds_and_the_same_command_goes_on(at: int, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for home in (whole, cut):
        home.mkdir()
    async with ProviderFake(brain, models=NAMES) as fake:
        put(whole, fake)
        assert (await command(*RUN, home=whole, env=KEY)).code == 0
        straight = len(fake.requests)
    moment = Moment(at)
    async with ProviderFake(moment, models=NAMES) as fake:
        put(cut, fake)
        loop = asyncio.get_running_loop()
        result = await killed(cut, moment, signal.SIGINT)
        assert result.code == 130, result.err
        assert "Stopping: calls under way have" in result.err
        assert "Everything is kept; the same command goes on." in result.err
        assert "Traceback" not in result.err
        recorded_then = turns(cut / "runs" / "sums")
        assert paid(recorded_then) == len(fake.requests), "what was under way had its time"
        began = loop.time()
        result = await command(*RUN, home=cut, env=KEY)
        assert loop.time() - began < PATIENCE
        assert result.code == 0, result.err
        assert len(fake.requests) == straight, "no call was repeated"
    assert report_of(cut / "runs" / "sums") == report_of(whole / "runs" / "sums")


async def test_ctrl_c_twice_does_not_wait_for_calls(tmp_path: Path) -> None:
    moment = Moment(3, wait=60.0)
    async with ProviderFake(moment, models=NAMES) as fake:
        put(tmp_path, fake)
        process = await started(*RUN, home=tmp_path, env=KEY)
        try:
            async with asyncio.timeout(PATIENCE):
                await moment.there.wait()
                process.send_signal(signal.SIGINT)
                await asyncio.sleep(0.2)
                process.send_signal(signal.SIGINT)
                _, err = await process.communicate()
        finally:
            await ended(process)
        assert process.returncode == 130, err
        assert (await command(*RUN, home=tmp_path, env=KEY)).code == 0


async def test_ctrl_c_does_not_wait_for_what_computes(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(_toml(recorded()), encoding="utf-8")
    assert (await command(*RUN, home=tmp_path)).code == 0
    slow = "import pathlib, time\npathlib.Path('there').touch()\ntime.sleep(600)\n"
    (tmp_path / "slow.py").write_text(slow, encoding="utf-8")
    again = ("experiment", "grade", "runs/recorded", "--grader", "slow:judge")
    process = await started(*again, home=tmp_path)
    try:
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "there").exists():
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
    finally:
        await ended(process)
    assert process.returncode == 130, err
    assert b"Traceback" not in err


async def test_only_one_process_runs_in_a_folder(tmp_path: Path) -> None:
    moment = Moment(1, wait=60.0)
    async with ProviderFake(moment, models=NAMES) as fake:
        put(tmp_path, fake)
        process = await started(*RUN, home=tmp_path, env=KEY)
        try:
            async with asyncio.timeout(PATIENCE):
                await moment.there.wait()
            second = await command(*RUN, "--json", home=tmp_path, env=KEY)
        finally:
            await ended(process)
        assert second.code == 2
        assert "another process runs the experiment in runs/sums" in second.err
        assert second.data["error"]["code"] == "usage"


async def test_the_run_s_budget_ends_it_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    async with ProviderFake(brain, models=NAMES) as fake:
        put(tmp_path, fake, head='budget = "0.09usd"')
        first = await command(*RUN, "--json", home=tmp_path, env=KEY)
        assert first.code == 4, first.err
        assert "budget of 0.09usd is used up" in first.err
        assert first.data["status"] == "budget_exceeded"
        assert 0 < first.data["ended"] < 9
        assert float(first.data["spent"]["usd"]) <= 0.09
        assert "report" in first.data, "there is a report of what there is"
        second = await command(*RUN, "--budget", "5usd", "--json", home=tmp_path, env=KEY)
        assert second.code == 0, second.err
        assert second.data["ended"] == 9
        assert paid(turns(tmp_path / "runs" / "sums")) == len(fake.requests)


async def test_a_wrong_key_is_told_once_and_costs_no_cell(tmp_path: Path) -> None:
    async with ProviderFake(brain, models=NAMES) as fake:
        put(tmp_path, fake)
        wrong = await command(*RUN, "--no-report", home=tmp_path, env={"OPENAI_API_KEY": BAD_KEY})
        assert wrong.code == 3
        assert "could not be run" in wrong.err
        right = await command(*RUN, home=tmp_path, env=KEY)
        assert right.code == 0, right.err
        assert "9 of 9 cells" in right.err


@pytest.mark.parametrize(
    ("words", "change", "said"),
    [
        (("--budget", "much"), "", "--budget: budget 'much': must be an amount"),
        (("--concurrency", "0"), "", "--concurrency 0: must be a whole number, at least 1"),
        ((), "seeds = 1", "[experiment] unknown key 'seeds'"),
    ],
)
async def test_wrong_use_exits_2_and_says_what_is_right(
    words: tuple[str, ...], change: str, said: str, tmp_path: Path
) -> None:
    async with ProviderFake(brain, models=NAMES) as fake:
        put(tmp_path, fake, head=change)
        result = await command(*RUN, *words, "--json", home=tmp_path, env=KEY)
        assert fake.requests == []
    assert result.code == 2
    assert said in result.err
    assert said in result.data["error"]["message"]
    assert not (tmp_path / "runs").exists()


async def test_a_terminal_shows_how_far_it_is(tmp_path: Path) -> None:
    moment = Moment(4, wait=60.0)
    async with ProviderFake(moment, models=NAMES) as fake:
        put(tmp_path, fake)
        async with on_terminal(*RUN, "--no-report", home=tmp_path, env=KEY) as term:
            await term.until(r"0/9 cells, \d running")
            await moment.there.wait()
            term.type("\x03")
            await term.until("Stopping: calls under way have 4 seconds")
            term.type("\x03")
            assert await term.end() == 130, term.text
    assert "Everything is kept; the same command goes on." in term.text
    assert "Traceback" not in term.text


async def test_another_experiment_does_not_go_on_in_the_folder(tmp_path: Path) -> None:
    async with ProviderFake(brain, models=NAMES) as fake:
        put(tmp_path, fake, tasks=1)
        assert (await command(*RUN, "--no-report", home=tmp_path, env=KEY)).code == 0
        put(tmp_path, fake, tasks=2)
        assert (await command(*RUN, "--no-report", home=tmp_path, env=KEY)).code == 0, "tasks may be added"
        put(tmp_path, fake, tasks=1)
        result = await command(*RUN, home=tmp_path, env=KEY)
    assert result.code == 2
    assert "only tasks, arms and repeats may be added" in result.err
    assert "tasks that are no longer there: 't1'" in result.err


async def test_recorded_answers_need_no_model_and_no_key(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(_toml(recorded()), encoding="utf-8")
    result = await command(*RUN, "--output", "out", "--json", home=tmp_path)
    assert result.code == 0, result.err
    arms = {arm["name"]: arm for arm in result.data["report"]["arms"]}
    assert {name: round(arm["quality"]["mean"], 3) for name, arm in arms.items()} == {
        "weak": 0.333, "strong": 0.667, "cascade": 0.667,
    }  # fmt: skip
    assert (tmp_path / "out" / "report.html").is_file()


async def test_the_live_example_runs_on_any_model(tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "routing" / "live.toml")
    async with ProviderFake(brain) as fake:
        result = await command(
            "experiment", "run", example, "--output", "out", "--json", home=tmp_path, env=openai(fake)
        )
        assert fake.refusals == []
    assert result.code == 0, result.err
    assert {arm["name"]: arm["statuses"] for arm in result.data["report"]["arms"]} == {
        "agent": {"completed": 8}, "planned": {"completed": 8},
    }  # fmt: skip


async def test_the_example_runs_offline(tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "routing" / "gsm8k.toml")
    result = await command("experiment", "run", example, "--output", "out", home=tmp_path)
    assert result.code == 0, result.err
    assert "longest" in result.out


def _toml(values: Any) -> str:
    """Plain data as TOML, tables inline."""
    lines = []
    for table, content in values.items():
        lines += [f"[{table}]", *(f"{key} = {_value(item)}" for key, item in content.items())]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


if sys.platform == "win32":
    pytest.skip("signals and locks of POSIX", allow_module_level=True)
