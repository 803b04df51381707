"""What a whole run may cost: reserved before each call and settled after it, behind the jobs' own budgets.

It never lowers a call by what is left: the last cells would be done otherwise than the first. A call that does not fit
beside those under way waits; one that would not fit alone is not made, and its cell is put down where it stands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NoReturn

from executor.experiments.types import Outcome
from executor.reservations import AMPLE_OUTPUT_TOKENS, CALL_SHARE, UNKNOWN_OUTPUT_TOKENS, unpriced
from registry.budget import NOTHING, Account, Amount, Budget, CallBound, Room, cost_of
from registry.errors import UsageError
from registry.llm import LLM
from registry.llm_types import CallRecord, Prepared
from registry.models import ModelRegistry
from registry.prices import Price


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What is set aside for a call; the call is kept, so that nothing else is ever known by its identity."""

    prepared: Prepared
    amount: Amount
    price: Price | None
    task: asyncio.Task[Any] | None


class RunBudget:
    """The money and tokens of a run, shared by its jobs; without a budget it only counts. `spent`: what its calls have
    cost so far, those of unknown cost with their bound."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget
        self.spent = NOTHING
        self._account = None if budget is None else Account(budget)
        self._open: dict[int, _Held] = {}
        self._queue: deque[asyncio.Event] = deque()

    def check(self, models: ModelRegistry) -> None:
        """Raises BudgetUnpricedError for a budget in money where a model has no price."""
        if self.budget is not None and self.budget.usd is not None:
            for name in models.names():
                if models.get(name).price is None:
                    raise unpriced(name, models.get(name).model_id)

    def restore(self, amount: Amount) -> None:
        """What was spent before the run went on."""
        self._spend(NOTHING, amount)

    def for_cell(self) -> CellBudget:
        """The budget as one cell's job has it."""
        return CellBudget(self)

    def bounded(self, llm: LLM, prepared: Prepared) -> Prepared:
        """The call with an output limit of at most a share of the whole budget, but an ample one: the same for the
        first call of a run and for its last."""
        if self.budget is None:
            return prepared
        asked = prepared.output_bound
        limit = asked or min(UNKNOWN_OUTPUT_TOKENS, max(1, (llm.context_size or UNKNOWN_OUTPUT_TOKENS * 2) // 2))
        share = CallBound.of(prepared, self._price(llm)).output_within(
            Room(self.budget.usd, self.budget.tokens).part(CALL_SHARE)
        )
        if share is not None:
            limit = min(limit, max(share, AMPLE_OUTPUT_TOKENS))
        return prepared if limit == asked else llm.prepare(replace(prepared.request, max_tokens=limit))

    async def admitted(self, llm: LLM, prepared: Prepared) -> bool:
        """Sets aside what the call may cost, once it fits beside those under way; False: it never will."""
        if self._account is None:
            self._hold(llm, prepared, NOTHING)
            return True
        amount = self._bound(llm, prepared)
        task = asyncio.current_task()
        inside = any(held.task is task for held in self._open.values())  # its own task's call would wait for itself
        turn = asyncio.Event()
        self._queue.append(turn)
        try:
            while self._account.room(final=True, held=NOTHING).holds(amount):
                if (inside or self._queue[0] is turn) and self._account.room(final=True).holds(amount):
                    self._account = self._account.reserve(amount)
                    self._hold(llm, prepared, amount)
                    return True
                if inside:
                    return False
                turn.clear()
                await turn.wait()
            return False
        finally:
            self._queue.remove(turn)
            self._next()

    def release(self, prepared: Prepared) -> None:
        """A call was not sent."""
        held = self._open.pop(id(prepared), None)
        if held is not None:
            self._spend(held.amount, NOTHING)

    def settle(self, record: CallRecord) -> Amount | None:
        """What a call came to; what was set aside for it."""
        held = self._open.pop(id(record.prepared), None)
        if held is None:
            return None
        spent = held.amount if record.usage is None else cost_of(record.usage, held.price)
        self._spend(held.amount, spent)
        return None if self._account is None else held.amount

    def _bound(self, llm: LLM, prepared: Prepared) -> Amount:
        if prepared.output_bound is None:
            raise UsageError(f"model {llm.name!r} sends no output limit, so that it can't be held to the run's budget")
        price = self._price(llm)
        if price is None and self.budget is not None and self.budget.usd is not None:
            raise unpriced(llm.name, llm.model_id)
        return CallBound.of(prepared, price).amount(prepared.output_bound)

    def _price(self, llm: LLM) -> Price | None:
        return llm.price if self.budget is not None and self.budget.usd is not None else None

    def _hold(self, llm: LLM, prepared: Prepared, amount: Amount) -> None:
        self._open[id(prepared)] = _Held(prepared, amount, llm.price, asyncio.current_task())

    def _spend(self, held: Amount, spent: Amount) -> None:
        self.spent += spent
        if self._account is not None:
            self._account = self._account.settle(held, spent)
        self._next()

    def _next(self) -> None:
        if self._queue:
            self._queue[0].set()


class CellBudget:
    """The run's budget as one job has it behind its own. `used_up` is set by the first call that it does not allow;
    whoever asked for that call stands still until the job is put down."""

    def __init__(self, run: RunBudget) -> None:
        self._run = run
        self.used_up = asyncio.Event()

    def bounded(self, llm: LLM, prepared: Prepared) -> Prepared:
        """The call with an output limit that the run may allow."""
        return self._run.bounded(llm, prepared)

    async def reserve(self, llm: LLM, prepared: Prepared) -> None:
        """Sets aside what the call may cost; does not return where it does not fit into the run's budget."""
        if not await self._run.admitted(llm, prepared):
            self.used_up.set()
            await _for_good()

    def release(self, prepared: Prepared) -> None:
        """Takes it back for a call that was not sent."""
        self._run.release(prepared)

    def settle(self, record: CallRecord) -> Amount | None:
        """Takes note of what a call came to."""
        return self._run.settle(record)


def spent_for(outcome: Outcome) -> Amount:
    """What a cell that has ended counts against the budget."""
    return Amount(outcome.spent_usd or Decimal(0), outcome.spent_tokens)


async def _for_good() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends this")
