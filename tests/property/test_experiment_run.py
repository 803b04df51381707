"""However often a run is interrupted, and wherever, it comes to the outcomes of one that nothing happened to: each cell
once, and no reply that was written down asked for again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.experiments.run.budget import RunBudget
from executor.experiments.run.stopping import Stop
from registry.budget import Budget
from registry.llm_types import ChatRequest
from registry.messages import Message
from registry.testing import ScriptedLLM
from tests.support.experiment_world import PRICE, World, experiment, lost, outcomes, paid, tear, whole_lines

HOW = ("cancel", "stop", "at once", "kill")
SLOW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(
    interruptions=st.lists(st.tuples(st.integers(1, 12), st.sampled_from(HOW), st.binary(max_size=20)), max_size=4),
    concurrency=st.integers(1, 5),
    cache=st.booleans(),
)
@SLOW
def test_any_interruptions_come_to_the_same(
    interruptions: list[tuple[int, str, bytes]], concurrency: int, cache: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_interrupted(Path(folder), interruptions, concurrency, cache=cache))


async def _interrupted(
    home: Path, interruptions: list[tuple[int, str, bytes]], concurrency: int, *, cache: bool
) -> None:
    asked = experiment(2, concurrency=concurrency, cache=cache)
    straight = World()
    await straight.run(asked, home / "straight")
    path = home / "run0"
    for number, (at, how, tail) in enumerate(interruptions):
        before_it = paid(path), lost(path)
        path, world = await _life(asked, path, home / f"run{number + 1}", at, how)
        came, cut = paid(path) - before_it[0], lost(path) - before_it[1]
        assert came <= world.calls
        assert how == "kill" or world.calls <= came + cut, "what was asked is written down"
        tear(path, tail.replace(b"\n", b""))
    before, known = whole_lines(path), paid(path)
    last = World()
    assert (await last.run(asked, path)).status == "done"
    assert outcomes(path) == outcomes(home / "straight")
    assert paid(path) == straight.calls, "no reply that was written down was asked for again"
    assert last.calls == straight.calls - known
    after = whole_lines(path)
    assert all(after[name][: len(lines)] == lines for name, lines in before.items())


async def _life(asked: Any, path: Path, copy: Path, at: int, how: str) -> tuple[Path, World]:
    """A process that something happens to at its call `at`, and the folder that it leaves."""
    stop = Stop()
    task: asyncio.Task[Any] | None = None

    async def before(number: int) -> None:
        await asyncio.sleep(0.001)
        if number != at or task is None:
            return
        if how == "kill":
            shutil.copytree(path, copy)
        elif how == "cancel":
            task.cancel()
        else:
            stop.tell()
            if how == "at once":
                stop.tell()
        await asyncio.sleep(0)

    world = World(before)
    task = asyncio.create_task(world.run(asked, path, stop))
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    if how == "kill" and copy.exists():  # noqa: ASYNC240
        return copy, world
    return path, world


@given(
    calls=st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["ends", "fails", "left"])), min_size=1, max_size=12),
    tokens=st.integers(10, 2_000),
    order=st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_what_is_held_and_spent_never_exceeds_the_budget(calls: list[tuple[int, str]], tokens: int, order: Any) -> None:
    asyncio.run(_spends(calls, tokens, order))


async def _spends(calls: list[tuple[int, str]], tokens: int, order: Any) -> None:
    budget = RunBudget(Budget(tokens=tokens))
    llm = ScriptedLLM(["x"] * len(calls), price=PRICE)
    held = 0

    async def one(length: int, how: str) -> None:
        nonlocal held
        prepared = llm.prepare(ChatRequest((Message.user("x" * length),), max_tokens=length))
        bound = len(prepared.body) + length
        if not await budget.admitted(llm, prepared):
            assert budget.spent.tokens + bound > tokens, "refused though it fits"
            return
        held += bound
        assert budget.spent.tokens + held <= tokens
        for _ in range(order.randint(0, 3)):
            await asyncio.sleep(0)
        held -= bound
        if how == "left":
            budget.release(prepared)
        else:
            budget.restore(_amount(bound if how == "fails" else bound // 2))
            budget.release(prepared)
        assert budget.spent.tokens <= tokens

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for length, how in calls:
            group.create_task(one(length, how))


def _amount(tokens: int) -> Any:
    from registry.budget import Amount

    return Amount(tokens=tokens)
