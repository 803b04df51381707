"""A job's budget at work: calls are let through one after the other, each with an amount set aside for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from registry.budget import (
    ANSWER_OUTPUT_TOKENS,
    MIN_OUTPUT_TOKENS,
    NOTHING,
    Account,
    Amount,
    Budget,
    BudgetUnpricedError,
    CallBound,
    Room,
    answer_reserve,
    cost_of,
    input_within,
)
from registry.context import caller
from registry.errors import BadRequestError, BudgetExceededError, ContextLengthError, LLMError, UsageError
from registry.llm import LLM
from registry.llm_types import Prepared
from registry.messages import Usage, money
from registry.prices import Price

FINAL_ROLE = "synthesis"
"""The role whose calls may use what is kept for the answer."""
CALL_SHARE = 4
"""A call that did not ask for an output limit of its own gets at most one in this many parts of what is unspent, so
that the largest reply a model can give does not bar every other call …"""
AMPLE_OUTPUT_TOKENS = 4_096
"""… but not less than this, where it can be paid."""
UNKNOWN_OUTPUT_TOKENS = 8_192
"""The output limit where none is sent and the model's own is unknown: more than most replies have, and not more than
common servers take."""


@dataclass(slots=True, eq=False)
class Reservation:
    """What is set aside for one call under way. `lowered`: its output limit is less than what was asked for. `number`:
    under which it stands in the job's log once it is about to be sent."""

    llm: LLM
    amount: Amount
    task: asyncio.Task[Any] | None
    limited_by_us: bool
    lowered: bool
    number: int = 0


@dataclass(slots=True)
class _Call:
    """A call that asks for admission. `asked`: its output limit; `wished`: whether the caller chose that limit."""

    llm: LLM
    prepared: Prepared
    bound: CallBound
    asked: int
    wished: bool
    limited_by_us: bool
    final: bool

    @property
    def least(self) -> int:
        return min(MIN_OUTPUT_TOKENS, self.asked)


