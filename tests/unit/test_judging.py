"""Judges' calls count against the run's budget, and are not paid for twice."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from executor.experiments.folder import Folder
from executor.experiments.grading.judging import judging
from executor.experiments.types import Cell, Grade, Outcome
from registry.budget import Budget, BudgetUnpricedError
from registry.errors import BudgetExceededError
from registry.messages import Message
from registry.models import ModelRegistry
from registry.testing import ScriptedLLM
from tests.support.experiment_world import PRICE, experiment

SPENT = Outcome(Cell("agent", "t0", 1), "completed", "42", spent_usd=Decimal("0.4"), spent_tokens=100)


def registry(llm: ScriptedLLM) -> ModelRegistry:
    found = ModelRegistry()
    found.register("judge", llm, roles=["general"])
    return found


def judge(tokens: int = 100_000) -> ScriptedLLM:
    return ScriptedLLM(lambda request: "fine", price=PRICE, max_output_tokens=tokens)


async def test_a_verdict_that_was_asked_for_costs_nothing(tmp_path: Path) -> None:
    llm, folder = judge(), Folder.create(tmp_path / "run", experiment(1))
    for _ in range(2):
        async with judging(folder.experiment, folder, registry(llm), [SPENT]) as models:
            assert (await models.get("judge").chat([Message.user("How good?")])).message.content == "fine"
    assert len(llm.requests) == 1


async def test_what_cells_and_grades_have_spent_is_not_there_any_more(tmp_path: Path) -> None:
    llm, folder = judge(1_000), Folder.create(tmp_path / "run", experiment(1))
    asked = replace(folder.experiment, budget=Budget(usd=Decimal("0.5")), cache=False)
    async with judging(asked, folder, registry(llm), [SPENT]) as models:
        await models.get("judge").chat([Message.user("How good?")])
    grade = Grade(SPENT.cell, 1.0, cost=Decimal("0.09995"))
    async with judging(asked, folder, registry(llm), [SPENT], [grade]) as models:
        with pytest.raises(BudgetExceededError, match=r"the run's budget of 0.5usd is used up"):
            await models.get("judge").chat([Message.user("How good?")])
    assert len(llm.requests) == 1


async def test_an_output_limit_is_bounded_by_the_whole_budget_and_not_by_what_is_left(tmp_path: Path) -> None:
    llm, folder = judge(), Folder.create(tmp_path / "run", experiment(1))
    asked = replace(folder.experiment, budget=Budget(usd=Decimal("0.2")), cache=False)
    for spent in (Decimal(0), Decimal("0.1")):
        async with judging(asked, folder, registry(llm), [replace(SPENT, spent_usd=spent)]) as models:
            await models.get("judge").chat([Message.user("How good?")])
    first, second = (request.max_tokens for request in llm.requests)
    assert first == second
    assert 20_000 < (first or 0) < 25_000, "what a quarter of the budget pays for, of 100,000 that were asked for"


async def test_a_budget_in_money_needs_the_judge_s_price(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "run", experiment(1))
    asked = replace(folder.experiment, budget=Budget(usd=Decimal(1)))
    with pytest.raises(BudgetUnpricedError, match="the price of model 'judge'"):
        async with judging(asked, folder, registry(ScriptedLLM(["x"])), []):
            pytest.fail("it began")
