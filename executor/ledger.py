"""Where every call of a job is written down: for the log, and for what it all cost."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

from agent.activity import Activity
from agent.services import at_once
from registry.budget import Amount, Budget, cost_of
from registry.context import Caller, caller
from registry.errors import UsageError
from registry.llm import LLM
from registry.llm_types import CallRecord, Prepared
from registry.messages import Event, LLMResult, Usage, money
from registry.models import ModelRegistry
from registry.redaction import redact_data

from .job_time import JobTime
from .reservations import Reservation, Reservations, unpriced
from .tally import Tally

Place: TypeAlias = tuple[str | None, int, int, str, str | None]
"""Where a reply belongs: step, round, attempt, role, key of the tool call. Several at one place come in their order."""


class Behind(Protocol):
    """A budget that several jobs share, behind their own ones."""

    def bounded(self, llm: LLM, prepared: Prepared) -> Prepared:
        """The call with an output limit that this budget may allow. Must not depend on what is spent."""

    async def reserve(self, llm: LLM, prepared: Prepared) -> None:
        """Sets aside what a call may cost that is about to be sent; does not return where it does not fit."""

    def release(self, prepared: Prepared) -> None:
        """Takes that back for a call that was not sent."""

    def settle(self, record: CallRecord) -> Amount | None:
        """Takes note of what a call came to; what was set aside for it."""


class Ledger:
    """A job's scope for its models: each try becomes a `turn` event and is added up by role and by model.

    `append(channel, payload, step_id)` is the job's log. With a budget in money or tokens, what a call may cost at most
    is reserved before it, stored before it is sent, and settled after it; `models` are those of the job, `time` is its
    clock. What is reserved, refusals, lowered limits and the account at the end become `budget` events. `barrier`
    returns when the log is kept for good: no reply is used before, so that none is ever paid for twice. `behind` is a
    budget beyond the job's own. Raises BudgetUnpricedError for a budget in money where a model, a fallback too, has no
    price.
    """

    def __init__(
        self,
        append: Callable[[str, Mapping[str, Any], str | None], None],
        budget: Budget | None = None,
        models: ModelRegistry | None = None,
        time: JobTime | None = None,
        barrier: Callable[[], Awaitable[None]] = at_once,
        activity: Activity | None = None,
        behind: Behind | None = None,
    ) -> None:
        self._append, self._barrier, self._behind = append, barrier, behind
        self._activity = activity or Activity()
        self.budget, self._time = budget, time
        self.cut_by_budget = self._closed = False
        self.reservations: Reservations | None = None
        if budget is not None and budget.counts:
            price = models.for_role("smart").price if models is not None else None
            self.reservations = Reservations(budget, price, self._tell)
        if budget is not None and budget.usd is not None and models is not None:
            for name in models.names():
                if models.get(name).price is None:
                    raise unpriced(name, models.get(name).model_id)
        self.tally = Tally()
        self._known: defaultdict[Place, deque[LLMResult]] = defaultdict(deque)
        self._number = 0

    def restore(self, turns: Iterable[Event], pending: Iterable[Event]) -> None:
        """Takes up a job's account. `turns`: all `turn` events so far, which were paid for, and those that stand for
        calls that were lost with their worker; `pending`: those of them whose replies are given again when they are
        asked for, since what became of them is not known."""
        for event in turns:
            self._count(event.payload)
            self._number = max(self._number, event.payload.get("reserved", 0))
        for event in pending:
            if event.payload["result"] is not None:
                self._known[place_of(event)].append(LLMResult.from_json(event.payload["result"]))

    def recall(self, llm: LLM) -> LLMResult | None:
        """The next reply that is known at the caller's place."""
        if not self._known:
            return None
        place = place_here()
        known = self._known.get(place)
        if not known:
            return None
        reply = known.popleft()
        if not known:
            del self._known[place]
        return reply

    async def reserve(self, llm: LLM, prepared: Prepared) -> Prepared:
        """Sets aside what the call may cost; waits for calls under way where it would not fit beside them. Raises
        BudgetExceededError, and UsageError when the job has ended: nobody would account for what a tool that was left
        behind spends."""
        if self._closed:
            raise UsageError("the job has ended: its models take no more calls")
        await self._may_begin()
        if self._behind is not None:
            prepared = self._behind.bounded(llm, prepared)
        return prepared if self.reservations is None else await self.reservations.reserve(llm, prepared)

    async def sending(self, llm: LLM, prepared: Prepared) -> None:
        """The call goes out, unless the job is being handed over: it may have waited for long since it was reserved."""
        await self._may_begin()
        if self._behind is not None:
            await self._behind.reserve(llm, prepared)
            await self._may_begin()
        if prepared.reservation is not None:
            await self._set_down(llm, prepared.reservation)
            await self._may_begin()
        self._activity.model(1)

    async def _set_down(self, llm: LLM, held: Reservation) -> None:
        """Stores what the call may cost before it is sent: whoever goes on with the job if its reply never comes into
        the log knows that it was made, and what it may have cost."""
        who = caller()
        self._number += 1
        held.number = self._number
        told = {
            "reason": "reserved",
            "reserved": held.number,
            **_place(who),
            "model": llm.name,
            "model_id": llm.model_id,
            "bound": _figures(held.amount),
        }
        self._append("budget", told, who.step_id)
        await self._barrier()

    async def _may_begin(self) -> None:
        if caller().call_id is None:  # a tool that has begun may end, with what models do for it
            await self._activity.may_begin()

    def released(self, prepared: Prepared) -> None:
        """The call was not sent: what was set aside for it is free again."""
        if self._behind is not None:
            self._behind.release(prepared)
        if self.reservations is not None:
            self.reservations.release(prepared)
            held = prepared.reservation
            if held is not None and held.number:
                self._append("budget", {"reason": "released", "reserved": held.number}, caller().step_id)

    async def record(self, record: CallRecord) -> None:
        """Adds one try: a call that failed before it could cost anything counts as no call."""
        self._add(record)
        if record.result is not None:
            await self._barrier()

    def abandoned(self, record: CallRecord) -> None:
        """Adds a try that was cancelled on its way: its cost is unknown."""
        self._add(record)

    def answer_bytes(self, llm: LLM) -> int | None:
        """The bytes that the request of the final answer may have; None: the budget sets no limit."""
        return None if self.reservations is None else self.reservations.answer_bytes(llm)

    @property
    def answer_refused(self) -> bool:
        """Whether the budget did not allow a call for the final answer."""
        return self.reservations is not None and self.reservations.answer_refused

    def refuse_answer(self) -> None:
        """The final answer does not fit into the budget, however short: it is not asked for."""
        if self.reservations is not None:
            self.reservations.answer_refused = True
            self._tell("refused", final=True)

    def close(self) -> None:
        """Writes the account down where there is a budget: the job is at its end."""
        self._closed = True
        if self.budget is not None:
            self._tell("end")

    def _tell(self, reason: str, **details: Any) -> None:
        who = caller()
        figures = {} if self.reservations is None else self.reservations.to_json()
        figures |= {} if self._time is None else self._time.to_json()
        role = {} if reason == "end" else {"role": who.role}
        self._append("budget", {"reason": reason, **role, **details, **figures}, who.step_id)

    def _add(self, record: CallRecord) -> None:
        held = None if self._behind is None else self._behind.settle(record)
        if not record.cached:
            self._activity.model(-1)
        if self.reservations is not None:
            self.reservations.settle(record.prepared, record.usage, record.error)
            if record.result is not None and record.result.finish_reason == "length":
                self.cut_by_budget |= record.prepared.reservation is not None and record.prepared.reservation.lowered
        usage = Usage.unknown() if record.usage is None else record.usage
        self.tally.add(record.caller.role, record.model_name, usage)
        self._append("turn", _turn(record, held), record.caller.step_id)

    def _count(self, turn: Mapping[str, Any]) -> None:
        """A call of before: one of unknown cost counts as the bound it had."""
        usage = Usage.recorded(turn["usage"])
        self.tally.add(turn["role"], turn["model"], usage)
        if self.reservations is not None:
            bound = turn.get("bound")
            self.reservations.restore(
                cost_of(usage, None) if bound is None else Amount(Decimal(bound["usd"]), bound["tokens"])
            )