class Reservations:
    """Reserves, waits, settles. A call that does not fit only because of open reservations waits, in order; a call from
    inside another one (a stream that is still open in the same task) never waits: it would wait for itself.

    `tell(reason, **details)` hears of refusals, lowered limits, and of a provider that billed more than it may.
    """

    def __init__(self, budget: Budget, answer_price: Price | None, tell: Callable[..., None]) -> None:
        self.account = Account(budget, answer_reserve(budget, answer_price))
        self.answer_refused = False
        self._tell = tell
        self._open: set[Reservation] = set()
        self._queue: deque[asyncio.Event] = deque()

    @property
    def open(self) -> int:
        """Calls under way."""
        return len(self._open)

    async def reserve(self, llm: LLM, prepared: Prepared) -> Prepared:
        """The call with an amount set aside for it, its output limit lowered where it must be.

        Raises BudgetExceededError for a call that does not fit, BudgetUnpricedError for one without a price.
        """
        call = self._call(llm, prepared)
        self._refuse_hopeless(call)
        task = asyncio.current_task()
        inside = any(other.task is task for other in self._open)
        if inside or not self._queue:
            granted = self._decide(call, may_wait=not inside)
            if granted is not None:
                return granted
        return await self._in_turn(call)

    def settle(self, prepared: Prepared, usage: Usage | None, error: LLMError | None = None) -> None:
        """A call that was sent has ended. Usage None: nobody knows what it cost, so it counts as its bound."""
        held: Reservation | None = prepared.reservation
        if held is None or held not in self._open:
            return
        if held.limited_by_us and isinstance(error, BadRequestError | ContextLengthError):
            held.llm.learn(error, prepared)  # the limit was ours: the caller's own request does not show it
        spent = held.amount if usage is None else self._cost(usage, held.llm)
        self._open.discard(held)
        self.account = self.account.settle(held.amount, spent)
        if not spent.within(held.amount):
            over = {"billed_usd": money(spent.usd), "billed_tokens": spent.tokens, "bound_usd": money(held.amount.usd)}
            self._tell("overbilled", model=held.llm.name, bound_tokens=held.amount.tokens, **over)
        self._next()

    def release(self, prepared: Prepared) -> None:
        """A call was not sent."""
        held: Reservation | None = prepared.reservation
        if held is None or held not in self._open:
            return
        self._open.discard(held)
        self.account = self.account.release(held.amount)
        self._next()

    def restore(self, amount: Amount) -> None:
        """What was spent before this job's worker changed."""
        self.account = self.account.settle(NOTHING, amount)

    def answer_bytes(self, llm: LLM) -> int | None:
        """The bytes that the request of a final answer may have now, with an ordinary output limit beside them; None:
        the budget sets no limit."""
        room = self.account.room(final=True)
        output = min(ANSWER_OUTPUT_TOKENS, llm.max_output_tokens or ANSWER_OUTPUT_TOKENS)
        half = CallBound(0, llm.price).output_within(room.part(2))
        if half is not None:
            output = min(output, max(half, min(MIN_OUTPUT_TOKENS, output)))
        return input_within(room, llm.price, output)

    def room(self) -> Room:
        """What is not spent beyond what is kept for the answer. What is set aside for calls under way is not taken off:
        that is a bound, most of which comes back."""
        return self.account.room(final=False, held=NOTHING)

    def to_json(self) -> dict[str, Any]:
        """Spent, reserved, left and kept of each limit; money as text."""
        account, left = self.account, self.account.room(final=True)
        told: dict[str, Any] = {}
        if left.usd is not None:
            told["usd"] = _figures(account, left, lambda amount: money(amount.usd), money(left.usd))
        if left.tokens is not None:
            told["tokens"] = _figures(account, left, lambda amount: amount.tokens, left.tokens)
        return told

    def _cost(self, usage: Usage, llm: LLM) -> Amount:
        spent = cost_of(usage, llm.price)
        return spent if self.account.budget.usd is not None else Amount(tokens=spent.tokens)

    # Admission

    def _call(self, llm: LLM, prepared: Prepared) -> _Call:
        price = llm.price if self.account.budget.usd is not None else None
        if self.account.budget.usd is not None and price is None:
            raise unpriced(llm.name, llm.model_id)
        asked = prepared.output_bound
        if asked is None:
            asked = min(UNKNOWN_OUTPUT_TOKENS, max(1, (llm.context_size or UNKNOWN_OUTPUT_TOKENS * 2) // 2))
            prepared = llm.prepare(replace(prepared.request, max_tokens=asked))
            asked, limited = _limit_of(prepared), True
        else:
            limited = False
        wish = prepared.request.max_tokens
        wished = not limited and wish is not None and wish != llm.max_output_tokens
        final = caller().role == FINAL_ROLE
        return _Call(llm, prepared, CallBound.of(prepared, price), asked, wished, limited, final)

    def _refuse_hopeless(self, call: _Call) -> None:
        """Refuses what would not fit even if all that is held came back."""
        most = call.bound.output_within(self.account.room(final=call.final, held=NOTHING))
        if most is not None and most < call.least:
            raise self._refusal(call)

    async def _in_turn(self, call: _Call) -> Prepared:
        """Waits until the call is the first in the queue and fits. Cancelled, it leaves the queue and holds nothing."""
        turn = asyncio.Event()
        self._queue.append(turn)
        try:
            while True:
                if self._queue[0] is turn:
                    granted = self._decide(call, may_wait=True)
                    if granted is not None:
                        return granted
                turn.clear()
                await turn.wait()
        finally:
            self._queue.remove(turn)
            self._next()

    def _next(self) -> None:
        if self._queue:
            self._queue[0].set()

    def _decide(self, call: _Call, *, may_wait: bool) -> Prepared | None:
        """Admits a call, lowered where nothing else is left; None: it has to wait. Raises BudgetExceededError."""
        self._refuse_hopeless(call)
        room = self.account.room(final=call.final)
        wanted = self._wanted(call)
        if not room.holds(call.bound.amount(wanted)):
            if may_wait and self._open:
                return None
            most = call.bound.output_within(room)
            wanted = wanted if most is None else min(wanted, most)
        return self._admitted(call, room, wanted)

    def _wanted(self, call: _Call) -> int:
        """The output limit that the call should have if nothing else were under way."""
        alone = self.account.room(final=call.final, held=NOTHING)
        if call.final or (call.wished and alone.holds(call.bound.amount(call.asked))):
            return call.asked
        share = call.bound.output_within(alone.part(CALL_SHARE))
        return call.asked if share is None else min(call.asked, max(share, AMPLE_OUTPUT_TOKENS))

    def _admitted(self, call: _Call, room: Room, output: int) -> Prepared:
        prepared, bound = call.prepared, call.bound
        for _ in range(4):  # a body made anew may be a few bytes longer
            if output < call.least:
                break
            if output != prepared.output_bound:
                prepared = call.llm.prepare(replace(call.prepared.request, max_tokens=output))
                bound = CallBound.of(prepared, call.bound.price)
                output = _limit_of(prepared)
            amount = bound.amount(output)
            if room.holds(amount):
                return self._held(call, prepared, amount, output)
            output = min(output - 1, bound.output_within(room) or 0)
        raise self._refusal(call)

    def _held(self, call: _Call, prepared: Prepared, amount: Amount, output: int) -> Prepared:
        lowered = output < call.asked
        held = Reservation(call.llm, amount, asyncio.current_task(), call.limited_by_us, lowered)
        self._open.add(held)
        self.account = self.account.reserve(amount)
        if lowered:
            self._tell("lowered", model=call.llm.name, asked_tokens=call.asked, max_tokens=output)
        return replace(prepared, reservation=held)

    def _refusal(self, call: _Call) -> BudgetExceededError:
        self.answer_refused |= call.final
        amount = call.bound.amount(call.least)
        self._tell("refused", model=call.llm.name, bound_usd=money(amount.usd), bound_tokens=amount.tokens)
        left = self.account.room(final=call.final, held=NOTHING)
        needs = _in_words(
            Room(None if left.usd is None else amount.usd, None if left.tokens is None else amount.tokens)
        )
        kept = "" if call.final else ", beside what is kept for the answer"
        return BudgetExceededError(
            f"the job's budget of {self.account.budget} does not allow this call on {call.llm.name!r}: "
            f"it may cost {needs}, and {_in_words(left)} is left{kept}"
        )


def unpriced(name: str, model_id: str) -> BudgetUnpricedError:
    """The error for a model without a price under a budget in money."""
    return BudgetUnpricedError(
        f"a budget in USD can't be kept: the price of model {name!r} ({model_id}) is unknown. Set it in models.toml, "
        f"in USD per million tokens ([models.{name}] price = {{ input = 0.15, output = 0.60 }}; zeros for a model that "
        "costs nothing), or give a budget in tokens"
    )


def _limit_of(prepared: Prepared) -> int:
    if prepared.output_bound is None:
        raise UsageError("this model sends no output limit, so that it can't be held to a budget")
    return prepared.output_bound


def _figures(account: Account, left: Room, of: Callable[[Amount], Any], rest: Any) -> Mapping[str, Any]:
    return {"spent": of(account.spent), "reserved": of(account.held), "left": rest, "kept": of(account.kept)}


def _in_words(room: Room) -> str:
    usd = None if room.usd is None else f"${money(max(room.usd, NOTHING.usd))}"
    tokens = None if room.tokens is None else f"{max(room.tokens, 0)} tokens"
    return " and ".join(part for part in (usd, tokens) if part)
