"""What happens to a replayed job: it gets from outside exactly what the log says, in that order, and is compared."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agent.past import ASIDE, OWN_ROLES
from executor.ledger import Place, place_here
from executor.letters import act
from executor.reservations import FINAL_ROLE
from registry.context import Caller, caller
from registry.errors import AbandonedError, BudgetExceededError, DagwrightError
from registry.messages import Event

from .departures import DepartedError, Departure, short, shown, words
from .script import Item, Reply, Script, of_the_pipeline, told_item

if TYPE_CHECKING:
    from executor.job import JobRunner

QUIET = 200
"""Turns of the event loop without any news after which a job counts as waiting for us: nothing in it waits for
anything outside of this process, and no chain of callbacks is nearly as long."""


class Plans(Protocol):
    """The run of a plan, as far as somebody from outside may meddle with it."""

    def expire(self, step_id: str, seconds: float) -> None:
        """The step's time is over."""

    async def pause(self, step_id: str, over: asyncio.Event) -> None:
        """The step waits for a human, until it is over."""


class Stage:
    """Follows a script. The job's stand-ins ask here for what is to come, its log tells here what it told."""

    def __init__(self, script: Script, timeout: float | None) -> None:
        self.script, self.timeout = script, timeout
        self.departures: list[Departure] = []
        self.answer_refused = False
        self.runner: JobRunner | None = None
        self.plans: Plans | None = None
        self.expire_job: Any = None
        self._at, self._news, self._acted = 0, 0, -1
        self._said: deque[Item] = deque()
        self._in_turn = Counter(item.reply.place for item in script.items if item.reply is not None)
        self._asked: dict[Place, asyncio.Future[bool]] = {}
        self._held: dict[tuple[str, bool], asyncio.Future[None]] = {}
        self._aborted = False
        self._pauses: dict[str, asyncio.Event] = {}
        self._pausing: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self._blocked: list[str] = []

    # The script's head

    def _head(self) -> Item | None:
        """What is to come next; what is said to the job is taken out, to be said when it shows."""
        items = self.script.items
        while self._at < len(items) and items[self._at].kind == "letter":
            self._said.append(items[self._at])
            self._at += 1
        return items[self._at] if self._at < len(items) else None

    def answer_is_refused(self) -> bool:
        """Whether the budget had no call for the answer."""
        head = self._head()
        return head is not None and head.channel == "budget"

    # What the job tells

    def heard(self, event: Event) -> None:
        """The job's log has a new event."""
        self._news += 1
        if of_the_pipeline(event) and not self.departures:
            self._told(told_item(event))

    def _told(self, found: Item) -> None:
        head = self._head()
        if head is None:
            self._depart("end", f"the log has ended, and {words(found)} follows", None, found=shown(found))
        elif head.kind != "told" or not head.same(found):
            self._differs(head, found)
        else:
            self._at += 1
            self._after()
            self._advance()

    def _after(self) -> None:
        """What was said meanwhile takes effect before the pipeline goes on to something else."""
        head = self._head()
        if head is not None and head.kind == "told" and head.channel != "step_progress":
            self._speak()

    def _differs(self, head: Item, found: Item) -> None:
        names = head.differences(found) if (head.channel, head.step_id) == (found.channel, found.step_id) else ()
        what = f" ({', '.join(names)})" if names else ""
        message = f"the log has {words(head)}, the replay tells {words(found)}{what}"
        expected, told = (
            ({name: short(one.get(name)) for name in names} for one in (head.payload or {}, found.payload or {}))
            if names
            else (shown(head), shown(found))
        )
        kind: Literal["end", "told"] = "end" if "done" in (head.channel, found.channel) else "told"
        self._depart(kind, message, head, step_id=found.step_id, expected=expected, found=told)

    # What the job asks for

    async def reply(self, model: str) -> Reply:
        """The reply to the call that is being made here and now. Raises DepartedError where the log has none."""
        self._news += 1
        who = caller()
        place = place_here()
        known = self.script.replies.get(place)
        if known and who.call_id is None and who.role in (*OWN_ROLES, *ASIDE):
            while known and known[0].result is None:  # what an agent made of an error stands in its own record
                known.popleft()
        if not known:
            return await self._none(who, model)
        if self._is_next(place):
            asked = self._asked[place] = asyncio.get_running_loop().create_future()
            try:
                self._advance()
                if not await asked:
                    return Reply(0, place, model, 1, None, (AbandonedError.code, ""))
            finally:
                del self._asked[place]
        reply = known.popleft()
        if reply.model != model:
            self._depart_at(who, "reply", f"the log has a reply of {reply.model!r} there", model, reply.seq)
            raise DepartedError
        return reply

    def next_reply(self) -> Reply | None:
        """The reply after those that were given at the place that is calling."""
        who = caller()
        known = self.script.replies.get((who.step_id, who.round, who.attempt, who.role, who.call_id))
        return known[0] if known else None

    def _is_next(self, place: Place) -> bool:
        """Whether replies at this place have their turn in the script."""
        return self._in_turn[place] > 0

    async def _none(self, who: Caller, model: str) -> Reply:
        head = self._head()
        if head is not None and head.channel == "budget" and who.role == FINAL_ROLE and self._death_before(head):
            self._at += 1  # the call died with its worker, and its bound left nothing for another one
            return Reply(0, place_here(), model, 1, None, (BudgetExceededError.code, ""))
        last = head is None or head.channel == "done"
        code = self.script.ending.get("error_code")
        if (
            who.step_id is None
            and last
            and code
            and not self.script.aborted
            and self.script.ending["status"] != "completed"
        ):
            place = place_here()
            return Reply(0, place, model, 1, None, (str(code), str(self.script.ending.get("error") or "")))
        await self.nothing(who, "reply", "no reply to it is in the log", model)
        raise DepartedError

    async def called(self, tool: str, key: str | None) -> None:
        """A tool would run. Never returns; raises DepartedError unless the work was cut off there."""
        await self.nothing(caller(), "call", "the log has no such call", tool, key)

    async def nothing(
        self, who: Caller, kind: Literal["reply", "call"], why: str, name: str, key: str | None = None
    ) -> None:
        """What is asked for is not in the log: where the work was cut off, nothing came any more; else it departs."""
        self._news += 1
        if self._cut_off(who):
            await self._for_ever(f"{who.role} {who.step_id or ''}".strip())
        self._depart_at(who, kind, why, name, None, key)
        raise DepartedError

    async def stands(self, who: Caller) -> None:
        """Something went on until the work was cut off; returns only where it was not."""
        self._news += 1
        if self._cut_off(who):
            await self._for_ever(who.role)

    def _cut_off(self, who: Caller) -> bool:
        """Whether whoever calls was cut off in the end."""
        return self.script.aborted if who.step_id is None else (who.round, who.step_id) in self.script.cut_off

    async def _for_ever(self, waiting: str) -> None:
        self._blocked.append(waiting)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._blocked.remove(waiting)

    async def may_end(self, step_id: str, *, cut_off: bool = False) -> None:
        """Returns when the step's end is due, `cut_off` or not. When the whole job is, there is no order in it."""
        self._news += 1
        if cut_off and self._aborted:
            return
        place = step_id, cut_off
        held = self._held[place] = asyncio.get_running_loop().create_future()
        try:
            self._advance()
            await held
        finally:
            self._held.pop(place, None)

    def _advance(self) -> None:
        """Gives what is due to whoever waits for it."""
        head = self._head()
        if head is None:
            return
        if head.reply is not None:
            asked = self._asked.get(head.reply.place)
            if asked is not None and not asked.done():
                self._speak()
                self._at += 1
                self._in_turn[head.reply.place] -= 1
                self._head()
                self._speak()  # said while the reply was on its way
                asked.set_result(True)
        elif head.ends(head.step_id or ""):
            held = self._held.get((head.step_id or "", head.cut_off))
            if held is not None and not held.done():
                held.set_result(None)

    # What comes from outside

    async def follow(self) -> None:
        """Does what the script says whenever the job waits for it; until `over`."""
        quiet = seen = 0
        while not self._over.is_set():
            await asyncio.sleep(0)
            if self._news != seen:
                seen, quiet = self._news, 0
            elif (quiet := quiet + 1) >= QUIET:
                quiet = 0
                self._act()

    def over(self) -> None:
        """The job has ended. What the log has beyond is a departure."""
        self._over.set()
        for task in self._pausing:
            task.cancel()
        head = self._head()
        if head is not None and not self.departures:
            self._depart("missing", f"the job ended before {words(head)}", head, expected=shown(head))

    def _act(self) -> None:
        if self.departures:
            return
        head = self._head()
        if head is not None and self._acted != self._at and self._step(head):
            self._acted = self._at
        elif head is not None and head.kind == "told" and self._said:
            self._speak(1)
        elif head is None:
            self._depart("end", "the log has ended, and the job goes on", None)
        elif self._acted == self._at and not self._given_up(head):
            self._depart("missing", f"{words(head)} does not come{self._waiting()}", head, expected=shown(head))
        elif head.kind == "abort":
            self._at += 1
            self._abort(head)
        elif head.kind == "ready":
            self._at += 1
            self._ready(head.step_id or "")
            self._advance()
        else:
            self._acted = self._at

    def _given_up(self, head: Item) -> bool:
        """A call that died with its worker, and was not made again: whether there was one."""
        asked = [future for future in self._asked.values() if not future.done()]
        if not asked or not self._death_before(head):
            return False
        for future in asked:
            future.set_result(False)
        return True

    def _death_before(self, head: Item) -> bool:
        """Whether a worker died between the entry that was due before and this one."""
        before = self.script.items[self._at - 1].seq if self._at else 0
        return any(before < death < head.seq for death in self.script.deaths)

    def _step(self, head: Item) -> bool:
        """What befalls a step from outside: whether anything did."""
        step_id, told, plans = head.step_id or "", head.payload or {}, self.plans
        if plans is None or not head.is_progress(step_id):
            return False
        if told.get("error_code") == "timeout":
            plans.expire(step_id, self.timeout or 0.0)
        elif told["status"] == "waiting":
            over = self._pauses[step_id] = asyncio.Event()
            self._pausing.append(asyncio.create_task(plans.pause(step_id, over), name=f"wait {step_id}"))
        else:
            return told["status"] == "running" and self._ready(step_id)
        return True

    def _ready(self, step_id: str) -> bool:
        """The step's wait is over: False where it does not wait."""
        over = self._pauses.pop(step_id, None)
        if over is not None:
            over.set()
        return over is not None

    def _waiting(self) -> str:
        names = [*(place[3] for place in self._asked), *(step for step, _ in self._held), *self._blocked]
        return f"; waiting: {', '.join(names)}" if names else ""

    def _abort(self, item: Item) -> None:
        self._aborted = True
        if item.channel == "time":
            self.expire_job(str((item.payload or {}).get("error")))
        elif self.runner is not None:
            self.runner.cancel()

    def _speak(self, most: int | None = None) -> None:
        while self._said and most != 0:
            self._act_on(self._said.popleft())
            most = None if most is None else most - 1

    def _act_on(self, letter: Item) -> None:
        self._news += 1
        if self.runner is not None and letter.channel not in ("cancel", "decide"):
            with suppress(DagwrightError, KeyError):  # it came too late in the job, too
                act(self.runner, letter.channel, letter.payload or {})

    # Departures

    def _depart_at(
        self, who: Caller, kind: Literal["reply", "call"], why: str, name: str, seq: int | None, key: str | None = None
    ) -> None:
        where = f"step {who.step_id}, " if who.step_id is not None else ""
        what = f"a call of the tool {name!r}" if kind == "call" else f"a reply of {name!r}"
        head = self._head()
        told = Departure(
            kind, f"{where}round {who.round}, attempt {who.attempt}, role {who.role}: {what} is asked for; {why}",
            seq if seq is not None or head is None else head.seq, who.step_id, who.round, who.attempt, who.role,
            key or who.call_id or (name if kind == "call" else None),
        )  # fmt: skip
        self._departed(told)

    def _depart(self, kind: Literal["told", "missing", "end"], message: str, at: Item | None, **more: Any) -> None:
        seq = None if at is None else at.seq
        step = more.pop("step_id", None if at is None else at.step_id)
        self._departed(Departure(kind, message, seq, step, **more))

    def _departed(self, departure: Departure) -> None:
        self._aborted = True
        if not self.departures:  # what comes after the first follows from it
            self.departures.append(departure)
            if self.runner is not None:
                self.runner.cancel()