def place_here() -> Place:
    """Where the reply to a call belongs that is made now."""
    who = caller()
    return who.step_id, who.round, who.attempt, who.role, who.call_id


def place_of(turn: Event) -> Place:
    """Where the reply of a `turn` event belongs."""
    told = turn.payload
    return turn.step_id, told.get("round", 1), told["step_attempt"], told["role"], told["call_id"]


def _turn(record: CallRecord, held: Amount | None) -> dict[str, Any]:
    more: dict[str, Any] = {}
    reserved: Reservation | None = record.prepared.reservation
    if reserved is not None and reserved.number:
        more["reserved"] = reserved.number
    if reserved is not None and record.usage is None:
        more["bound"] = _figures(reserved.amount)
    if record.usage is None and held is not None:
        more["bound_behind"] = _figures(held)
    if record.cached:
        more["cached"] = True
    result = None if record.result is None else record.result.to_json()
    if record.reply_key is not None and result is not None:
        more["reply_key"] = record.reply_key
        if redact_data(result) is not result:
            more["masked"] = True  # the log does not have it as it was
    return {
        **more,
        **_place(record.caller),
        "model": record.model_name,
        "model_id": record.model_id,
        "attempt": record.attempt,
        "started_at": record.started_at,
        "elapsed": record.elapsed,
        "result": result,
        "error": None if record.error is None else {"code": record.error.code, "message": str(record.error)},
        "usage": None if record.usage is None else record.usage.to_json(),
    }


def _place(who: Caller) -> dict[str, Any]:
    """What `place_of` reads, beside the step."""
    round_ = {} if who.round == 1 else {"round": who.round}
    return {**round_, "role": who.role, "step_attempt": who.attempt, "call_id": who.call_id}


def _figures(amount: Amount) -> dict[str, Any]:
    return {"usd": money(amount.usd), "tokens": amount.tokens}
