"""Experiments are run: each cell once, whatever interrupts it; arms share what they ask alike; one budget holds."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from executor.experiments.folder import Folder
from executor.experiments.run.experiment import Progress
from executor.experiments.run.stopping import Stop
from executor.experiments.types import Cell
from executor.log.group_commit import WriteFailedError
from registry.budget import Budget
from registry.errors import AuthError, ConfigError
from registry.llm_types import ChatRequest
from registry.models import ModelRegistry
from registry.testing import ScriptedLLM
from tests.support.experiment_world import (
    ARMS,
    World,
    answer,
    experiment,
    lost,
    outcomes,
    paid,
    tear,
    turns,
    whole_lines,
)


async def test_each_cell_is_run_once_and_its_outcome_told(tmp_path: Path) -> None:
    world, asked = World(), experiment(repeats=2)
    seen: list[Progress] = []
    end = await world.run(asked, tmp_path / "run", on_progress=seen.append)
    assert (end.status, end.ended, end.cells, end.missing) == ("done", 18, 18, 0)
    found = outcomes(tmp_path / "run")
    assert set(found) == {Cell(arm, f"t{n}", repeat) for arm in ARMS for n in range(3) for repeat in (1, 2)}
    for cell, outcome in found.items():
        question = f"question {cell.task[1:]}"
        assert outcome.status == "completed"
        assert outcome.answer == f"in the end: {question}"
        assert outcome.steps == (0 if cell.arm == "agent" else 2)
        assert outcome.models == ({"small": 1} if cell.arm == "agent" else {"small": 2})
        assert sum(usage.calls for usage in outcome.by_role.values()) == outcome.usage.calls  # type: ignore[union-attr]
        assert outcome.cost == sum(usage.cost or 0 for usage in outcome.by_model.values())
    assert seen[-1].ended == 18
    assert seen[-1].spent == end.spent.usd
    assert paid(tmp_path / "run") == world.calls
    again = World()
    assert (await again.run(asked, tmp_path / "run")).status == "done"
    assert again.calls == 0, "nothing is left to do"


async def test_arms_with_the_same_planner_share_its_call(tmp_path: Path) -> None:
    arms = {
        "one": {"mode": "dag", "routing": "fixed:small"},
        "two": {"mode": "dag", "routing": "fixed:large"},
    }
    planned = 0

    async def reply(request: ChatRequest) -> Any:
        nonlocal planned
        planned += isinstance(request.tool_choice, dict) and request.tool_choice["name"] == "make_plan"
        return answer(request)

    world = World()
    world.reply = reply  # type: ignore[method-assign]
    await world.run(experiment(4, arms=arms, repeats=2), tmp_path / "run")
    assert planned == 8, "once for each task and repeat, not for each arm"
    planners = [turn for turn in turns(tmp_path / "run") if turn.payload["role"] == "planner"]
    assert sorted(bool(turn.payload.get("cached")) for turn in planners) == [False] * 8 + [True] * 8
    steps = [turn for turn in turns(tmp_path / "run") if turn.step_id == "a"]
    assert not any(turn.payload.get("cached") for turn in steps), "other models are asked otherwise"
    found = Folder(tmp_path / "run").outcomes()
    assert {outcome.by_role["planner"].cost for outcome in found} == {found[0].by_role["planner"].cost}
    assert {outcome.latency is None for outcome in found if outcome.cached_calls} == {True}
    assert all(outcome.latency is not None for outcome in found if not outcome.cached_calls)
    assert sum((outcome.spent_usd or Decimal(0) for outcome in found), Decimal(0)) < sum(
        (outcome.cost or Decimal(0) for outcome in found), Decimal(0)
    )


async def test_repeats_are_real_and_without_a_cache_every_cell_asks_itself(tmp_path: Path) -> None:
    world = World()
    await world.run(experiment(2, cache=False), tmp_path / "all")
    calls = world.calls
    assert not (tmp_path / "all" / "calls.sqlite").exists()
    cached, twice = World(), World()
    await cached.run(experiment(2), tmp_path / "cached")
    assert cached.calls < calls
    await twice.run(experiment(2, repeats=2), tmp_path / "twice")
    assert twice.calls == 2 * cached.calls


async def test_the_cache_may_be_shared_by_runs(tmp_path: Path) -> None:
    for name, expected in (("one", True), ("two", False)):
        world = World()
        arms = {"plan": {"mode": "dag", "options": {"max_steps": 5}}}
        await world.run(experiment(2, arms=arms), tmp_path / name, calls=tmp_path / "calls.sqlite")
        planners = [turn for turn in turns(tmp_path / name) if turn.payload["role"] == "planner"]
        assert all(not turn.payload.get("cached", False) for turn in planners) == expected


async def test_markers_and_the_date_are_the_same_for_all_arms_and_nobody_s_to_guess(tmp_path: Path) -> None:
    await World().run(experiment(1, repeats=2), tmp_path / "run")
    started = [
        json.loads(lines[0])["payload"] | {"about": json.loads(lines[-1])["end"]["metadata"]}
        for lines in whole_lines(tmp_path / "run").values()
    ]
    by_repeat: dict[int, set[str]] = {}
    for told in started:
        by_repeat.setdefault(told["about"]["repeat"], set()).add(told["marker"])
    assert [len(markers) for markers in by_repeat.values()] == [1, 1]
    assert by_repeat[1] != by_repeat[2]
    assert len({told["date"] for told in started}) == 1
    await World().run(experiment(1, repeats=2), tmp_path / "other")
    others = {json.loads(lines[0])["payload"]["marker"] for lines in whole_lines(tmp_path / "other").values()}
    assert others.isdisjoint(by_repeat[1] | by_repeat[2]), "each run has its own key"


async def test_the_order_is_the_seed_s(tmp_path: Path) -> None:
    orders = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        await World().run(experiment(5, seed=seed, concurrency=1), tmp_path / name)
        orders.append([outcome.cell for outcome in Folder(tmp_path / name).outcomes()])
    assert orders[0] == orders[1] != orders[2]
    assert len({cell.task for cell in orders[0][:3]}) == 1, "all arms of a task come one after the other"


async def test_no_more_cells_at_once_than_asked_for(tmp_path: Path) -> None:
    seen: list[Progress] = []
    await World().run(experiment(4, concurrency=2), tmp_path / "run", on_progress=seen.append)
    assert max(progress.running for progress in seen) == 2


# Interruptions


Interrupt = Callable[[asyncio.Task[Any], Stop], None]


async def interrupted(at: int, how: Interrupt, asked: Any, path: Path) -> World:
    """A run that something happens to at a call; its world."""
    stop = Stop()
    task: asyncio.Task[Any] | None = None

    async def before(number: int) -> None:
        await asyncio.sleep(0.001)
        if number == at:
            assert task is not None
            how(task, stop)
            await asyncio.sleep(0)

    world = World(before)
    task = asyncio.create_task(world.run(asked, path, stop))
    await asyncio.wait({task})
    return world


def cancel(task: asyncio.Task[Any], stop: Stop) -> None:
    task.cancel()


def told_to_stop(task: asyncio.Task[Any], stop: Stop) -> None:
    stop.tell()


def told_twice(task: asyncio.Task[Any], stop: Stop) -> None:
    stop.tell()
    stop.tell()


@pytest.mark.parametrize("how", [cancel, told_to_stop, told_twice])
@pytest.mark.parametrize("at", [1, 4, 9, 14])
async def test_an_interrupted_run_goes_on_and_comes_to_the_same(at: int, how: Interrupt, tmp_path: Path) -> None:
    asked = experiment(2, concurrency=3)
    straight = World()
    await straight.run(asked, tmp_path / "straight")
    path = tmp_path / "run"
    first = await interrupted(at, how, asked, path)
    before = whole_lines(path)
    assert len(Folder(path).outcomes()) < 6
    assert all(
        json.loads(lines[-1]).get("channel") != "done" for lines in before.values() if b'"end"' not in lines[-1][:8]
    )
    if how is told_to_stop:
        assert lost(path) == 0, "calls under way had the time to end"
    tear(path)
    second = World()
    end = await second.run(asked, path)
    assert end.status == "done"
    assert outcomes(path) == outcomes(tmp_path / "straight")
    after = whole_lines(path)
    assert all(after[name][: len(lines)] == lines for name, lines in before.items()), "what was written stands"
    assert paid(path) == straight.calls, "no reply that came was asked for again"
    assert paid(path) <= first.calls + second.calls <= paid(path) + lost(path), "some are cut before they are sent"
    assert len(first.effects) + len(second.effects) >= len(straight.effects)


async def test_a_killed_run_goes_on_from_what_is_on_disk(tmp_path: Path) -> None:
    """A copy of the folder at any moment is what a killed process leaves."""
    asked = experiment(2, concurrency=3, cache=False)
    straight = World()
    await straight.run(asked, tmp_path / "straight")
    copies: list[tuple[Path, int]] = []

    async def before(number: int) -> None:
        await asyncio.sleep(0)
        copy = tmp_path / f"copy{number}"
        if number % 4 == 1:
            shutil.copytree(tmp_path / "run", copy)
            copies.append((copy, number))

    await World(before).run(asked, tmp_path / "run")
    assert len(copies) > 5
    for copy, calls in copies:
        tear(copy)
        recorded = paid(copy)
        assert calls - 12 <= recorded <= calls
        world = World()
        assert (await world.run(asked, copy)).status == "done"
        assert outcomes(copy) == outcomes(tmp_path / "straight")
        assert paid(copy) == straight.calls
        assert world.calls == straight.calls - recorded


async def test_what_may_have_taken_effect_is_not_done_again_and_the_cell_says_so(tmp_path: Path) -> None:
    asked = experiment(1, arms={"agent": {"mode": "react"}})
    world = World(harmless=False, during=lambda key: shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    await world.run(asked, tmp_path / "run")
    again = World(harmless=False)
    assert (await again.run(asked, tmp_path / "copy")).status == "done"
    (outcome,) = outcomes(tmp_path / "copy").values()
    assert (len(world.effects), again.effects) == (1, [])
    assert (outcome.status, outcome.error_code) == ("partial", "uncertain_effect")
    harmless = World()
    shutil.rmtree(tmp_path / "copy")
    first = World(during=lambda key: shutil.copytree(tmp_path / "other", tmp_path / "copy"))
    await first.run(asked, tmp_path / "other")
    await harmless.run(asked, tmp_path / "copy")
    assert harmless.effects == first.effects, "what only reads is run again"
    assert outcomes(tmp_path / "copy") == outcomes(tmp_path / "other")


async def test_a_full_disk_ends_the_run_and_it_goes_on_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, syncs, sync = experiment(2, cache=False), 0, os.fsync

    def full(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs > 14:
            raise OSError(28, "No space left on device")
        sync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(WriteFailedError, match="No space left on device"):
            async with asyncio.timeout(30):
                await World().run(asked, tmp_path / "run")
    straight = World()
    await straight.run(asked, tmp_path / "straight")
    assert (await World().run(asked, tmp_path / "run")).status == "done"
    assert outcomes(tmp_path / "run") == outcomes(tmp_path / "straight")


async def test_an_outcome_that_was_lost_is_read_from_the_log_again(tmp_path: Path) -> None:
    asked = experiment(2)
    await World().run(asked, tmp_path / "run")
    whole = outcomes(tmp_path / "run")
    (tmp_path / "run" / "outcomes.jsonl").unlink()
    world = World()
    end = await world.run(asked, tmp_path / "run")
    assert world.calls == 0
    assert outcomes(tmp_path / "run") == whole
    assert end.status == "done"


async def test_tasks_and_arms_may_be_added_to_a_run(tmp_path: Path) -> None:
    await World().run(experiment(2), tmp_path / "run")
    world = World()
    arms = {**ARMS, "more": {"mode": "react", "routing": "fixed:large"}}
    end = await world.run(experiment(3, arms=arms), tmp_path / "run")
    assert (end.status, end.cells) == ("done", 12)
    assert len(outcomes(tmp_path / "run")) == 12
    with pytest.raises(ConfigError, match="tasks that are no longer there"):
        await World().run(experiment(2, arms=arms), tmp_path / "run")


# The budget


async def test_the_run_s_budget_is_never_exceeded_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    asked = experiment(6, concurrency=3)
    straight = World()
    whole = await straight.run(asked, tmp_path / "straight")
    small = Budget(usd=whole.spent.usd / 2)
    world = World()
    end = await world.run(replace(asked, budget=small), tmp_path / "run")
    assert end.status == "budget_exceeded"
    assert 0 < end.ended < end.cells
    assert end.spent.usd <= (small.usd or 0)
    found = outcomes(tmp_path / "run")
    expected = outcomes(tmp_path / "straight")
    assert all(expected[cell] == outcome for cell, outcome in found.items()), "a cell that was cut is no outcome"
    again = World()
    assert (await again.run(replace(asked, budget=small), tmp_path / "run")).status == "budget_exceeded"
    assert again.calls <= 2, "the rest of the budget is no more than a call's bound"
    more = World()
    end = await more.run(replace(asked, budget=Budget(usd=Decimal(100))), tmp_path / "run")
    assert end.status == "done"
    assert outcomes(tmp_path / "run") == expected
    assert world.calls + again.calls + more.calls == straight.calls == paid(tmp_path / "run")
    assert end.spent == whole.spent


async def test_calls_from_the_cache_spend_nothing_of_the_run_but_count_for_the_job(tmp_path: Path) -> None:
    arms = {"plan": {"mode": "dag"}, "twin": {"mode": "dag", "options": {"max_concurrency": 1}}}
    await World().run(experiment(1, arms=arms, concurrency=1), tmp_path / "run")
    first, second = Folder(tmp_path / "run").outcomes()
    assert first.cost == second.cost
    assert second.cached_calls == second.usage.calls  # type: ignore[union-attr]
    assert (first.spent_usd, second.spent_usd, second.spent_tokens) == (first.cost, 0, 0)


async def test_a_job_s_own_budget_makes_an_outcome(tmp_path: Path) -> None:
    arms = {"poor": {"mode": "react", "budget": "0.000001usd"}}
    end = await World().run(experiment(2, arms=arms, budget="5usd"), tmp_path / "run")
    assert end.status == "done"
    assert {outcome.status for outcome in outcomes(tmp_path / "run").values()} == {"budget_exceeded"}


async def test_a_budget_in_money_needs_prices(tmp_path: Path) -> None:
    world = World()
    found = ModelRegistry()
    found.register("free", ScriptedLLM(world.reply), roles=["general"])
    world.models = lambda: found  # type: ignore[method-assign]
    with pytest.raises(Exception, match="the price of model 'free'"):
        await world.run(experiment(1, budget="1usd"), tmp_path / "run")
    assert not (tmp_path / "run" / "experiment.json").exists()


# What can't be run


async def test_a_job_that_fails_is_an_outcome_but_a_wrong_key_is_none(tmp_path: Path) -> None:
    wrong = True

    async def before(number: int) -> None:
        if wrong:
            raise AuthError("the key is wrong")

    world = World(before)
    end = await world.run(experiment(4, concurrency=2), tmp_path / "run")
    assert (end.status, end.ended) == ("incomplete", 0)
    assert all("the key is wrong" in reason for reason in end.failed.values())
    assert 1 <= len(end.failed) <= 2, "nothing else is begun"
    wrong = False
    end = await World(before).run(experiment(4, concurrency=2), tmp_path / "run")
    assert end.status == "done"
    assert {outcome.status for outcome in outcomes(tmp_path / "run").values()} == {"completed"}


async def test_a_log_that_cannot_be_read_costs_only_its_cell(tmp_path: Path) -> None:
    await interrupted(2, told_twice, experiment(2, concurrency=1), tmp_path / "run")
    (log,) = (tmp_path / "run" / "jobs").glob("*.jsonl")
    log.write_text('{"other": "version"}\n', encoding="utf-8")
    end = await World().run(experiment(2, concurrency=1), tmp_path / "run")
    assert (end.status, end.ended, len(end.failed)) == ("incomplete", 5, 1)
    assert "cannot be read" in next(iter(end.failed.values()))


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ({"a": {"routing": "fixed:none"}}, "arm 'a'"),
        ({"a": {"roles": {"smart": "none"}}}, "arm 'a'"),
        ({"a": {"options": {"max_iterations": 0}}}, "arm 'a': options.max_iterations = 0"),
    ],
)
async def test_arms_are_checked_before_anything_is_run(arms: Any, said: str, tmp_path: Path) -> None:
    world = World()
    with pytest.raises(ConfigError, match=said):
        await world.run(experiment(1, arms={"good": {}, **arms}), tmp_path / "run")
    assert world.calls == 0
    assert not (tmp_path / "run").exists()


async def test_a_task_s_plan_is_executed_as_it_is_and_a_control_does_without(tmp_path: Path) -> None:
    plan = {"steps": [{"id": "only", "task": "do it"}]}
    asked = experiment(1, arms={"plan": {"mode": "auto"}, "control": {"mode": "react"}})
    from executor.experiments.tasks import tasks_from

    asked = replace(asked, tasks=tasks_from([("here", {"id": "t0", "input": "question 0", "plan": plan})], "here"))
    await World().run(asked, tmp_path / "run")
    found = outcomes(tmp_path / "run")
    assert (found[Cell("plan", "t0", 1)].steps, found[Cell("control", "t0", 1)].steps) == (1, 0)
    assert not any(turn.payload["role"] == "planner" for turn in turns(tmp_path / "run"))
