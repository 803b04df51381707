"""How the loop goes through an agent's records again.

There is one loop. Where it touches the world it asks its `Replay` first: while something is recorded that is the
answer, and what was told is not told again. When the records end, it goes on live.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from registry.context import caller, calling
from registry.errors import LLMError
from registry.llm import LLM
from registry.messages import Message, Usage

from .events import Emit
from .past import ASIDE, CALLS, FAILED, OPENING, TURN, AgentPast, CallPast, EndedThereError, Key, mark_of


class RecordedError(LLMError):
    """The model's error that ended the agent, raised again; its code is that of the error."""

    code: str  # type: ignore[misc]

    def __init__(self, note: Mapping[str, Any]) -> None:
        usage = note.get("usage")
        super().__init__(note["content"], usage=None if usage is None else Usage.from_json(usage))
        self.code = note["code"]


_EMPTY = AgentPast()
_NOTHING = Usage.zero()


@dataclass(frozen=True, slots=True)
class Change:
    """Something the loop decided with the world's help, as it is recorded; `usage` is what it cost."""

    mark: str
    told: Mapping[str, Any]
    usage: Usage = _NOTHING

    @property
    def window(self) -> tuple[Message, ...]:
        """The conversation after a compaction."""
        return tuple(Message.from_json(message) for message in self.told["messages"])


class Replay:
    """One agent's way through its records. Without any it is `live` from the start and costs nothing."""

    def __init__(self, pasts: Mapping[Key, AgentPast], llm: LLM) -> None:
        who = caller()
        self.past = pasts.get((who.step_id, who.round, who.attempt), _EMPTY) if pasts else _EMPTY
        self.llm = llm
        self._line, self._place = self.past.line, 0
        self._turns = [place for place, (mark, _) in enumerate(self._line) if mark == TURN]
        self.turns = 0
        """Turns of the model that were recorded and are folded already."""

    @property
    def answered(self) -> Collection[str]:
        """How far the direct answer came. That of an agent which another one followed is nobody's business any more."""
        return {"start", "done"} if self.past.superseded else self.past.answered

    @property
    def live(self) -> bool:
        """Whether nothing more is recorded of what the loop told."""
        return self._place >= len(self._line)

    @property
    def within(self) -> bool:
        """Whether a turn of the model is recorded further on: what comes before it is as it was."""
        return self.turns < len(self._turns)

    def telling(self, emit: Emit) -> Emit:
        """`emit` for the loop: what was told is not told again, and nothing is told into what is recorded."""
        if not self._line:
            return emit

        def tell(channel: str, **told: Any) -> None:
            if not self._told(mark_of(channel, told)):
                emit(channel, **told)

        return tell

    def check(self) -> None:
        """Raises the error that ended the agent, if it came here; EndedThereError where something else ended it."""
        place = self._ahead()
        if place < len(self._line) and self._line[place][0] == FAILED:
            raise RecordedError(self._line[place][1])
        if place >= len(self._line) and self.past.superseded:
            raise EndedThereError

    def opening(self) -> Change | None:
        """How the agent began; None: it begins now."""
        place = self._find(OPENING)
        return None if place is None else self._passed(place)

    def change(self, *marks: str) -> Change | None:
        """The compaction, or the new opening in another mode, that comes next, if one of these does."""
        place = self._ahead()
        if place < len(self._line) and self._line[place][0] in marks:
            return self._passed(place)
        return None

    def turn(self) -> bool:
        """Whether the model's next turn is recorded: then it is given when it is asked for."""
        self.check()
        if not self.within:
            return False
        self._place = self._turns[self.turns] + 1
        self.turns += 1
        return True

    def last_turn(self) -> bool | None:
        """Whether the next turn was told to be the last one; None where nothing is recorded of it."""
        if self.live:
            return False if self.past.superseded else None
        return self._line[self._place][0] == "note last_turn"

    def interrupts(self) -> tuple[str, ...] | None:
        """The messages taken in here; None: whoever waits now is to be heard."""
        place = self._find("inject")
        if place is not None and all(mark != CALLS for mark, _ in self._line[self._place : place]):
            return (str(self._passed(place).told["content"]),)
        return None if self.live and not self.past.superseded else ()

    def said(self, mark: str) -> str | None:
        """The text of the note that comes next, as it was given to the model then; None: it is not recorded."""
        place = self._find(mark)
        return None if place is None else str(self._line[place][1]["content"])

    def called(self) -> None:
        """The calls of a turn are over."""
        self._told(CALLS)

    def call(self, key: str) -> CallPast | None:
        """What is recorded of a call. Raises EndedThereError where it was under way when the agent was ended."""
        known = self.past.calls.get(key)
        if self.past.superseded and (known is None or known.over is None):
            raise EndedThereError
        return known

    def _ahead(self) -> int:
        """The next place at which something other than the work on a compaction stands."""
        place = self._place
        while place < len(self._line) and self._line[place][0] in (*ASIDE, "compact"):
            place += 1
        return place

    def _find(self, wanted: str) -> int | None:
        """The place of this mark before the next turn."""
        end = self._turns[self.turns] if self.within else len(self._line)
        return next((place for place in range(self._place, end) if self._line[place][0] == wanted), None)

    def _told(self, mark: str) -> bool:
        if self.live:
            return False
        place = self._find(mark)
        if place is not None:
            self._place = place + 1
        elif not self.within:
            self._place = len(self._line)
        return place is not None or self.within

    def _passed(self, place: int) -> Change:
        """What stands there. The replies of calls made for it are used up: nobody asks for them again."""
        usage = _NOTHING
        for role, told in self._line[self._place : place]:
            if role in ASIDE:
                with calling(role=role):
                    if self.llm.scope is not None:
                        self.llm.scope.recall(self.llm)
                usage += Usage.recorded(told["usage"])
        mark, told = self._line[place]
        self._place = place + 1
        return Change(mark, told, usage)


def told_once(emit: Emit, known: CallPast | None) -> Emit:
    """`emit` for one call: what was told of it is not told again."""
    if known is None:
        return emit
    done = known.told

    def tell(channel: str, **told: Any) -> None:
        mark = f"iteration {told['status']}" if channel == "step" else told["status"]
        if mark not in done:
            emit(channel, **told)

    return tell
