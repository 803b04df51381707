"""One ReAct run: query the model, act on its reply, until it answers or a limit ends it. The loop exists once, here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from registry.errors import BadRequestError, BudgetExceededError, ContextLengthError, LLMError
from registry.messages import LLMResult, Message
from registry.text import load_prompt
from registry.tokens import estimate_messages

from .calls import UNKNOWN_TOOL, ToolRunner, texts
from .guards import LoopGuard, tool_of
from .interrupts import interrupt_message
from .live import LiveAnswer
from .opening import Opening, opened, tell_who
from .past import OPENING, WINDOW
from .replay import Change, Replay
from .state import AgentState, StopReason, Turn
from .summary import gathered
from .trust import joined_taint

if TYPE_CHECKING:
    from .react import ReActAgent

MIN_LOOP_OUTPUT = 2_048
"""Output tokens a loop call asks for at least, where the model allows."""
MAX_NUDGES = 2
"""Empty replies that are answered with a nudge; the next one ends the run."""
MAX_CUTS = 3
"""Turns in a row that the output limit cut; the last ends the run."""

_REASONS: Mapping[str, StopReason] = {
    "context_length": "context_length",
    "refusal": "refusal",
    "content_filter": "content_filter",
    "budget_exceeded": "budget_exceeded",
    "truncated": "truncated",
}
"""Codes of model errors that are reasons of their own; the others are llm_error."""

_NO_TOOLS = re.compile(r"\b(tools?|functions?|tool_choice|tool use)\b", re.IGNORECASE)
_NO_JSON = re.compile(r"response_format|json", re.IGNORECASE)


class Run:
    """One run: the places where the world is touched. What is known stands in the frozen state."""

    def __init__(self, agent: ReActAgent, query: str) -> None:
        self.agent, self.llm, self.options = agent, agent.llm, agent.options
        self.past = Replay(agent.services.past, agent.llm)
        self.emit = self.past.telling(agent.emit)
        direct = agent.options.answer_mode == "direct"
        self.live = LiveAnswer(agent.emit, "", self.past.answered) if direct else None
        self.opening = Opening.of(agent, query)

    def _goes_by(self, opening: Opening) -> None:
        """From here on this mode, these tools."""
        agent = self.agent
        self.opening, self.mode, self.tools = opening, opening.mode, opening.tools
        self.services = replace(agent.services, marker=opening.marker)
        if self.live is not None:
            self.live.mode = self.mode.name
        self.runner = ToolRunner(
            self.tools,
            agent.hooks,
            agent.emit,
            agent.clock,
            self.options.metadata or {},
            self.services,
            lambda role: agent.llm,
            self.past,
        )

    # The start

    async def start(self, history: Sequence[Message]) -> AgentState:
        """The first state: tools chosen, query bounded, history made to fit, hooks heard."""
        try:
            return await self._start(history)
        except LLMError as error:
            query = self.opening.query
            begun = (self._system(), Message.user(query, pinned=True))
            return self._failed(AgentState(query, begun, begun), error)

    async def _start(self, history: Sequence[Message]) -> AgentState:
        opening, usage = await opened(self.opening, self.agent, self.past, self.emit)
        self._goes_by(opening)
        head = (self._system(), *(_earlier(message) for message in history if message.role != "system"))
        tail = (*(Message.user(text) for text in opening.context), Message.user(opening.query, pinned=True))
        guard = LoopGuard(self.options.cycle_detection_threshold)
        state = AgentState(opening.query, head + tail, head + tail, usage, guard=guard, taint=self.services.taint)
        return await self._fitted(state, 1.0, hint="general")

    def _system(self) -> Message:
        return self.opening.head(self.agent.system_prompt)

    # One step: query, then act

    async def step(self, state: AgentState) -> AgentState:
        """One iteration: limits, context, the model's turn, what it asks for."""
        finishing = self.past.last_turn()
        if finishing is None:
            finishing = self.agent.finishing
        last = finishing or state.iterations + 1 >= self.options.max_iterations
        if last and self.options.max_iterations > 1:
            state = self._told_last(state)
        try:
            state, result = await self._query(state, final_only=last)
        except LLMError as error:
            return self._failed(state, error)
        turn = self.mode.read(result, self.tools, state.iterations + 1)
        state = state.turned(result, turn.message, estimate_messages(state.window))
        self._tell_thinking(state, turn)
        return await self._act(state, turn, result, last=last)

    async def _query(self, state: AgentState, *, final_only: bool) -> tuple[AgentState, LLMResult]:
        """The model's turn; a conversation it finds too long is compacted harder and sent once more."""
        state = await self._fitted(state, 1.0)
        self.emit("step", type="thinking", status="start", iteration=state.iterations + 1)
        while (change := self.past.change(WINDOW, OPENING)) is not None:  # what refused requests led to
            state = self._changed(state, change, refused=True)
        while True:
            try:
                return state, await self._chat(state, final_only=final_only)
            except ContextLengthError as error:
                if state.squeezed:
                    raise
                if error.context_size:
                    self.llm.learn_context_size(error.context_size)
                smaller = replace(await self._fitted(state, 0.5, context_size=error.context_size), squeezed=True)
                if estimate_messages(smaller.window) >= estimate_messages(state.window):
                    raise  # the same request again would only fail again
                state = smaller
            except BadRequestError as error:
                if not self._other_mechanism(state, error):
                    raise
                state = self._restarted(state, self.opening.asking(self.agent))
                self.opening.tell(self.emit)

    async def _chat(self, state: AgentState, *, final_only: bool) -> LLMResult:
        spent = None if state.guard.spent is None else tool_of(state.guard.spent)
        asked: dict[str, Any] = self.mode.request(self.llm, self.tools, final_only=final_only, spent=spent)
        if self.options.temperature is not None:
            asked["temperature"] = self.options.temperature
        if self.llm.max_output_tokens is None:
            asked["max_tokens"] = None
        elif self.llm.max_output_tokens < MIN_LOOP_OUTPUT:
            asked["max_tokens"] = self.llm.max_output_tokens
        if self.past.turn() or self.live is None:
            return await self.llm.chat(state.window, **asked)
        return await self.live.turn(self.llm.stream_chat(state.window, **asked), state.cut_answer)

    def _other_mechanism(self, state: AgentState, error: BadRequestError) -> bool:
        """Whether the server refused tools or response_format as such, and there is another way to ask."""
        text = f"{error.param or ''} {error}"
        if self.mode.name == "native" and not state.records and _NO_TOOLS.search(text):
            self.llm.refuse("tool_call")
            return True
        for ability in ("json_schema", "json_mode"):
            if self.mode.name == "json" and self.llm.abilities[ability] and _NO_JSON.search(text):
                self.llm.refuse(ability)
                return True
        return False

    def _restarted(self, state: AgentState, opening: Opening) -> AgentState:
        """The same conversation in another mode."""
        self._goes_by(opening)
        system = self._system()
        return replace(state, window=(system, *state.window[1:]), trace=(system, *state.trace[1:]))

    def _changed(self, state: AgentState, change: Change, *, refused: bool = False) -> AgentState:
        """After a compaction or a change of the mode that is recorded; `refused`: a provider's refusal led to it."""
        if change.mark == OPENING:
            return self._restarted(state, self.opening.as_told(change.told, self.agent))
        if size := change.told.get("context_size"):
            self.llm.learn_context_size(size)
        return replace(state.compacted(change.window).spent(change.usage), squeezed=state.squeezed or refused)

    async def _fitted(
        self, state: AgentState, share: float, *, hint: str = "react_iteration", context_size: int | None = None
    ) -> AgentState:
        if (change := self.past.change(WINDOW)) is not None:
            return self._changed(state, change)
        if self.past.within:
            return state  # it fitted
        self.past.check()
        tokens = None
        if state.measured:
            tokens = state.measured + estimate_messages(state.window[state.measured_count :])
        fitted = await self.agent.guard.fit(
            state.window,
            self.llm,
            hint=hint,
            tokens=tokens,
            overhead=state.overhead,
            share=share,
            marker=self.services.marker,
        )
        if fitted.messages == state.window:
            return state
        if fitted.compacted:
            self.emit("compact", original_messages=len(state.window), kept_messages=len(fitted.messages))
        learnt = {"context_size": context_size} if context_size else {}
        self.emit("compacted", messages=[message.to_json() for message in fitted.messages], **learnt)
        return state.compacted(fitted.messages).spent(fitted.usage)

    # What a turn asks for

    async def _act(self, state: AgentState, turn: Turn, result: LLMResult, *, last: bool) -> AgentState:
        if turn.cut or state.cuts:
            state = replace(state, cuts=state.cuts + 1 if turn.cut else 0)
        if self.mode.drains_early and not last:  # after the last turn nobody could act on it: it stays in the queue
            state, interrupted = self._interrupted(state)
        else:
            interrupted = False
        if turn.pause:
            return self._unless_last(state, last)
        if turn.calls:
            return await self._act_on_calls(state, turn, result, last=last)
        if turn.cut:
            return self._act_on_cut(state, turn, last=last)
        if turn.problem is not None:
            return self._act_on_problem(state, turn.problem, last=last)
        if state.checklist == "asked" and not last:  # this turn is the verification, whatever it looks like
            self._void()
            state = replace(state, checklist="answered", parse_failures=0)
            return state.said(self._note("after_checklist"))
        if not (turn.final or "").strip():
            return self._act_on_nothing(state, last=last)
        if turn.unreadable and state.parse_failures == 0 and not last:
            self._void()
            state = replace(state, parse_failures=1)
            problem = "it is not a JSON object with a type"
            return state.said(self._note("reformat", problem=problem))
        return self._act_on_answer(state, turn, interrupted=interrupted, last=last)

    async def _act_on_calls(self, state: AgentState, turn: Turn, result: LLMResult, *, last: bool) -> AgentState:
        self._void()
        state = replace(state, parse_failures=0, nudges=0, cut_answer="")
        if state.checklist == "asked":
            state = replace(state, checklist="answered")
        if last:
            text = "The call was not run: the iteration limit was reached."
            state = state.said(*self.mode.observations(turn, [(call, text, True) for call in turn.calls]))
            return self._stopped_at_limit(state)
        ran = await self.runner.run(turn, state.guard, state.iterations, result.finish_reason, state.taint)
        self.past.called()
        state = state.said(*self.mode.observations(turn, texts(ran)))
        refused = any(one.refused for one in ran)
        guard = state.guard.after([one.entry for one in ran], refused=refused)
        state = replace(
            state,
            records=state.records + tuple(one.record for one in ran),
            guard=guard,
            tool_iterations=state.tool_iterations + 1,
            taint=joined_taint(state.taint, *(one.taint for one in ran)),
            usage=sum((one.usage for one in ran if one.usage is not None), state.usage),
            uncertain=state.uncertain + tuple(one.uncertain for one in ran if one.uncertain is not None),
        )
        if guard.exhausted:
            return self._end(state.stopped("loop_detected", gathered(state.records), error="loop_detected"))
        if turn.cut and state.cuts >= MAX_CUTS:
            return self._end(state.stopped("truncated", gathered(state.records), error="truncated"))
        if (repeated := guard.repeated()) is not None and not refused:
            name = tool_of(repeated[0]) or turn.calls[-1].name
            state = state.said(self._note("repeated", tool=name, count=repeated[1]))
        state, _ = self._interrupted(state)
        if self.options.self_reflection_interval and state.tool_iterations % self.options.self_reflection_interval == 0:
            state = state.said(self._note("reflect"))
        return state

    def _act_on_problem(self, state: AgentState, problem: str, *, last: bool) -> AgentState:
        """A call that names no tool: an error observation, bounded like every repetition."""
        self._void()
        guard = state.guard.after([(UNKNOWN_TOOL, "")], refused=state.guard.refuses(UNKNOWN_TOOL))
        state = replace(state, guard=guard)
        if guard.exhausted:
            return self._end(state.stopped("loop_detected", gathered(state.records), error="loop_detected"))
        return self._unless_last(state.said(Message.user(problem)), last)

    def _act_on_cut(self, state: AgentState, turn: Turn, *, last: bool) -> AgentState:
        """A cut text is continued once, a cut action asked for again once; after that the run ends as truncated."""
        text = state.cut_answer + (turn.final or "")
        if last or state.cuts > 1:
            self._void()
            answer = text if text.strip() else gathered(state.records)
            return self._end(state.stopped("truncated", answer, error="truncated"))
        if self.mode.name == "native" and (turn.final or "").strip():
            return replace(state, cut_answer=text).said(self._note("continue"))
        self._void()
        return replace(state, cut_answer="").said(self._note("shorter"))

    def _act_on_nothing(self, state: AgentState, *, last: bool) -> AgentState:
        if state.nudges < MAX_NUDGES and not last:
            return replace(state, nudges=state.nudges + 1).said(self._note("empty"))
        return self._end(state.stopped("empty_response", gathered(state.records), error="empty_response"))

    def _act_on_answer(self, state: AgentState, turn: Turn, *, interrupted: bool, last: bool) -> AgentState:
        answer = state.cut_answer + (turn.final or "")
        if not self.mode.drains_early and not last:
            state, interrupted = self._interrupted(state)
        if interrupted and not last:
            self._void()
            return replace(state, cut_answer="", parse_failures=0)
        left = self.options.max_iterations - state.iterations
        wanted = self.options.completion_check and len(state.records) >= self.options.completion_check_min_tools
        if wanted and state.checklist == "unused" and left >= 2 and not turn.unreadable:
            self._void()
            state = replace(state, checklist="asked", cut_answer="")
            return state.said(self._note("checklist"))
        return self._end(replace(state, unparsed=turn.unreadable).stopped("final_answer", answer))

    # Small parts

    def _told_last(self, state: AgentState) -> AgentState:
        """The next turn is the last one; a model that has not begun is only not given any tools."""
        if state.iterations:
            return state.said(self._note("last_turn"))
        self.emit("note", kind="last_turn", content="")
        return state

    def _unless_last(self, state: AgentState, last: bool) -> AgentState:
        return self._stopped_at_limit(state) if last else state

    def _stopped_at_limit(self, state: AgentState) -> AgentState:
        return self._end(state.stopped("max_iterations", gathered(state.records), error="max_iterations"))

    def _failed(self, state: AgentState, error: LLMError) -> AgentState:
        reason = _REASONS.get(error.code, "llm_error")
        if isinstance(error, BudgetExceededError):
            reason = "budget_exceeded"
        cost = {} if error.usage is None else {"usage": error.usage.to_json()}
        tell_who(self.emit, "failed", str(error), code=error.code, **cost)
        self._void()
        if error.usage is not None:
            state = state.spent(error.usage)
        return self._end(state.stopped(reason, gathered(state.records), error=error.code, message=str(error)))

    def _end(self, state: AgentState) -> AgentState:
        if state.stop_reason == "final_answer":
            self.emit("step", type="answer", status="start")
        if self.live is not None:
            self.live.accept(state.answer)
        return state

    def _interrupted(self, state: AgentState) -> tuple[AgentState, bool]:
        taken = self.past.interrupts()
        if taken is None:
            taken = self.agent.interrupts.drain() if self.agent.interrupts is not None else ()
            if taken:
                self.emit("inject", type="inject", content="\n\n".join(taken))
        return (state.said(interrupt_message(taken)), True) if taken else (state, False)

    def _void(self) -> None:
        """What was streamed of this turn was not the answer."""
        if self.live is not None:
            self.live.void()

    def _note(self, name: str, **values: Any) -> Message:
        text = self.past.said(f"note {name}") or load_prompt("agent", name).substitute(**values)
        self.emit("note", kind=name, content=text)
        return Message.user(text)

    def _tell_thinking(self, state: AgentState, turn: Turn) -> None:
        self.emit("step", type="thinking", status="done", iteration=state.iterations, reasoning=turn.reasoning)


def _earlier(message: Message) -> Message:
    """A message of an earlier conversation: what was its query is no longer the one that must stay."""
    return replace(message, pinned=False) if message.pinned else message
