"""Models for judges: their calls count against the run's budget, and are kept in its call cache."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path

from executor.experiments.folder import Folder
from executor.experiments.run.budget import RunBudget, spent_for
from executor.experiments.types import Experiment, Grade, Outcome
from registry.budget import Amount
from registry.errors import BudgetExceededError
from registry.llm import LLM
from registry.llm_types import CallRecord, Prepared
from registry.messages import LLMResult
from registry.models import ModelRegistry
from registry.reply_cache import ReplyCache

SALT = "grade"
"""What judges were told is kept apart from what the cells were."""


@asynccontextmanager
async def judging(
    experiment: Experiment,
    folder: Folder,
    models: ModelRegistry,
    outcomes: Iterable[Outcome],
    grades: Iterable[Grade] = (),
    *,
    calls: Path | None = None,
) -> AsyncIterator[ModelRegistry]:
    """The models as judges have them within the block. `outcomes` and `grades` have spent of the budget already. A call
    that it does not allow is a BudgetExceededError. Raises BudgetUnpricedError for a budget in money where a model has
    no price, and ConfigError where the cache (`calls`, instead of the folder's own) can't be opened."""
    budget = RunBudget(experiment.budget)
    budget.check(models)
    for outcome in outcomes:
        budget.restore(spent_for(outcome))
    for grade in grades:
        budget.restore(Amount(grade.cost or Decimal(0)))
    async with AsyncExitStack() as stack:
        if experiment.cache:
            cache = await stack.enter_async_context(ReplyCache.open(calls or folder.calls))
            models = models.each(lambda llm: llm.remembering(cache.for_job(SALT)))
        yield models.scoped(_Judges(budget))


class _Judges:
    """The scope of judges' calls."""

    def __init__(self, budget: RunBudget) -> None:
        self._budget = budget

    def recall(self, llm: LLM) -> LLMResult | None:
        return None

    async def reserve(self, llm: LLM, prepared: Prepared) -> Prepared:
        return self._budget.bounded(llm, prepared)

    async def sending(self, llm: LLM, prepared: Prepared) -> None:
        if not await self._budget.admitted(llm, prepared):
            raise BudgetExceededError(f"the run's budget of {self._budget.budget} is used up")

    def released(self, prepared: Prepared) -> None:
        self._budget.release(prepared)

    async def record(self, record: CallRecord) -> None:
        self._budget.settle(record)

    def abandoned(self, record: CallRecord) -> None:
        self._budget.settle(record)
